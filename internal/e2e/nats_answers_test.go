package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// modes are the two ways in which the forwarder publishes: fast batches, and plain
// publishes where the stream does not offer them.
var modes = []struct {
	name      string
	noBatches bool
}{{name: "fast batches"}, {name: "plain publishes", noBatches: true}}

func TestNoAnswerButTheStreamsCountsAsAcknowledged(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	tests := []struct {
		name      string
		subscribe bool
		answer    string
	}{
		{name: "nobody listens"},
		{name: "silent subscriber", subscribe: true},
		{name: "subscriber that answers ok", subscribe: true, answer: "ok"},
		{name: "subscriber that answers as another stream", subscribe: true, answer: `{"stream":"X","seq":7}`},
	}
	for _, mode := range modes {
		for _, test := range tests {
			t.Run(test.name+", "+mode.name, func(t *testing.T) {
				t.Parallel()
				o := newOutbox(t, server.URL())
				if mode.noBatches {
					o.withoutBatches()
				}
				p, health := o.startHTTPStreaming("--ack-timeout", "500ms", "--status-interval", "100ms")
				o.insert("before", 5)
				o.expectAll()
				o.waitConfirmed()
				var heard atomic.Int64
				if test.subscribe {
					answerAll(t, o, &heard, func(int64) *nats.Msg {
						if test.answer == "" {
							return nil
						}
						return &nats.Msg{Data: []byte(test.answer)}
					})
				}
				stream := o.deleteStream()
				o.insertTx("during", 20)
				health.waitRed()
				if test.subscribe {
					testenv.Eventually(t, testenv.Deadline, func() error {
						if heard.Load() == 0 {
							return fmt.Errorf("the subscriber has heard of no event")
						}
						return nil
					})
				}
				told := o.waitStatusMessages(5)
				if published, _ := health.metric("outbox_cdc_events_published_total"); published != 5 {
					t.Errorf("%v events count as published, want 5", published)
				}
				o.createStream(testenv.JetStream(t, server.URL()), stream)
				o.insert("after", 5)
				o.waitStored(25)
				o.expectEvents(o.ours(), o.rows()[5:])
				expectNotPast(t, told, commitLSN(t, o.ours()[0]))
				o.waitConfirmed()
				health.waitReady()
				expectFewLines(t, p)
			})
		}
	}
}

// answerAll subscribes to all subjects of the outbox and answers each message with
// what answer returns for its number, from 1; nil stays silent.
func answerAll(tb testing.TB, o *outbox, heard *atomic.Int64, answer func(n int64) *nats.Msg) *nats.Subscription {
	tb.Helper()
	return answerOn(tb, o, o.stream+".>", heard, answer)
}

func answerOn(tb testing.TB, o *outbox, subject string, heard *atomic.Int64, answer func(n int64) *nats.Msg) *nats.Subscription {
	tb.Helper()
	nc := testenv.ConnectNATS(tb, o.natsURL)
	sub, err := nc.Subscribe(subject, func(m *nats.Msg) {
		reply := answer(heard.Add(1))
		if reply == nil || m.Reply == "" {
			return
		}
		reply.Subject = m.Reply
		_ = nc.PublishMsg(reply) // a connection that is gone shows in the test itself
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return sub
}

func TestRefusalsThatPassAreNeitherAcknowledgementsNorTheEnd(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSProcess(t)
			o := newOutbox(t, server.URL())
			each := int64(25) // answers with one code: a round of attempts or more
			if mode.noBatches {
				o.withoutBatches()
				each = 1 // a round begins with one message
			}
			p, health := o.startHTTPStreaming("--ack-timeout", "500ms", "--status-interval", "100ms")
			o.insert("before", 5)
			o.expectAll()
			o.waitConfirmed()

			// From here on the server leads the events past the stream, to the test.
			lead := func(to string) { server.Reload(fmt.Sprintf("mappings = { %q: %q }", o.stream+".>", to)) }
			lead("gate.>")
			refused := map[int]int{}
			var mu sync.Mutex
			codes := []int{10158, 10167, 10008, 10077}
			var heard atomic.Int64
			sub := answerOn(t, o, "gate.>", &heard, func(n int64) *nats.Msg {
				mu.Lock()
				defer mu.Unlock()
				code := codes[int(n/each)%len(codes)]
				refused[code]++
				return &nats.Msg{Data: fmt.Appendf(nil, `{"error":{"code":503,"err_code":%d,"description":"played"},"stream":%q,"seq":0}`, code, o.stream)}
			})
			o.insert("refused", 20)
			testenv.Eventually(t, 2*testenv.Deadline, func() error {
				mu.Lock()
				defer mu.Unlock()
				if len(refused) < len(codes) {
					return fmt.Errorf("refused so far by code: %v", refused)
				}
				return nil
			})
			health.waitRed()
			// Nobody listens at all: no responders.
			if err := sub.Unsubscribe(); err != nil {
				t.Fatal(err)
			}
			health.waitRedFor("no stream answers")
			told := o.waitStatusMessages(3)
			if published, _ := health.metric("outbox_cdc_events_published_total"); published != 5 {
				t.Errorf("%v events count as published, want 5", published)
			}

			lead(o.stream + ".>")
			o.insert("after", 20)
			o.expectAll()
			expectNotPast(t, told, commitLSN(t, o.ours()[5]))
			o.waitConfirmed()
			health.waitReady()
			expectFewLines(t, p)
		})
	}
}

