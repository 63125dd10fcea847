package e2e

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestHoldAggregateKeepsLaterEventsBehindTheLetterAlsoOverARestart(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	args := []string{"--status-interval", fastStatus, "--on-poison", "hold-aggregate"}
	p, h := o.startHTTPStreaming(args...)
	a1 := o.insertEvent("a", "1")
	a2 := o.insertEvent("a", "2", "elsewhere."+o.stream)
	a3, b1 := o.insertEvent("a", "3"), o.insertEvent("b", "1")
	a4 := o.insertEvent("a", "4", "elsewhere."+o.stream) // poison, and held all the same
	o.waitLetters(a2+" subject-not-in-stream", a3+" held", a4+" held")
	o.waitConfirmed()
	h.waitMetric(`outbox_cdc_dead_letters_total{reason="held"}`, func(v float64) bool { return v == 2 })
	if s := o.status(h); s["dead_letters"] != 1.0 || s["held"] != 2.0 {
		t.Errorf("status: %v dead letters, %v held", s["dead_letters"], s["held"])
	}
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 5, in stream 2, dead 1, held 2")
	p.Kill()
	a5 := o.insertEvent("a", "5")
	b2 := o.insertEvent("b", "2")
	noAggregate := o.value("INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('bill', 'a', 'placed') RETURNING event_id::text")
	p = o.startStreaming(args...)
	o.waitLetters(a2+" subject-not-in-stream", a3+" held", a4+" held", a5+" held")
	o.expectStored(a1, b1, b2, noAggregate)
	o.waitConfirmed()
	if got := o.value("SELECT string_agg(concat_ws(' ', held_behind = (SELECT min(id) FROM outbox_dead_letter), attempts, aggregate_id), ',' ORDER BY id) FROM " + letterTable + " WHERE held_behind IS NOT NULL"); got != "t 0 a,t 0 a,t 0 a" {
		t.Errorf("held letters: %s", got)
	}
	p.Kill()

	// A letter that is gone holds nothing more, whoever resolved it and however.
	o.exec("UPDATE outbox_dead_letter SET resolved_at = now(), resolution = 'by hand'")
	p = o.startStreaming(args...)
	a6 := o.insertEvent("a", "6")
	o.expectStored(a1, b1, b2, noAggregate, a6)
	stop(t, p)
}

func TestAnAggregateIsFreeWhenItsLetterIsDiscardedWhileTheForwarderRuns(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming("--status-interval", fastStatus, "--on-poison", "hold-aggregate")
	bad := o.insertEvent("a", "1", "elsewhere."+o.stream)
	o.waitLetters(bad + " subject-not-in-stream")
	o.run("dead-letter", "discard", "--event-id", bad, "--reason-text", "of a test").WaitExit(0, testenv.Deadline)
	next := o.insertEvent("a", "2")
	o.expectStored(next)
	again := o.insertEvent("a", "3", "elsewhere."+o.stream)
	held := o.insertEvent("a", "4")
	o.waitLetters(bad+" subject-not-in-stream", again+" subject-not-in-stream", held+" held")
	o.waitConfirmed()
}

// The server refuses the first one in flight, when the second one is known to be poison: were
// the second one's letter made at once, to discard it would let the third one past the first.
func TestTheFirstOfTwoDeadLettersOfAnAggregateHoldsItAlsoWhenItIsFoundLast(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming("--status-interval", fastStatus, "--on-poison", "hold-aggregate")
	o.insertEvent("warm-up", "0")
	o.waitStored(1)
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 2000 })
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, topic)
		VALUES ('order', 'a', 'placed', to_jsonb(repeat('x', 5000)), NULL), ('order', 'a', 'placed', '2', 'bad..subject'), ('order', 'a', 'placed', '3', NULL)`)
	rows := o.rows()
	a1, a2, a3 := rows[1], rows[2], rows[3]
	o.waitLetters(a1+" message-too-large", a2+" held", a3+" held")
	o.run("dead-letter", "discard", "--event-id", a2, "--reason-text", "of a test").WaitExit(0, testenv.Deadline)
	o.expectOpen(a1+" message-too-large 1", a3+" held 0 "+a1)
	o.expectStored(rows[0])
	o.waitConfirmed()
}

// An event that comes before the letter of its aggregate is not held by it.
func TestAnEventBeforeTheLetterOfItsAggregateIsPublishedAlsoWhenItComesAgain(t *testing.T) {
	t.Parallel()
	server := testenv.NATSProcess(t)
	o := newOutbox(t, server.URL())
	p := o.startStreaming("--status-interval", "10m", "--takeover-after", "off", "--on-poison", "dead-letter") // which makes letters at once
	o.insert("warm-up", 1)
	o.waitStored(1)
	ids := o.rows()
	o.fillStream(1)
	for i := range 3 {
		ids = append(ids, o.insertEvent("a", fmt.Sprint(i)))
	}
	bad, held := o.insertEvent("a", "3", "elsewhere."+o.stream), o.insertEvent("a", "4")
	o.waitLetters(bad + " subject-not-in-stream")
	p.Kill() // two events before the letter are not stored, and one is
	o.widenStream()
	o.startStreaming("--status-interval", fastStatus, "--on-poison", "hold-aggregate")
	o.expectStored(ids...)
	o.waitConfirmed()
	o.waitLetters(bad+" subject-not-in-stream", held+" held")
}

func TestTooManyHeldEventsStopTheForwarder(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming("--status-interval", fastStatus, "--on-poison", "hold-aggregate")
	bad := o.insertEvent("a", "1", "elsewhere."+o.stream)
	o.waitLetters(bad + " subject-not-in-stream")
	p.Kill()
	o.exec(`INSERT INTO outbox_dead_letter (source, position, aggregate_type, aggregate_id, reason_code, reason, attempts, held_behind, first_failed_at, dead_at)
		SELECT source, '1:0/1:' || i, 'order', 'a', 'held', '', 0, l.id, now(), now() FROM outbox_dead_letter l, generate_series(1, 9999) i`)
	p = o.startStreaming("--status-interval", fastStatus, "--on-poison", "hold-aggregate")
	last := o.insertEvent("a", "2")
	testenv.Eventually(t, testenv.Deadline, func() error {
		if n := o.value("SELECT count(*)::text FROM outbox_dead_letter WHERE event_id = '" + last + "'"); n != "1" {
			return fmt.Errorf("%s letters of the last event", n)
		}
		return nil
	})
	over := o.insertEvent("a", "3")
	expectStop(t, p, "10000 events wait behind dead letters")
	expectRefusal(t, p, "10000 events", "dead-letter list")
	p = o.startStreaming("--status-interval", fastStatus, "--on-poison", "dead-letter")
	o.expectStored(over)
	p.WaitLine(`"msg":"events wait behind a dead letter, but this forwarder does not hold`, testenv.Deadline)
}
