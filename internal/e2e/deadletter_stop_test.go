package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// The process dies between the letter and the confirmation; then the limit is raised. The
// event has its letter, and only a retry may publish it.
func TestAPositionNeverHasASecondLetterNorAMessageBesideIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 1024 })
	before := o.confirmed()
	p := o.startStreaming("--status-interval", "10m", "--takeover-after", "off")
	first, bad, last := o.insertEvent("a", "1"), o.insertEvent("a", text(2000)), o.insertEvent("a", "3")
	o.expectStored(first, last)
	o.waitLetters(bad + " message-too-large")
	p.Kill()
	if got := o.confirmed(); got != before {
		t.Fatalf("the slot was moved from %s to %s before the process died", before, got)
	}
	id := o.value("SELECT id || ' ' || dead_at FROM " + letterTable)
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = -1 })
	for _, policy := range []string{"halt", "dead-letter"} {
		p = o.start("--status-interval", "10m", "--takeover-after", "off", "--on-poison", policy)
		p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
		more := o.insertEvent("a", "4")
		first, last = first+" "+last, more
		o.waitStored(len(strings.Fields(first)) + 1)
		p.Kill()
	}
	o.expectStored(append(strings.Fields(first), last)...)
	o.startStreaming("--status-interval", fastStatus)
	o.waitConfirmed()
	o.waitLetters(bad + " message-too-large")
	if got := o.value("SELECT id || ' ' || dead_at FROM " + letterTable); got != id {
		t.Errorf("the letter was %s and is %s", id, got)
	}
}

