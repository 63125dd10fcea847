package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// stopFast does what pg_ctl stop -m fast does. A stop that waits for us does not end by itself.
func stopFast(tb testing.TB, cluster *testenv.Cluster) {
	tb.Helper()
	if err := cluster.Stop(testenv.Context(tb, testenv.Deadline), devstack.StopFast); err != nil {
		tb.Fatal(err)
	}
}

func startAgain(tb testing.TB, cluster *testenv.Cluster) {
	tb.Helper()
	if err := cluster.Start(testenv.Context(tb, testenv.Deadline)); err != nil {
		tb.Fatal(err)
	}
}

func TestPostgresStopsAtOnceWhileTheForwarderIsIdle(t *testing.T) {
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	p := o.startStreaming()
	o.insert("before", 5)
	o.expectAll()
	o.exec("CREATE TABLE neighbour(n bigint)", "INSERT INTO neighbour VALUES (1)") // the last WAL is not ours
	stopFast(t, cluster)
	p.WaitLine(`"msg":"backing off"`, testenv.Deadline)
	// It was the server that ended the stream, satisfied with our position.
	if strings.Contains(p.Stderr(), "disconnecting so that it can") {
		t.Error("the forwarder cut the connection although it had nothing to wait for")
	}
	startAgain(t, cluster)
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.insert("after", 5)
	o.expectAll()
}

func TestPostgresStopsWhileNATSIsDownAndTheRowsArriveLater(t *testing.T) {
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	server := testenv.NATSProcess(t)
	o := newOutboxOn(t, cluster, server.URL())
	p := o.startStreaming()
	o.insert("before", 5)
	o.expectAll()
	o.waitConfirmed()
	server.Kill()
	o.insert("during", 1)
	told := o.waitStatusMessages(2)
	cpu := cpuTicks(t, p.PID())
	stopFast(t, cluster)
	if used := cpuTicks(t, p.PID()) - cpu; used > cpuTicksMax {
		t.Errorf("the forwarder used %d ticks of CPU while PostgreSQL stopped", used)
	}
	startAgain(t, cluster)
	server.Start()
	o.expectAll()
	o.waitConfirmed()
	expectNotPast(t, told, commitLSN(t, o.ours()[5]))
}

// cpuTicksMax is half a second of CPU, at the usual hundred ticks a second: five times of
// what waiting takes, and half of what answering each of the server's questions takes.
const cpuTicksMax = 50

// cpuTicks is the CPU time that a process has used, in clock ticks.
func cpuTicks(tb testing.TB, pid int) int {
	tb.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		tb.Fatal(err)
	}
	const user, system = 11, 12 // after the name, which may hold blanks
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	ticks := 0
	for _, i := range []int{user, system} {
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			tb.Fatal(err)
		}
		ticks += n
	}
	return ticks
}

func TestPostgresStopsWhileAHugeBacklogIsBlocked(t *testing.T) {
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	o.fillStream(100)
	p := o.startStreaming("--max-in-flight", "64", "--max-in-flight-bytes", "256KiB")
	o.insertTx("backlog", 30_000)
	o.waitStored(100)
	p.WaitLine(`"msg":"backing off"`, testenv.Deadline)
	stopFast(t, cluster)
	startAgain(t, cluster)
	o.widenStream()
	o.expectAll()
	o.waitConfirmed()
}
