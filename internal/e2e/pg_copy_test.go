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

func TestStartRefusesAnOlderCopyOfTheDatabaseThanTheStreamKnowsAndNamesBothPositions(t *testing.T) {
	o := newOlderCopy(t)
	p := o.startStreaming("--status-interval", fastStatus)
	o.insert("newer", 500)
	o.waitStored(505)
	p.Kill()
	o.putBack()
	o.insert("older", 2)
	told := o.confirmed()
	p = o.start("--status-interval", fastStatus)
	p.WaitExit(3, 2*testenv.Deadline)
	expectRefusal(t, p, `position [0-9]+:[0-9A-F]+/[0-9A-F]+:[0-9]+, .*WAL ends at [0-9A-F]+/[0-9A-F]+.*older copy`, "copy")
	if n := len(o.ours()); n != 505 {
		t.Errorf("the stream holds %d events, want the 505 of before", n)
	}
	if parseLSN(t, o.confirmed()) > parseLSN(t, told) {
		t.Errorf("the slot of the copy was moved from %s to %s", told, o.confirmed())
	}
}

// The older copy has written on past the position that the running forwarder remembers
// when it comes back: system identifier, timeline and WAL end all look right.
func TestEventsOfAnOlderCopyThatHasWrittenOnAllArrive(t *testing.T) {
	o := newOlderCopy(t)
	proxy := testenv.NewProxy(t, testenv.AddressOf(t, o.databaseURL))
	o.forwarderDatabaseURL = proxy.URL(o.databaseURL)
	p := o.startStreaming("--status-interval", fastStatus)
	o.insert("newer", 20)
	o.waitStored(25)
	o.waitConfirmed()
	remembered := o.confirmed()
	proxy.Cut()
	o.putBack()
	o.insertTx("ballast", 200)
	o.insert("older", 20)
	if parseLSN(t, o.value("SELECT pg_current_wal_lsn()::text")) <= parseLSN(t, remembered) {
		t.Fatal("the copy has not written past the remembered position")
	}
	proxy.Heal()
	p.WaitLine(`"msg":"streaming"`, 2*testenv.Deadline)
	o.waitStored(25 + 220)
	got := map[string]bool{}
	for _, id := range testenv.MessageIDs(o.ours()) {
		got[id] = true
	}
	for _, id := range o.rows() {
		if !got[id] {
			t.Errorf("event %s of the copy is not in the stream", id)
		}
	}
}
