package e2e

import (
	"os/exec"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// olderCopy is an outbox whose server was put back to an older copy of its data folder
// while the forwarder knows of events behind it.
type olderCopy struct {
	*outbox
	cluster *testenv.Cluster
}

func newOlderCopy(t *testing.T) *olderCopy {
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	p := o.startStreaming("--status-interval", fastStatus)
	o.insert("before", 5)
	o.waitStored(5)
	o.waitConfirmed()
	p.Kill()
	stopFast(t, cluster)
	run(t, "cp", "-a", cluster.DataDir(), cluster.DataDir()+".older")
	startAgain(t, cluster)
	return &olderCopy{outbox: o, cluster: cluster}
}

// putBack stops the server, puts the older copy in place and starts it at the same port.
func (o *olderCopy) putBack() {
	o.tb.Helper()
	stopFast(o.tb, o.cluster)
	data := o.cluster.DataDir()
	run(o.tb, "mv", data, data+".newer")
	run(o.tb, "mv", data+".older", data)
	startAgain(o.tb, o.cluster)
}

// run does what an operator does by hand.
func run(tb testing.TB, name string, args ...string) {
	tb.Helper()
	if out, err := exec.CommandContext(testenv.Context(tb, testenv.Deadline), name, args...).CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v: %s", name, err, out)
	}
}

func TestRunningForwarderRefusesAnOlderCopyOfTheDatabaseAndNamesBothPositions(t *testing.T) {
	o := newOlderCopy(t)
	p := o.startStreaming("--status-interval", fastStatus)
	o.insert("newer", 500)
	o.waitStored(505)
	o.waitConfirmed()
	remembered := o.confirmed()
	o.putBack()
	p.WaitExit(3, 2*testenv.Deadline)
	expectRefusal(t, p, `position [0-9A-F]+/[0-9A-F]+ .*WAL end [0-9A-F]+/[0-9A-F]+.*older copy`, "copy")
	if told := o.confirmed(); parseLSN(t, told) >= parseLSN(t, remembered) {
		t.Errorf("the slot of the copy was moved to %s", told)
	}
}

func TestEventsOfAnOlderCopyOfTheDatabaseAllArriveFromAForwarderThatStarts(t *testing.T) {
	o := newOlderCopy(t)
	p := o.startStreaming("--status-interval", fastStatus)
	o.insert("newer", 50)
	o.waitStored(55)
	p.Kill()
	newer := o.rows()
	o.putBack()
	o.insert("older", 20)
	o.startStreaming("--status-interval", fastStatus)
	o.waitStored(75)
	o.waitConfirmed()
	want := append(newer, o.eventIDs("older")...)
	got := testenv.MessageIDs(o.ours())
	if summary(got) != summary(want) {
		t.Errorf("stream holds %s, want %s", summary(got), summary(want))
	}
}
