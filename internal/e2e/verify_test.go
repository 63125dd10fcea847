package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestVerifyAgreesWhileAForwarderWorksUnderLoad(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming()
	l := o.startLoad(3, 100*time.Millisecond) // that a slow machine keeps up with
	for range 3 {
		l.waitWritten(300)
		d, p := o.verify(0, "--settle", "2m")
		if d.Checked < 300 || d.InStream != d.Checked || d.Pending != 0 || d.Unknown != 0 {
			t.Errorf("got %+v\n%s", d, p.Stderr())
		}
	}
	l.end()
	d, _ := o.verify(0, "--settle", "2m")
	n := len(o.rows())
	o.expectVerified(d, fmt.Sprintf("checked %d, in stream %d", n, n))
}

func TestVerifyFindsWhatIsMissingTwiceOrOutOfOrder(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("a", 10)
	o.deliver()
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 10, in stream 10")
	messages, rows := o.stored(), o.rows()

	// What was sent again on request is neither twice there nor out of order.
	o.publishCopy(messages[2], func(h nats.Header) {
		h.Set("Outbox-Republished", "replay")
		h.Set("Outbox-Original-Position", h.Get("Outbox-Position"))
		h.Del("Outbox-Position")
	})
	o.verify(0)

	o.deleteMessage(messages[4].Sequence)
	d, p := o.verify(3)
	o.expectVerified(d, "checked 10, in stream 9, missing 1")
	if !slices.Equal(d.missing(), rows[4:5]) {
		t.Errorf("missing %v, want %s", d.missing(), rows[4])
	}
	expectRefusal(t, p, "1 missing, 0 stored more than once, 0 out of order", "outbox-cdc")

	late := o.publishCopy(messages[4], nil)
	d, _ = o.verify(3)
	o.expectVerified(d, "checked 10, in stream 10, inversions 1")
	if i := d.Inversions[0]; i.AggregateID != "a" || !slices.Equal(i.Sequences, []uint64{messages[9].Sequence, late}) {
		t.Errorf("inversion %+v, want aggregate a at %d and %d", i, messages[9].Sequence, late)
	}

	o.deleteMessage(late)
	again := o.publishCopy(messages[7], func(h nats.Header) { h.Set("Outbox-Position", messages[9].Header.Get("Outbox-Position")) })
	d, _ = o.verify(3)
	o.expectVerified(d, "checked 10, in stream 9, missing 1, duplicates 1")
	if e := d.Duplicates[0]; e.EventID != rows[7] || !slices.Equal(e.Sequences, []uint64{messages[7].Sequence, again}) {
		t.Errorf("duplicate %+v, want %s at %d and %d", e, rows[7], messages[7].Sequence, again)
	}
}

func TestVerifyTellsWhatTheSlotHasYetToSendFromWhatIsMissing(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("old", 5)
	o.deliver()
	o.insertTx("backlog", 200)
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 205, in stream 5, pending 200")
	o.deleteMessage(3)
	d, _ = o.verify(3)
	o.expectVerified(d, "checked 205, in stream 4, missing 1, pending 200")
	if rows := o.rows(); !slices.Equal(d.missing(), rows[2:3]) {
		t.Errorf("missing %v, want %s", d.missing(), rows[2])
	}
	// Nothing was taken from the slot by looking.
	o.startStreaming()
	o.waitStored(204)
}

func TestVerifyDoesNotTakeForMissingWhatAStalledForwarderHolds(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("old", 5)
	o.deliver()
	o.fillStream(0)
	o.startStreaming()
	o.insert("stalled", 20)
	d, p := o.verify(0, "--settle", "300ms")
	o.expectVerified(d, "checked 25, in stream 5, pending 20")
	if !strings.Contains(p.Stderr(), "note: slot "+o.slot+" has not confirmed all within 300ms") {
		t.Errorf("standard error: %s", p.Stderr())
	}
	o.widenStream()
	d, _ = o.verify(0)
	o.expectVerified(d, "checked 25, in stream 25")
}

