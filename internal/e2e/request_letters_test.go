package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// coverElsewhere lets the stream take the subject that is poison before.
func (o *outbox) coverElsewhere() {
	o.tb.Helper()
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.Subjects = append(cfg.Subjects, "elsewhere."+o.stream) })
}

// open returns the open letters as "event id reason code attempts", with the event that each waits for.
func (o *outbox) open() []string {
	o.tb.Helper()
	return testenv.Query(o.tb, o.databaseURL, `SELECT concat_ws(' ', l.event_id, l.reason_code, l.attempts, h.event_id)
		FROM outbox_dead_letter l LEFT JOIN outbox_dead_letter h ON h.id = l.held_behind WHERE l.resolved_at IS NULL ORDER BY l.id`)
}

func (o *outbox) expectOpen(want ...string) {
	o.tb.Helper()
	if got := o.open(); !slices.Equal(got, want) {
		o.tb.Fatalf("open letters: %q, want %q", got, want)
	}
}

// expectStream checks the event ids of the stream's messages, whatever they are.
func (o *outbox) expectStream(ids ...string) {
	o.tb.Helper()
	o.waitStored(len(ids))
	if got := eventIDs(o.stored()); !slices.Equal(got, ids) {
		o.tb.Fatalf("the stream holds %s, want %s", summary(got), summary(ids))
	}
}

func TestRetryPublishesWhatWaitsBehindALetterInOrderAndFreesTheAggregate(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming("--status-interval", fastStatus, "--on-poison", "hold-aggregate")
	bad := o.insertEvent("a", `{"n": 1.50}`, "elsewhere."+o.stream)
	var held []string
	for i := range 40 { // more than are read at once
		held = append(held, o.insertEvent("a", fmt.Sprint(i)))
	}
	free := o.insertEvent("b", "1")
	o.expectStored(free)
	o.waitConfirmed()

	// Not mended yet: one attempt more, and all wait as before.
	o.expectReport(3, requestReport{Selected: 41, Refused: 41}, "dead-letter", "retry", "--event-id", bad)
	if got := o.open(); len(got) != 41 || got[0] != bad+" subject-not-in-stream 2" || got[40] != held[39]+" held 0 "+bad {
		t.Fatalf("open letters: %q", got)
	}
	// One that waits cannot go first.
	p := o.run("dead-letter", "retry", "--event-id", held[0])
	expectStop(t, p, "1 of 1 events were not stored")
	if !strings.Contains(p.Stderr(), bad) || !strings.Contains(p.Stderr(), "(held)") {
		t.Errorf("%s", p.Stderr())
	}

	o.coverElsewhere()
	o.expectReport(0, requestReport{Selected: 41, Stored: 41}, "dead-letter", "retry", "--aggregate", "order/a")
	o.expectOpen()
	next := o.insertEvent("a", "41")
	o.expectStream(slices.Concat([]string{free, bad}, held, []string{next})...)
	m := o.stored()[1]
	position := o.value("SELECT position FROM outbox_dead_letter WHERE event_id = $1", bad)
	if m.Header.Get("Outbox-Republished") != "retry" || m.Header.Get("Outbox-Original-Position") != position || m.Header.Get("Outbox-Position") != "" ||
		!strings.HasSuffix(string(m.Data), `"payload":{"n": 1.50}}`) {
		t.Errorf("retried as %v %s", m.Header, m.Data)
	}
	if got := o.value("SELECT string_agg(DISTINCT resolution || (resolved_at = (SELECT min(resolved_at) FROM outbox_dead_letter))::text, ' ') FROM outbox_dead_letter"); !strings.HasPrefix(got, "retried") {
		t.Errorf("resolutions: %s", got)
	}
	expectStop(t, o.run("dead-letter", "retry", "--event-id", bad), "no such open dead letter")
	o.expectReport(0, requestReport{}, "dead-letter", "retry", "--all")
}