// Killed at random moments while letters are stored: each bad event has one letter, each
// good one is once in the stream.
func TestForwarderKilledAtRandomMomentsLeavesOneLetterForEachBadEvent(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.shortenDuplicateWindow(100 * time.Millisecond)
	o.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type, topic)
		SELECT 'order', 'a' || i %% 7, i, 'placed', CASE WHEN i %% 5 = 0 THEN 'elsewhere' END FROM generate_series(1, %d) i`, 400))
	for n := range 5 {
		p := o.startStreaming("--status-interval", fastStatus)
		testenv.Eventually(t, testenv.Deadline, func() error {
			if got := len(o.letters()); got < 15*(n+1) {
				return fmt.Errorf("%d letters", got)
			}
			return nil
		})
		p.Kill()
	}
	o.startStreaming("--status-interval", fastStatus)
	o.waitConfirmed()
	good := testenv.Query(t, o.databaseURL, "SELECT event_id::text FROM outbox WHERE topic IS NULL ORDER BY id")
	o.expectStored(good...)
	if got := o.value("SELECT count(*) || ' ' || count(DISTINCT event_id) FROM " + letterTable); got != "80 80" {
		t.Errorf("letters and distinct events of them: %s, want 80 each", got)
	}
}

func TestALetterThatMayNotBeStoredStopsTheForwarderBeforeItsEvent(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.forwarderDatabaseURL = o.printedRole()
	p := o.startStreaming("--status-interval", fastStatus)
	role := o.value("SELECT usename FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = '" + o.slot + "'")
	o.exec("REVOKE INSERT ON " + letterTable + " FROM " + role)
	first, bad, last := o.insertEvent("a", "1"), o.insertEvent("a", "2", "elsewhere."+o.stream), o.insertEvent("a", "3")
	failure := expectStop(t, p, bad, "position 1:", "dead letter", "permission denied")
	expectSlotBefore(t, o, failure)
	expectRefusal(t, p, "dead letter", "GRANT SELECT, INSERT, UPDATE ON public.outbox_dead_letter")
	o.expectStored(first)

	p = o.start()
	expectStop(t, p, role+" lacks INSERT on table public.outbox_dead_letter")
	expectRefusal(t, p, "lacks INSERT", "GRANT SELECT, INSERT, UPDATE ON public.outbox_dead_letter TO "+role)
	o.exec("GRANT INSERT ON " + letterTable + " TO " + role)
	p = o.startStreaming("--status-interval", fastStatus)
	o.waitLetters(bad + " subject-not-in-stream")
	o.expectStored(first, last)
	o.waitConfirmed()
	stop(t, p)
}

func TestALetterThatCannotBeStoredYetIsWaitedForAndNothingGoesPastIt(t *testing.T) {
	t.Parallel()
	o := newOutboxOn(t, testenv.NewPostgres(t, devstack.PostgresOptions{}), testenv.NATS(t).URL()) // an open transaction holds up the making of slots
	p, h := o.startHTTPStreaming("--status-interval", fastStatus)
	ctx := testenv.Context(t, 4*testenv.Deadline)
	tx, err := o.connect().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "LOCK TABLE "+letterTable+" IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	first, bad := o.insertEvent("a", "1"), o.insertEvent("a", "2", "elsewhere."+o.stream)
	last := o.insertEvent("b", "3")
	h.waitRedFor("dead letter")
	if line := p.WaitLine(`"msg":"backing off"`, testenv.Deadline); !strings.Contains(line, bad) {
		t.Errorf("the state does not name the event: %s", line)
	}
	o.expectStored(first)
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	o.waitLetters(bad + " subject-not-in-stream")
	o.expectStored(first, last)
	o.waitConfirmed()
	h.waitReady()
}

func TestLettersSurviveAnImmediateStopOfPostgreSQL(t *testing.T) {
	t.Parallel()
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	o.setDatabase("synchronous_commit", "off")
	p := o.startStreaming("--status-interval", fastStatus)
	var good, bad []string
	for i := range 6 {
		if i%2 == 0 {
			good = append(good, o.insertEvent("a", "1"))
			continue
		}
		bad = append(bad, o.insertEvent("a", "2", "elsewhere."+o.stream)+" subject-not-in-stream")
	}
	o.waitLetters(bad...)
	if err := cluster.Stop(testenv.Context(t, testenv.Deadline), devstack.StopImmediate); err != nil {
		t.Fatal(err)
	}
	startAgain(t, cluster)
	o.waitLetters(bad...)
	after := o.insertEvent("a", "3")
	o.expectStored(append(good, after)...)
	o.waitConfirmed()
	stop(t, p)
}

func TestStartRefusesWithoutTheTableOfDeadLettersUnlessItIsToHalt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil      []string
		what, hint string
	}{
		"not migrated":  {[]string{"DROP TABLE outbox_dead_letter"}, "outbox_dead_letter does not exist", "outbox-cdc migrate up"},
		"older version": {[]string{"ALTER TABLE outbox_dead_letter DROP COLUMN event"}, "outbox_dead_letter has no column event", "outbox-cdc migrate up"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, testenv.NATS(t).URL())
			o.exec(test.spoil...)
			for _, policy := range []string{"dead-letter", "hold-aggregate"} {
				p := o.start("--on-poison", policy)
				expectStop(t, p, test.what)
				expectRefusal(t, p, test.what, test.hint)
			}
			p := o.startStreaming("--on-poison", "halt", "--status-interval", fastStatus)
			good := o.insertEvent("a", "1")
			o.expectStored(good)
			o.waitConfirmed()
			bad := o.insertEvent("a", "2", "elsewhere."+o.stream)
			expectSlotBefore(t, o, expectStop(t, p, bad, "subject-not-in-stream"))
		})
	}
}

// A process that is frozen with a letter to store while another takes the slot over must not
// store it afterwards: by then the event may be published.
func TestAFrozenForwarderStoresNoLetterOnceAnotherHoldsTheSlot(t *testing.T) {
	t.Parallel()
	o := newOutboxOn(t, testenv.NewPostgres(t, devstack.PostgresOptions{}), testenv.NATS(t).URL()) // an open transaction holds up the making of slots
	p := o.startStreaming("--status-interval", fastStatus)
	pid := o.holder()
	ctx := testenv.Context(t, 4*testenv.Deadline)
	tx, err := o.connect().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "LOCK TABLE "+letterTable+" IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	bad := o.insertEvent("a", "2", o.stream+"_next.a")
	p.WaitLine(`"msg":"backing off".*`+bad, testenv.Deadline)
	p.Signal(syscall.SIGSTOP)
	o.exec("SELECT pg_terminate_backend(" + pid + ")")
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.Subjects = append(cfg.Subjects, o.stream+"_next.>") })
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	second := o.startStreaming("--status-interval", fastStatus)
	o.waitStored(1)
	o.waitConfirmed()
	p.Signal(syscall.SIGCONT)
	p.WaitLine(`"msg":"standby"`, testenv.Deadline)
	stop(t, second)
	p.WaitLine(`"msg":"streaming".*`, testenv.Deadline)
	o.waitConfirmed()
	o.expectStored(bad)
	o.waitLetters()
}

// The server has carried out the insert of a frozen process, which never commits: whoever
// takes the slot over stores the letter all the same.
func TestAForwarderThatIsFrozenWhileItStoresALetterDoesNotKeepItsSuccessorFromDoingSo(t *testing.T) {
	t.Parallel()
	o := newOutboxOn(t, testenv.NewPostgres(t, devstack.PostgresOptions{}), testenv.NATS(t).URL())
	frozen := o.startStreaming("--status-interval", fastStatus)
	pid := o.holder()
	ctx := testenv.Context(t, 4*testenv.Deadline)
	tx, err := o.connect().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "LOCK TABLE "+letterTable+" IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	bad := o.insertEvent("a", "1", "elsewhere."+o.stream)
	testenv.Eventually(t, testenv.Deadline, func() error {
		if n := o.value("SELECT count(*)::text FROM pg_locks WHERE NOT granted"); n == "0" {
			return errors.New("the forwarder does not wait for the table")
		}
		return nil
	})
	frozen.Signal(syscall.SIGSTOP)
	o.exec("SELECT pg_terminate_backend(" + pid + ")")
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	next := o.startStreaming("--status-interval", fastStatus)
	good := o.insertEvent("a", "2")
	o.waitLetters(bad + " subject-not-in-stream")
	o.expectStored(good)
	frozen.Signal(syscall.SIGCONT) // it reads that its session was ended: SQLSTATE 25P03, which is no reason to stop
	frozen.WaitLine(`"msg":"standby"`, testenv.Deadline)
	stop(t, next)
	frozen.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.waitConfirmed()
	o.waitLetters(bad + " subject-not-in-stream")
}