func TestRefusedMessagesAreNotSentAgainAndAgain(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSProcess(t)
			o := newOutbox(t, server.URL())
			if mode.noBatches {
				o.withoutBatches()
			}
			_, health := o.startHTTPStreaming("--status-interval", "200ms")
			o.insert("before", 5)
			o.expectAll()
			server.Reload(fmt.Sprintf("mappings = { %q: %q }", o.stream+".>", "gate.>"))
			var heard atomic.Int64
			answerOn(t, o, "gate.>", &heard, func(int64) *nats.Msg {
				return &nats.Msg{Data: []byte(`{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"}}`)}
			})
			o.insertTx("refused", 10)
			health.waitRedFor("10158")
			before := heard.Load()
			o.waitStatusMessages(5)
			if sent := heard.Load() - before; sent > 200 {
				t.Errorf("%d messages were sent between five status messages, of 10 events", sent)
			}
		})
	}
}

func TestFullStreamIsWaitedForAndStaysInOrder(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, testenv.NATS(t).URL())
			o.remakeStream(func(cfg *jetstream.StreamConfig) {
				cfg.MaxMsgs, cfg.Discard, cfg.AllowBatchPublish = 10, jetstream.DiscardNew, !mode.noBatches
			})
			o.insert("a", 50)
			o.insertTx("b", 50)
			_, health := o.startHTTP()
			o.waitStored(10)
			health.waitRedFor("full")
			js := testenv.JetStream(t, o.natsURL)
			stream, err := js.Stream(testenv.Context(t, testenv.Deadline), o.stream)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for free := 1; len(got) < 100; free = free%7 + 1 {
				o.waitStored(min(10, 100-len(got)))
				for range min(free, 100-len(got)) {
					ctx := testenv.Context(t, testenv.Deadline)
					next := uint64(len(got)) + 1
					m, err := stream.GetMsg(ctx, next)
					if err != nil {
						t.Fatalf("message %d: %v", next, err)
					}
					got = append(got, m.Header.Get(nats.MsgIdHdr))
					if err := stream.DeleteMsg(ctx, next); err != nil {
						t.Fatal(err)
					}
				}
			}
			if want := o.rows(); !slices.Equal(got, want) {
				t.Fatalf("stored %s, want %s", summary(got), summary(want))
			}
			o.waitConfirmed()
			health.waitReady()
		})
	}
}

func TestWithHaltAMessageTooLargeStopsTheForwarderUntilTheLimitIsRaised(t *testing.T) {
	t.Parallel()
	const maxPayload = 64 << 10
	raisePayload := func(server *testenv.NATSServer) func(o *outbox) {
		return func(*outbox) {
			server.Reload("max_payload: 128KB")
			server.Kill()
			server.Start()
		}
	}
	raiseMsgSize := func(o *outbox) {
		o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 4096 })
	}
	for _, test := range []struct {
		name       string
		maxMsgSize int32
		bytes      int // of the body; --format payload
	}{
		{name: "max_payload less one", bytes: maxPayload - 1},
		{name: "max_payload", bytes: maxPayload},
		{name: "max_payload and one", bytes: maxPayload + 1},
		{name: "max_msg_size", maxMsgSize: 1024, bytes: 1024},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSProcess(t, fmt.Sprintf("max_payload: %d", maxPayload))
			o := newOutbox(t, server.URL())
			raise := raisePayload(server)
			if test.maxMsgSize > 0 {
				o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = test.maxMsgSize })
				raise = raiseMsgSize
			}
			o.insert("a", 5)
			o.exec(fmt.Sprintf(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
				VALUES ('%s', 'order', 'a', 6, 'placed', to_jsonb(repeat('x', %d)))`, goldenID, test.bytes-2))
			o.insert("b", 5)
			args := []string{"--format", "payload", "--on-poison", "halt"}

			failure := expectStop(t, o.start(args...), goldenID, "position 1:", "message-too-large")
			expectSlotBefore(t, o, failure)
			if strings.Contains(failure, "xxxx") {
				t.Errorf("the failure repeats the payload")
			}
			before := o.ours()
			o.expectEvents(before, o.rows()[:5])
			if at := o.confirmedLSN(); at <= commitLSN(t, before[4]) {
				t.Errorf("slot stands at %s: the event before the large one, committed at %s, is not confirmed", at, commitLSN(t, before[4]))
			}
			// Nothing has been mended: the same again, and nothing else is stored.
			again := expectStop(t, o.start(args...), goldenID, "message-too-large")
			if again != failure {
				t.Errorf("second failure %q, want %q", again, failure)
			}
			o.expectEvents(o.ours(), o.rows()[:5])

			raise(o)
			o.startStreaming(args...)
			o.expectAll()
			o.waitConfirmed()
		})
	}
}
