package e2e

import (
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// What is published is stored, and the answers are not let through. The duplicate window is
// over long before the next attempt, so that each one would be stored again.
func TestPublishesWhoseAcknowledgementsCannotComeDoNotFillTheStream(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		noBatches bool
		restart   bool
	}{{name: "fast batches, by a reload"}, {name: "plain publishes, by a restart", noBatches: true, restart: true}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			allowed := natsUsers("{user: fwd, password: fwd}")
			server := testenv.NATSProcess(t, allowed)
			o := newOutbox(t, testenv.WithUser(t, server.URL(), "admin", "admin"))
			if test.noBatches {
				o.withoutBatches()
			}
			o.shortenDuplicateWindow(shortestWindow)
			o.forwarderNATSURL = testenv.WithUser(t, server.URL(), "fwd", "fwd")
			p, health := o.startHTTPStreaming("--ack-timeout", "300ms", "--status-interval", "100ms")
			o.insert("before", 5)
			o.expectAll()
			o.waitConfirmed()

			server.Reload(natsUsers(`{user: fwd, password: fwd, permissions: { subscribe: { deny: ["_INBOX.>"] } }}`))
			if test.restart {
				server.Kill()
				server.Start()
			}
			o.insert("during", 20)
			health.waitRedFor("ermission")
			if !test.restart { // else the first thing to be said is that the connection is lost
				p.WaitLine(`"msg":"backing off".*ermission.*_INBOX`, testenv.Deadline)
			}
			told := o.waitStatusMessages(20) // many times the ack timeout and the window
			if stored := len(o.ours()); stored > len(o.rows()) {
				t.Errorf("the stream holds %d messages of %d events", stored, len(o.rows()))
			}

			server.Reload(allowed)
			o.insert("after", 5)
			o.expectAll()
			expectNotPast(t, told, commitLSN(t, o.ours()[5]))
			o.waitConfirmed()
			health.waitReady()
			expectFewLines(t, p)
		})
	}
}

// The requests to JetStream are answered, the publishes are not: what is stored is then
// learnt from the stream alone.
func TestEventsWhoseAcknowledgementsAloneCannotComeAreFoundInTheStream(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSProcess(t, natsUsers("{user: fwd, password: fwd}"))
			o := newOutbox(t, testenv.WithUser(t, server.URL(), "admin", "admin"))
			if mode.noBatches {
				o.withoutBatches()
			}
			o.shortenDuplicateWindow(shortestWindow)
			o.forwarderNATSURL = testenv.WithUser(t, server.URL(), "fwd", "fwd")
			p := o.startStreaming("--ack-timeout", "300ms")
			o.insert("before", 5)
			o.expectAll()
			server.Reload(natsUsers(`{user: fwd, password: fwd, permissions: { subscribe: { deny: ["_INBOX.*.*.*.>"] } }}`))
			o.insert("during", 20)
			p.WaitLine(`"msg":"backing off".*did not answer`, testenv.Deadline)
			o.waitConfirmed()
			o.expectAll()
		})
	}
}