func TestVerifyTakesRowsOlderThanTheStreamForAgedOut(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insertTx("one-transaction", 20)
	o.insert("many", 20)
	o.deliver()
	purge := func(first uint64) {
		t.Helper()
		ctx := testenv.Context(t, testenv.Deadline)
		s, err := testenv.JetStream(t, o.natsURL).Stream(ctx, o.stream)
		if err == nil {
			err = s.Purge(ctx, jetstream.WithPurgeSequence(first))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	purge(11)
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 40, in stream 30, aged out 10")
	o.deleteMessage(14)
	d, _ = o.verify(3)
	o.expectVerified(d, "checked 40, in stream 29, missing 1, aged out 10")
	purge(26)
	d, _ = o.verify(0)
	o.expectVerified(d, "checked 40, in stream 15, aged out 25")
	o.deleteMessage(30)
	d, _ = o.verify(3, "--include-aged-out")
	o.expectVerified(d, "checked 40, in stream 14, missing 26")
	if !slices.Equal(d.missing(), slices.Concat(o.rows()[:25], o.rows()[29:30])) {
		t.Errorf("missing %v: not in the order of the table", d.missing())
	}
	// An empty stream has no oldest message: then its max_age alone tells.
	purge(1000)
	d, _ = o.verify(3)
	o.expectVerified(d, "checked 40, missing 40")
	o.exec("UPDATE " + o.table + " SET occurred_at = now() - interval '2 hours' WHERE id <= 30")
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxAge = time.Hour })
	d, _ = o.verify(3)
	o.expectVerified(d, "checked 40, missing 10, aged out 30")
}

// Transactions that overlap are committed in another order than they begin in: at the
// stream's old end that must not look like a loss.
func TestVerifyAllowsForTransactionsThatOverlapAtTheStreamsOldEnd(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	insert := "INSERT INTO " + o.table + " (aggregate_type, aggregate_id, event_type) VALUES ('order', 'a', 'placed')"
	for range 3 {
		slow := o.connect()
		ctx := testenv.Context(t, testenv.Deadline)
		for _, sql := range []string{"BEGIN", insert} {
			if _, err := slow.Exec(ctx, sql); err != nil {
				t.Fatal(err)
			}
		}
		o.exec(insert)
		if _, err := slow.Exec(ctx, "COMMIT"); err != nil {
			t.Fatal(err)
		}
	}
	o.deliver() // rows 2, 1, 4, 3, 6, 5
	o.deleteMessage(1)
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 6, in stream 5, aged out 1")
	o.deleteMessage(3)
	d, _ = o.verify(3)
	o.expectVerified(d, "checked 6, in stream 4, missing 1, aged out 1")
}

func TestVerifyFindsNothingMissingInAStreamThatDropsItsOldestUnderLoad(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgs = 200 })
	o.startStreaming()
	l := o.startLoad(6, 100*time.Millisecond)
	for range 3 {
		l.waitWritten(500)
		d, _ := o.verify(0, "--settle", "2m")
		if d.AgedOut == 0 || d.InStream+d.AgedOut != d.Checked {
			t.Errorf("got %+v", d)
		}
	}
}

func TestVerifyCountsDeadLettersAsSettledUnlessTheyWereStoredSince(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("a", 8)
	o.deliver()
	rows, messages := o.rows(), o.stored()
	letter := func(i int, source string, heldBehind, resolution string) {
		o.deleteMessage(messages[i].Sequence)
		o.exec(fmt.Sprintf(`INSERT INTO outbox_dead_letter (source, position, event_id, reason_code, reason, attempts, held_behind, first_failed_at, dead_at, resolved_at, resolution)
			SELECT '1/' || %s, '1:0/0:%d', '%s', 'x', 'x', 1, %s, now(), now(), CASE WHEN r <> '' THEN now() END, nullif(r, '') FROM (VALUES ('%s')) v(r)`,
			source, i, rows[i], heldBehind, resolution))
	}
	name := "'" + o.slot + "'"
	letter(1, name, "NULL", "")
	letter(2, name, "1", "")
	letter(3, name, "NULL", "discarded: of no use")
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 8, in stream 5, dead 1, held 1")
	letter(4, name, "NULL", "retried")
	letter(5, "'another'", "NULL", "")
	d, _ = o.verify(3)
	o.expectVerified(d, "checked 8, in stream 3, missing 2, dead 1, held 1")
	if !slices.Equal(d.missing(), rows[4:6]) {
		t.Errorf("missing %v, want %v", d.missing(), rows[4:6])
	}
}

func TestVerifySelectsByTimeAndAggregate(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	for i, day := range []string{"2026-01-01", "2026-01-02", "2026-01-03"} {
		aggregate := fmt.Sprintf("a/%d", i)
		o.insert(aggregate, 10)
		o.exec("UPDATE " + o.table + " SET occurred_at = '" + day + " 12:00+00' WHERE aggregate_id = '" + aggregate + "'")
	}
	o.insert("today", 1)
	o.deliver()
	o.deleteMessage(15)
	o.publishCopy(o.stored()[2], func(h nats.Header) { h.Set("Outbox-Position", "9:0/0:0") }) // twice there
	for _, tc := range []struct {
		args string
		code int
		want string
	}{
		{"", 3, "checked 31, in stream 30, missing 1, duplicates 1"},
		{"--aggregate order/a/1", 3, "checked 10, in stream 9, missing 1"},
		{"--aggregate order/a/2", 0, "checked 10, in stream 10"},
		{"--aggregate other/a/1", 0, ""},
		{"--since 2026-01-02", 3, "checked 21, in stream 20, missing 1"},
		{"--until 2026-01-02T12:00:00Z", 3, "checked 10, in stream 10, duplicates 1"},
		{"--since 2026-01-03T13:00:00+01:00", 0, "checked 11, in stream 11"},
		{"--since 1h", 0, "checked 1, in stream 1"},
	} {
		d, _ := o.verify(tc.code, strings.Fields(tc.args)...)
		t.Run(tc.args, func(*testing.T) { o.expectVerified(d, tc.want) })
	}
}

