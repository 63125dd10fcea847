package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestStreamMissingAtTheStartIsWaitedForWithAHint(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	stream := o.deleteStream()
	o.insert("early", 10)
	p, health := o.startHTTP("--status-interval", "100ms")
	line := logLine(t, p.WaitLine(`"msg":"backing off"`, testenv.Deadline))
	if reason := fmt.Sprint(line["reason"]); !strings.Contains(reason, "err_code=10059") || !strings.Contains(reason, o.stream) || !strings.Contains(reason, "outbox-cdc stream create") {
		t.Errorf("reason %q names neither the stream nor the command that makes it", reason)
	}
	if code, body := health.get("/readyz"); code != 503 || !strings.Contains(body, o.stream) {
		t.Errorf("GET /readyz: %d %s, want 503 and the stream", code, body)
	}
	o.waitStatusMessages(3)
	o.createStream(testenv.JetStream(t, o.natsURL), stream)
	o.expectAll()
	o.waitConfirmed()
	health.waitReady()
	expectFewLines(t, p)
}

func TestStreamThatCannotBePublishedToIsAnExitWithAHint(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	for name, change := range map[string]func(o *outbox){
		"acknowledges nothing": func(o *outbox) {
			o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.NoAck, cfg.AllowBatchPublish = true, false })
		},
		"is sealed": func(o *outbox) { o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.Sealed = true }) },
		"is a mirror": func(o *outbox) {
			js := testenv.JetStream(t, o.natsURL)
			origin := o.deleteStream()
			origin.Name += "_ORIGIN"
			o.createStream(js, origin)
			o.createStream(js, jetstream.StreamConfig{Name: o.stream, Mirror: &jetstream.StreamSource{Name: origin.Name}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, server.URL())
			change(o)
			stoodAt := o.confirmedLSN()
			o.insert("a", 3)
			expectStop(t, o.start(), o.stream, name)
			if at := o.confirmedLSN(); at > stoodAt {
				// With nothing handed over the position may follow the WAL up to the first event.
				p := o.run("status", "--json")
				p.WaitExit(0, testenv.Deadline)
				if !strings.Contains(p.Stdout(), `"oldest_undelivered_seconds": `) || strings.Contains(p.Stdout(), `"oldest_undelivered_seconds": null`) {
					t.Errorf("slot went from %s to %s and nothing is undelivered: %s", stoodAt, at, p.Stdout())
				}
			}
		})
	}
}

func TestMissingNATSPermissionAtTheStartIsAnExitWithAHint(t *testing.T) {
	t.Parallel()
	for name, permissions := range map[string]string{
		"to publish":         `publish: { deny: ["%s.>"] }`,
		"to subscribe":       `subscribe: { deny: ["_INBOX.>"] }`,
		"to read the stream": `publish: { allow: ["%s.>"] }`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSProcess(t, natsUsers("{user: fwd, password: fwd}"))
			o := newOutbox(t, testenv.WithUser(t, server.URL(), "admin", "admin"))
			if strings.Contains(permissions, "%s") {
				permissions = fmt.Sprintf(permissions, o.stream)
			}
			server.Reload(natsUsers("{user: fwd, password: fwd, permissions: {" + permissions + "}}"))
			o.forwarderNATSURL = testenv.WithUser(t, server.URL(), "fwd", "fwd")
			o.insert("a", 3)
			expectStop(t, o.start("--ack-timeout", "1s"), "ermission")
			if stored := o.stored(); len(stored) > 0 && name != "to subscribe" {
				t.Errorf("stream holds %d messages", len(stored))
			}
		})
	}
}

func TestNATSPermissionLostWhileRunningIsWaitedOut(t *testing.T) {
	t.Parallel()
	server := testenv.NATSProcess(t, natsUsers("{user: fwd, password: fwd}"))
	o := newOutbox(t, testenv.WithUser(t, server.URL(), "admin", "admin"))
	o.forwarderNATSURL = testenv.WithUser(t, server.URL(), "fwd", "fwd")
	p, health := o.startHTTPStreaming("--ack-timeout", "1s")
	o.insert("before", 5)
	o.expectAll()
	server.Reload(natsUsers(fmt.Sprintf("{user: fwd, password: fwd, permissions: {publish: {deny: [%q]}}}", o.stream+".>")))
	o.insert("during", 5)
	health.waitRedFor("ermission")
	server.Reload(natsUsers("{user: fwd, password: fwd}"))
	o.expectAll()
	health.waitReady()
	expectFewLines(t, p)
}
