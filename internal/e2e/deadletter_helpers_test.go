package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

const letterTable = "public.outbox_dead_letter"

// insertEvent commits one event and returns its id.
func (o *outbox) insertEvent(aggregate, payload string, topic ...string) string {
	o.tb.Helper()
	var subject *string
	if len(topic) > 0 {
		subject = &topic[0]
	}
	return o.value("INSERT INTO "+o.table+` (aggregate_type, aggregate_id, event_type, topic, payload)
		VALUES ('order', $1, 'placed', $2, $3::text::jsonb) RETURNING event_id::text`, aggregate, subject, payload)
}

// letters returns the dead letters as "event id reason code" in the order of storing.
func (o *outbox) letters() []string {
	o.tb.Helper()
	return testenv.Query(o.tb, o.databaseURL, "SELECT event_id || ' ' || reason_code FROM "+letterTable+" ORDER BY id")
}

func (o *outbox) waitLetters(want ...string) {
	o.tb.Helper()
	testenv.Eventually(o.tb, 2*testenv.Deadline, func() error {
		if got := o.letters(); !slices.Equal(got, want) {
			return fmt.Errorf("the dead letters are %q, want %q", got, want)
		}
		return nil
	})
}

// expectStored checks that the stream holds just these events, in this order.
func (o *outbox) expectStored(ids ...string) {
	o.tb.Helper()
	o.waitStored(len(ids))
	o.expectEvents(o.ours(), ids)
}

// stop ends a forwarder as a supervisor does.
func stop(tb testing.TB, p *testenv.Program) {
	tb.Helper()
	p.Signal(syscall.SIGTERM)
	p.WaitExit(0, 2*testenv.Deadline)
}

// text is a JSON string of n letters.
func text(n int) string { return `"` + strings.Repeat("x", n) + `"` }