// A held event may be poison itself: then it holds those behind it.
func TestWhatIsPoisonAmongThoseThatWaitHoldsTheRestOfTheAggregate(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming("--status-interval", fastStatus, "--on-poison", "hold-aggregate")
	a1 := o.insertEvent("a", "1", "elsewhere."+o.stream)
	a2 := o.insertEvent("a", "2")
	a3 := o.insertEvent("a", "3", "nowhere."+o.stream)
	a4 := o.insertEvent("a", "4")
	o.waitLetters(a1+" subject-not-in-stream", a2+" held", a3+" held", a4+" held")
	o.coverElsewhere()
	o.expectReport(3, requestReport{Selected: 4, Stored: 2, Refused: 2}, "dead-letter", "retry", "--all")
	o.expectOpen(a3+" subject-not-in-stream 1", a4+" held 0 "+a3)
	a5 := o.insertEvent("a", "5") // the forwarder knows whom to wait for
	b1 := o.insertEvent("b", "1")
	o.expectStream(a1, a2, b1)
	o.expectOpen(a3+" subject-not-in-stream 1", a4+" held 0 "+a3, a5+" held 0 "+a3)

	// Discarded, it lets the others go, which no flag has chosen.
	p := o.run("dead-letter", "discard", "--event-id", a3, "--reason-text", "not wanted", "--json")
	p.WaitExit(0, 2*testenv.Deadline)
	if got := strings.Join(strings.Fields(p.Stdout()), ""); got != `{"selected":1,"discarded":1,"released":2}` {
		t.Errorf("discard: %s", got)
	}
	a6 := o.insertEvent("a", "6")
	o.expectStream(a1, a2, b1, a4, a5, a6)
	if got := o.value("SELECT resolution FROM outbox_dead_letter WHERE event_id = $1", a3); got != "discarded: not wanted" {
		t.Errorf("resolution %q", got)
	}
	if got := o.requests(); !slices.Equal(got, []string{"retry done 2 of 4", "discard done 2 of 2"}) {
		t.Errorf("requests: %q", got)
	}
}

func TestRetryWithoutAForwarderPublishesWhatTheSlotHasNotConfirmed(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming("--on-poison", "hold-aggregate")
	bad := o.insertEvent("a", "1", "elsewhere."+o.stream)
	held := o.insertEvent("a", "2")
	o.waitLetters(bad+" subject-not-in-stream", held+" held")
	p.Kill() // perhaps before the slot has passed them
	before := o.confirmed()
	o.coverElsewhere()
	o.expectReport(0, requestReport{Selected: 2, Stored: 2}, "replay", "--dead")
	o.expectOpen()
	if after := o.confirmed(); after != before {
		t.Errorf("the slot moved from %s to %s", before, after)
	}
	o.startStreaming("--on-poison", "hold-aggregate")
	next := o.insertEvent("a", "3")
	o.waitConfirmed()
	o.expectStream(bad, held, next)
}

func TestASuccessorFinishesARetryAndPublishesNothingTwice(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	args := []string{"--status-interval", fastStatus, "--on-poison", "hold-aggregate", "--rate", "400"}
	holder := o.startStreaming(args...)
	bad := o.insertEvent("a", "1", "elsewhere."+o.stream)
	o.insertTx("a", 600)
	other := o.insertEvent("b", "1", "elsewhere."+o.stream)
	testenv.Eventually(t, 2*testenv.Deadline, func() error {
		if n := len(o.letters()); n != 602 {
			return fmt.Errorf("%d letters", n)
		}
		return nil
	})
	o.waitConfirmed()
	rows := o.rows()
	standby := o.start(args...)
	standby.WaitLine(standbyLine(o.waitHolder("")), testenv.Deadline)
	o.coverElsewhere()
	retry := o.run("dead-letter", "retry", "--all", "--json")
	o.waitStored(200)
	holder.Kill()
	beyondTheWindow()
	retry.WaitExit(0, 2*testenv.Deadline)
	if got := strings.Join(strings.Fields(retry.Stdout()), ""); got != `{"selected":602,"stored":602,"swallowed":0,"refused":0}` {
		t.Errorf("retry: %s", got)
	}
	o.expectOpen()
	o.expectStream(rows...)
	if rows[0] != bad || rows[601] != other {
		t.Error("the table has another order")
	}
}

// Row 46, for dead letters: the stream has seen the id.
func TestRetryReportsWhatTheStreamSwallowedAndLeavesTheLetterOpen(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming("--status-interval", fastStatus)
	bad := o.insertEvent("a", "1", "elsewhere."+o.stream)
	o.waitLetters(bad + " subject-not-in-stream")
	o.coverElsewhere()
	js := testenv.JetStream(t, o.natsURL)
	if _, err := js.Publish(testenv.Context(t, testenv.Deadline), "elsewhere."+o.stream, nil, jetstream.WithMsgID(bad)); err != nil {
		t.Fatal(err)
	}
	o.expectReport(3, requestReport{Selected: 1, Swallowed: 1}, "dead-letter", "retry", "--event-id", bad)
	o.expectOpen(bad + " subject-not-in-stream 1")
	o.expectReport(0, requestReport{Selected: 1, Stored: 1}, "dead-letter", "retry", "--event-id", bad, "--fresh-ids")
	o.expectOpen()
}
