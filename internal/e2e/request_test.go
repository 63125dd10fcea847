package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// requestReport is what replay and dead-letter retry print.
type requestReport struct {
	Selected, Stored, Swallowed, Refused int
}

// report runs a command that reports what it published, and checks its exit code.
func (o *outbox) report(code int, args ...string) requestReport {
	o.tb.Helper()
	p := o.run(append(args, "--json")...)
	p.WaitExit(code, 2*testenv.Deadline)
	var r requestReport
	if err := json.Unmarshal([]byte(p.Stdout()), &r); err != nil {
		o.tb.Fatalf("%v: %v in %q\n%s", args, err, p.Stdout(), p.Stderr())
	}
	return r
}

func (o *outbox) expectReport(code int, want requestReport, args ...string) {
	o.tb.Helper()
	if got := o.report(code, args...); got != want {
		o.tb.Errorf("%v: got %+v, want %+v", args, got, want)
	}
}

// again returns the messages that were published on request.
func again(messages []testenv.Message) []testenv.Message {
	return slices.DeleteFunc(slices.Clone(messages), func(m testenv.Message) bool { return m.Header.Get("Outbox-Republished") == "" })
}

// firsts returns the first deliveries.
func firsts(messages []testenv.Message) []testenv.Message {
	return slices.DeleteFunc(slices.Clone(messages), func(m testenv.Message) bool { return m.Header.Get("Outbox-Position") == "" })
}

// eventIDs returns the Outbox-Event-Id of each message.
func eventIDs(messages []testenv.Message) []string {
	var ids []string
	for _, m := range messages {
		ids = append(ids, m.Header.Get("Outbox-Event-Id"))
	}
	return ids
}

func (o *outbox) expectAgain(want []string) {
	o.tb.Helper()
	if got := eventIDs(again(o.stored())); !slices.Equal(got, want) {
		o.tb.Fatalf("published again: %s, want %s", summary(got), summary(want))
	}
}

// requests returns kind, state and progress of all requests.
func (o *outbox) requests() []string {
	o.tb.Helper()
	return testenv.Query(o.tb, o.databaseURL, `SELECT kind || ' ' || state || ' ' || coalesce(progress->>'stored', '-') || ' of ' || coalesce(progress->>'selected', '-') FROM outbox_request ORDER BY id`)
}

// Row 46: after a purge the stream still remembers the message ids, and is empty.
func TestReplayWithinTheDuplicateWindowReportsWhatTheStreamSwallowed(t *testing.T) {
	t.Parallel()
	url := testenv.NATS(t).URL()
	o := newOutbox(t, url)
	o.startStreaming()
	o.insert("a", 10)
	o.expectAll()
	o.waitConfirmed()
	o.purge()

	p := o.run("replay", "--aggregate", "order/a")
	failure := expectStop(t, p, "10 of 10 events were not stored", "duplicates")
	if !strings.Contains(p.Stderr(), "--fresh-ids") || !strings.Contains(p.Stdout(), "10 swallowed") {
		t.Errorf("%s\n%s%s", failure, p.Stdout(), p.Stderr())
	}
	o.expectReport(3, requestReport{Selected: 10, Swallowed: 10}, "replay", "--aggregate", "order/a")
	if n := len(o.stored()); n != 0 {
		t.Fatalf("the stream holds %d messages", n)
	}
	o.expectReport(0, requestReport{Selected: 10, Stored: 10}, "replay", "--aggregate", "order/a", "--fresh-ids")
	o.expectAgain(o.rows())
	for i, m := range o.stored() {
		if id := m.Header.Get("Nats-Msg-Id"); id != fmt.Sprintf("%s.%s", m.Header.Get("Outbox-Event-Id"), m.Header.Get("Outbox-Request")) ||
			m.Header.Get("Outbox-Republished") != "replay" || m.Header.Get("Outbox-Position") != "" || m.Header.Get("Outbox-Source") == "" {
			t.Errorf("message %d: %v", i, m.Header)
		}
	}
	if got, want := o.requests(), []string{"replay done 0 of 10", "replay done 0 of 10", "replay done 10 of 10"}; !slices.Equal(got, want) {
		t.Errorf("requests: %q", got)
	}
	// The order goes on behind it.
	o.insert("b", 5)
	o.waitStored(15)
	o.expectEvents(firsts(o.stored()), o.rows()[10:])
}

func TestReplayWithoutAForwarderTakesTheSlotAndLeavesItAsItWas(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming()
	o.insert("a", 10)
	o.expectAll()
	o.waitConfirmed()
	p.Signal(syscall.SIGTERM)
	p.WaitExit(0, testenv.Deadline)
	o.insert("late", 3) // nobody has delivered these
	before := o.confirmed()
	rows := o.rows()

	o.expectReport(0, requestReport{Selected: 4}, "replay", "--dry-run", "--event-id", rows[0], "--event-id", rows[9], "--event-id", rows[1], "--event-id", rows[11])
	o.expectReport(3, requestReport{Selected: 4, Stored: 3, Refused: 1}, "replay", "--fresh-ids",
		"--event-id", rows[9], "--event-id", rows[0], "--event-id", rows[1], "--event-id", rows[11])
	o.expectAgain([]string{rows[0], rows[1], rows[9]}) // in the order of the table
	if after := o.confirmed(); after != before {
		t.Errorf("the slot moved from %s to %s", before, after)
	}
	r := o.run("replay", "--aggregate", "order/late")
	expectStop(t, r, "3 of 3 events were not stored")
	if !strings.Contains(r.Stderr(), "(not-delivered)") {
		t.Errorf("%s", r.Stderr())
	}
	// What waited is delivered as ever, each once and in its place.
	o.startStreaming()
	o.waitStored(16)
	o.expectEvents(firsts(o.stored()), rows)
}

func TestReplayOfAnEventThatTheTableDoesNotHoldIsRefusedBeforeAnythingIsPublished(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("a", 2)
	const unknown = "00000000-0000-4000-8000-000000000000"
	expectStop(t, o.run("replay", "--event-id", unknown, "--event-id", o.rows()[0]), "public.outbox", unknown)
	expectStop(t, o.run("replay", "--event-id", "e1"), "public.outbox", `invalid input syntax for type uuid: "e1"`)
	o.expectReport(0, requestReport{}, "replay", "--aggregate", "order/none")
	if n := len(o.requests()); n > 0 {
		t.Errorf("%d requests were made", n)
	}
	o.exec("SELECT pg_drop_replication_slot('" + o.slot + "')")
	expectStop(t, o.run("replay", "--since", "2h"), "slot "+o.slot)
}

// purge empties the stream.
func (o *outbox) purge() {
	o.tb.Helper()
	ctx := testenv.Context(o.tb, testenv.Deadline)
	s, err := testenv.JetStream(o.tb, o.natsURL).Stream(ctx, o.stream)
	if err != nil {
		o.tb.Fatal(err)
	}
	if err := s.Purge(ctx); err != nil {
		o.tb.Fatal(err)
	}
}
