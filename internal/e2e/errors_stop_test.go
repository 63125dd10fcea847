package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestStreamThatCeasesToTakeMessagesStopsTheRunningForwarder(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		code   string // of the server's refusal; empty where it is silent
		change func(*outbox, *testenv.NATSServer)
		says   []string
	}{
		{
			name: "sealed", code: "10109", says: []string{"10109", "sealed"},
			change: func(o *outbox, _ *testenv.NATSServer) {
				o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.Sealed = true })
			},
		},
		{
			name: "no acknowledgements", says: []string{"acknowledges nothing"},
			change: func(o *outbox, _ *testenv.NATSServer) {
				o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.NoAck, cfg.AllowBatchPublish = true, false })
			},
		},
		{
			name: "made anew as a counter", code: "10169", says: []string{"10169", "counter"},
			change: func(o *outbox, _ *testenv.NATSServer) {
				o.remakeStream(func(cfg *jetstream.StreamConfig) { cfg.AllowMsgCounter = true })
			},
		},
		{
			name: "led past it to another stream", code: "10060", says: []string{"10060", "another stream"},
			change: func(o *outbox, server *testenv.NATSServer) {
				o.createStream(testenv.JetStream(o.tb, o.natsURL), jetstream.StreamConfig{
					Name: o.stream + "_OTHER", Subjects: []string{"other.>"}, AllowBatchPublish: true,
				})
				server.Reload(fmt.Sprintf("mappings = { %q: %q }", o.stream+".>", "other.>"))
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSProcess(t)
			o := newOutbox(t, server.URL())
			p := o.startStreaming("--ack-timeout", "500ms")
			o.insert("before", 3)
			o.expectAll()
			o.waitConfirmed()
			refused := listenForRefusals(t, o.natsURL)
			test.change(o, server)
			o.insert("after", 3)
			expectStop(t, p, append([]string{o.stream}, test.says...)...)
			if test.code != "" {
				refused.wait(test.code)
			}
			o.expectUnconfirmed(3)
		})
	}
}

// A subject that is given to another stream is the matter of its events alone.
func TestSubjectGivenToAnotherStreamIsFoundWithTheEvent(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming()
	o.insert("before", 3)
	o.expectAll()
	refused := listenForRefusals(t, o.natsURL)
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{o.stream + ".order.>"} })
	o.createStream(testenv.JetStream(t, o.natsURL), jetstream.StreamConfig{
		Name: o.stream + "_OTHER", Subjects: []string{o.stream + ".invoice.>"}, AllowBatchPublish: true,
	})
	o.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type) VALUES ('` + goldenID + `', 'invoice', 'i', 'sent')`)
	failure := expectStop(t, p, goldenID, "subject-not-in-stream", o.stream+".invoice.sent")
	refused.wait("10060")
	expectSlotBefore(t, o, failure)
	o.expectEvents(o.ours(), o.eventIDs("before"))
}

// The forwarder knows the limits of the time when it read the stream.
func TestLimitThatIsLoweredBehindTheForwarderIsFoundWithTheEvent(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming()
	o.insert("before", 3)
	o.expectAll()
	refused := listenForRefusals(t, o.natsURL)
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 2048 })
	o.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES ('` + goldenID + `', 'order', 'a', 'placed', to_jsonb(repeat('x', 4096)))`)
	failure := expectStop(t, p, goldenID, "message-too-large")
	refused.wait("10054")
	expectSlotBefore(t, o, failure)
	o.expectEvents(o.ours(), o.eventIDs("before"))
}

// Such a stream acknowledges a message that is larger than itself, and drops it at once.
func TestMessageLargerThanAStreamThatDropsTheOldestIsNotGivenToIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxBytes, cfg.Discard = 4096, jetstream.DiscardOld })
	o.insert("before", 1)
	o.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES ('` + goldenID + `', 'order', 'a', 'placed', to_jsonb(repeat('x', 4096)))`)
	failure := expectStop(t, o.start(), goldenID, "message-too-large", "max_bytes")
	expectSlotBefore(t, o, failure)
	o.expectEvents(o.ours(), o.eventIDs("before"))
}

func TestStreamThatDropsPerSubjectDrawsAWarningAtTheStart(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming().Kill()
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgsPerSubject, cfg.Discard = 5, jetstream.DiscardOld })
	o.insert("a", 10)
	p := o.startStreaming()
	o.waitConfirmed()
	var warnings []string
	for _, line := range p.Lines() {
		if strings.Contains(line, `"level":"WARN"`) {
			warnings = append(warnings, line)
		}
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "max_msgs_per_subject") || !strings.Contains(warnings[0], o.stream) {
		t.Errorf("warnings: %v", warnings)
	}
}