func TestVerifyPassesOverMessagesOfOthersAndCountsEventsWithoutRowAsUnknown(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL(), func(o *outbox) { o.extra = []string{"--source", "shop"} })
	o.insert("a", 10)
	o.exec(`SELECT pg_logical_emit_message(true, 'outbox', '{"event_id": "m1", "aggregate_type": "order", "aggregate_id": "1", "event_type": "placed", "payload": {}}')`)
	o.deliver("--messages")
	o.exec("DELETE FROM " + o.table + " WHERE aggregate_version <= 3")
	m := o.stored()[0]
	o.publishCopy(m, func(h nats.Header) { h.Set("Outbox-Source", "1/other") })
	o.publishCopy(m, func(h nats.Header) { clear(h) })
	// After an upgrade the same outbox has another system identifier, and its positions begin anew.
	o.publishCopy(m, func(h nats.Header) {
		h.Set("Outbox-Source", "1/shop")
		h.Set("Outbox-Event-Id", "phantom")
		h.Set("Outbox-Position", "1:0/1:0")
	})
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 7, in stream 7, unknown 5")
}

// Nothing says when an event without a row should have been stored, nor how often: what
// lies behind it in the stream is not out of order for that.
func TestVerifyNeverFailsForEventsWithoutRow(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("a", 5)
	o.deliver()
	stored := o.stored()
	last := stored[len(stored)-1]
	o.deleteMessage(last.Sequence)
	for _, position := range []string{"1:FFFF/0:0", "1:FFFF/0:0", "nonsense", "1:0/1:0"} {
		o.publishCopy(last, func(h nats.Header) {
			h.Set("Outbox-Event-Id", "phantom "+position)
			h.Set("Outbox-Position", position)
		})
	}
	o.publishCopy(last, nil)
	d, _ := o.verify(0)
	if d.InStream != 5 || d.DuplicateCount != 0 || d.InversionCount != 0 {
		t.Errorf("verify found %+v", d)
	}
	// What is out of order among those that have a row is found all the same.
	o.deleteMessage(stored[1].Sequence)
	again := o.publishCopy(stored[1], nil)
	d, _ = o.verify(3)
	if want := []uint64{again - 1, again}; d.InversionCount != 1 || !slices.Equal(d.Inversions[0].Sequences, want) {
		t.Errorf("verify found %+v, want an inversion at %v", d, want)
	}
}

func TestVerifyComparesAllWithoutWaitingWhereThereIsNoSlot(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("a", 5)
	o.deliver()
	o.exec("SELECT pg_drop_replication_slot('" + o.slot + "')")
	o.insert("never-sent", 2)
	d, p := o.verify(3)
	o.expectVerified(d, "checked 7, in stream 5, missing 2")
	if !strings.Contains(p.Stderr(), "note: slot "+o.slot+" does not exist") {
		t.Errorf("standard error: %s", p.Stderr())
	}
}

func TestVerifySaysThatItCannotLookAtDeadLettersAndRepairsNothingThen(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("a", 3)
	o.deliver()
	o.deleteMessage(2)
	o.exec("DROP TABLE " + letterTable)
	d, p := o.verify(3)
	o.expectVerified(d, "checked 3, in stream 2, missing 1")
	if text := p.Stderr(); !strings.Contains(text, "warning: table public.outbox_dead_letter does not exist") || !strings.Contains(text, "outbox-cdc migrate up") {
		t.Errorf("standard error: %s", text)
	}
	p = o.run("verify", "--repair")
	p.WaitExit(3, testenv.Deadline)
	expectRefusal(t, p, "table public.outbox_dead_letter does not exist", "outbox-cdc migrate up")
	if n := len(o.stored()); n != 2 {
		t.Errorf("the stream holds %d messages, want 2 still", n)
	}
}

func TestVerifyListsAHundredAndCountsAll(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insertTx("a", 250)
	o.deliver()
	o.purge()
	d, _ := o.verify(3)
	o.expectVerified(d, "checked 250, missing 250")
	if !slices.Equal(d.missing(), o.rows()[:100]) {
		t.Errorf("%d are listed, want the first 100 of the table", len(d.Missing))
	}
}
