package e2e

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// waitHolder waits until another walsender than the given one holds the slot, and returns it.
func (o *outbox) waitHolder(other string) string {
	o.tb.Helper()
	var pid string
	testenv.Eventually(o.tb, 2*testenv.Deadline, func() error {
		if pid = o.holder(); pid == "" || pid == other {
			return fmt.Errorf("slot %s is held by %q", o.slot, pid)
		}
		return nil
	})
	return pid
}

// standbyLine is the line by which a standby says who holds the slot.
func standbyLine(pid string) string {
	return `"msg":"standby".*held by pid ` + pid + `\b.*outbox-cdc`
}

func TestStandbyNamesTheHolderAndTakesOverWhenTheLeaderIsKilled(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	leader := o.startStreaming()
	pid := o.waitHolder("")
	standby := o.start("--takeover-after", "off")
	standby.WaitLine(standbyLine(pid), testenv.Deadline) // it was refused with SQLSTATE 55006
	o.insert("leader", 20)
	o.waitStored(20)
	if o.holder() != pid {
		t.Fatalf("walsender %s holds the slot, before it was %s", o.holder(), pid)
	}
	leader.Kill()
	standby.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.insert("standby", 20)
	o.expectAll()
	o.waitConfirmed()
	standby.Signal(syscall.SIGTERM)
	standby.WaitExit(0, testenv.Deadline)
}

func TestStandbyThatIsAskedToStopLeavesTheLeaderAlone(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming("--status-interval", fastStatus)
	pid := o.waitHolder("")
	standby := o.start("--takeover-after", "3s")
	standby.WaitLine(standbyLine(pid), testenv.Deadline)
	o.waitStatusMessages(40) // longer than a silence of three seconds
	standby.Signal(syscall.SIGTERM)
	standby.WaitExit(0, testenv.Deadline)
	if o.holder() != pid {
		t.Errorf("walsender %q holds the slot, before it was %s", o.holder(), pid)
	}
	o.insert("leader", 5)
	o.expectAll()
}

func TestStandbyTakesOverFromAFrozenLeaderThatThawsWithoutHarm(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	leader := o.startStreaming()
	frozen := o.waitHolder("")
	standby := o.start("--takeover-after", "3s")
	standby.WaitLine(standbyLine(frozen), testenv.Deadline)
	l := o.startLoad(2, 100*time.Millisecond)
	l.waitWritten(200)
	leader.Signal(syscall.SIGSTOP)
	l.waitWritten(200)
	standby.WaitLine(`"msg":"ended the silent walsender.*pid `+frozen+`\b`, testenv.Deadline)
	standby.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	taken := o.waitHolder(frozen)
	l.waitWritten(200)
	leader.Signal(syscall.SIGCONT)
	leader.WaitLine(standbyLine(taken), testenv.Deadline)
	l.waitWritten(200)
	l.end()
	o.expectCommitOrder()
	o.waitConfirmed()
}

// The machine of the leader has vanished from the network: the server still believes in
// the connection. The forwarder comes back over another way.
func TestForwarderTakesItsSlotBackFromItsOwnGhostAndEndsNoOtherSession(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	other := newOutbox(t, testenv.NATS(t).URL()) // a walsender that is none of our business
	network := testenv.NewProxy(t, testenv.AddressOf(t, o.databaseURL))
	o.forwarderDatabaseURL = network.URL(o.databaseURL)
	other.startStreaming()
	bystander := other.waitHolder("")
	session := o.connect()
	p := o.startStreaming("--takeover-after", "2s")
	ghost := o.waitHolder("")
	o.insert("before", 10)
	o.waitStored(10)

	network.BlackHole()
	network.Heal() // only for new connections
	o.insert("during", 10)
	p.WaitLine(`"msg":"backing off".*silent`, testenv.Deadline)
	p.WaitLine(standbyLine(ghost), testenv.Deadline)
	p.WaitLine(`"msg":"ended the silent walsender.*pid `+ghost+`\b`, testenv.Deadline)
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.insert("after", 10)
	o.expectAll()
	o.waitConfirmed()
	if now := other.holder(); now != bystander {
		t.Errorf("the walsender of another slot was %s and is %q", bystander, now)
	}
	if _, err := session.Exec(testenv.Context(t, testenv.Deadline), "SELECT 1"); err != nil {
		t.Errorf("an idle session was ended: %v", err)
	}
	const linesMax = 20 // of connecting, losing and coming back; a few, not one for each try
	if lines := len(p.Lines()); lines > linesMax {
		t.Errorf("%d lines were printed", lines)
	}
}

func TestForwarderWithoutTakeoverWaitsUntilTheServerReapsTheGhost(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	network := testenv.NewProxy(t, testenv.AddressOf(t, o.databaseURL))
	direct := o.databaseURL
	o.forwarderDatabaseURL = network.URL(direct)
	first := o.startStreaming()
	ghost := o.waitHolder("")
	network.BlackHole()
	first.Kill()

	o.forwarderDatabaseURL = direct
	p := o.start("--takeover-after", "off")
	p.WaitLine(standbyLine(ghost), testenv.Deadline)
	o.insert("during", 10)
	o.exec("SELECT pg_terminate_backend(" + ghost + ")") // as the server does after wal_sender_timeout
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.expectAll()
	o.waitConfirmed()
}

// PostgreSQL shows no time of the last reply where there was none, and none either to who
// may not see it.
func TestStandbyTakesOverFromAHolderThatWasNeverHeard(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	conn, err := pgconn.Connect(testenv.Context(t, testenv.Deadline), o.databaseURL+"&replication=database")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if err := pglogrepl.StartReplication(testenv.Context(t, testenv.Deadline), conn, o.slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + o.slot + "'"},
	}); err != nil {
		t.Fatal(err)
	}
	holder := o.waitHolder("")
	p := o.start("--takeover-after", "1s")
	p.WaitLine(`"msg":"ended the silent walsender.*pid `+holder+`\b`, testenv.Deadline)
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
}

// The slot is made anew some seconds after a promotion, as cluster managers do: neither
// the former leader nor those that stood by give up meanwhile.
func TestStandbysWaitForASlotThatIsMadeAnewAfterAFailover(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	first, second := o.startStreaming(), o.start()
	second.WaitLine(`"msg":"standby"`, testenv.Deadline)
	o.insert("before", 5)
	o.waitStored(5)
	o.waitConfirmed()
	o.exec(`DO $$ BEGIN FOR i IN 1..10000 LOOP BEGIN
		PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '` + o.slot + `' AND active;
		PERFORM pg_drop_replication_slot('` + o.slot + `'); EXIT;
		EXCEPTION WHEN object_in_use THEN PERFORM pg_sleep(0.001); END; END LOOP; END $$`)
	second.WaitLine(`"msg":"backing off".*does not exist`, testenv.Deadline)
	o.exec("SELECT pg_create_logical_replication_slot('" + o.slot + "', 'pgoutput')")
	o.insert("after", 5)
	o.waitStored(10)
	o.waitConfirmed()
	for _, p := range []*testenv.Program{first, second} {
		p.Signal(syscall.SIGTERM)
		p.WaitExit(0, testenv.Deadline)
	}
	o.expectAll()
}
