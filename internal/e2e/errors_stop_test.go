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
			if held := o.unconfirmed(); held != 3 {
				t.Errorf("the slot holds %d events that are not confirmed, want 3", held)
			}
		})
	}
}

// What the stream does not take any more, or never took, is the matter of its events alone.
func TestLimitOfTheStreamThatTheForwarderDoesNotKnowIsFoundWithTheEvent(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		change  func(*outbox) // behind the forwarder that streams
		topic   string        // of the bad event, below the stream's own
		code    string        // of the server
		becomes string
	}{
		{
			name: "a subject is given to another stream", topic: "invoice", code: "10060", becomes: "subject-not-in-stream",
			change: func(o *outbox) {
				o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.Subjects = []string{o.stream + ".order.>"} })
				o.createStream(testenv.JetStream(o.tb, o.natsURL), jetstream.StreamConfig{
					Name: o.stream + "_OTHER", Subjects: []string{o.stream + ".invoice.>"}, AllowBatchPublish: true,
				})
			},
		},
		{
			name: "max_msg_size is lowered", topic: "order", code: "10054", becomes: "message-too-large",
			change: func(o *outbox) {
				o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 2048 })
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, testenv.NATS(t).URL())
			p := o.startStreaming()
			before := o.insertEvent("a", "1")
			o.waitStored(1)
			o.waitConfirmed()
			refused := listenForRefusals(t, o.natsURL)
			test.change(o)
			bad := o.insertEvent("a", text(4096), o.stream+"."+test.topic+".placed")
			after := o.insertEvent("a", "3")
			o.expectStored(before, after)
			refused.wait(test.code)
			o.waitLetters(bad + " " + test.becomes)
			o.waitConfirmed()
			stop(t, p)
		})
	}
}

// Such a stream acknowledges a message that is larger than itself, and drops it at once.
func TestMessageLargerThanAStreamThatDropsTheOldestIsNotGivenToIt(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxBytes, cfg.Discard = 4096, jetstream.DiscardOld })
	o.startStreaming()
	before, bad, after := o.insertEvent("a", "1"), o.insertEvent("a", text(4096)), o.insertEvent("a", "3")
	o.expectStored(before, after)
	o.waitLetters(bad + " message-too-large")
	o.waitConfirmed()
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
