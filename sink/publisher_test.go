package sink_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const source = "7000/outbox"

// message makes the n-th message of a run.
func message(tb testing.TB, enc *sink.Encoder, n int) *sink.Message {
	tb.Helper()
	var v decode.Values
	v.Fields[decode.FieldEventID] = fmt.Appendf(nil, "%08d-0000-4000-8000-000000000000", n)
	v.Kinds[decode.FieldEventID] = decode.KindUUID
	v.Fields[decode.FieldAggregateType], v.Fields[decode.FieldEventType] = []byte("order"), []byte("placed")
	v.Fields[decode.FieldPayload], v.Kinds[decode.FieldPayload] = []byte(`{"n":1}`), decode.KindJSON
	ev := decode.NewEvent(decode.Position{Timeline: 1, CommitLSN: 100, Ordinal: uint64(n)}, time.Now(), decode.TableName{}, v)
	m, err := enc.Encode(ev)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func newEncoder(tb testing.TB) *sink.Encoder {
	tb.Helper()
	template, err := sink.ParseTemplate("ours.{aggregate_type}.{event_type}", decode.DefaultMapping())
	if err != nil {
		tb.Fatal(err)
	}
	return sink.NewEncoder(sink.EncoderConfig{Template: template, Format: sink.FormatEnvelope, Headers: sink.HeadersMinimal, Source: source, SourceName: "outbox"})
}

func makeStream(tb testing.TB, natsURL string, change func(*jetstream.StreamConfig)) string {
	tb.Helper()
	cfg := jetstream.StreamConfig{Name: testenv.UniqueName("S"), Subjects: []string{"ours.>", "others.>"}, AllowBatchPublish: true}
	if change != nil {
		change(&cfg)
	}
	if _, err := testenv.JetStream(tb, natsURL).CreateStream(testenv.Context(tb, testenv.Deadline), cfg); err != nil {
		tb.Fatal(err)
	}
	return cfg.Name
}

func newPublisher(tb testing.TB, natsURL, stream string) *sink.Publisher {
	tb.Helper()
	p := sink.NewPublisher(sink.PublisherConfig{
		Client: sink.ClientConfig{URL: natsURL, Name: "test"}, Stream: stream, Subject: "ours.{aggregate_type}.{event_type}",
		InFlightMax: 4096, AckTimeout: 2 * time.Second, Log: slog.New(slog.DiscardHandler),
	})
	tb.Cleanup(p.Close)
	p.Begin(sink.Origin{SystemID: "7000", Name: "outbox", Timeline: 1, WALEndLSN: 1000})
	return p
}

// publishAll hands over n messages and returns once all are settled. between is
// called now and then with the number of settled messages.
func publishAll(tb testing.TB, p *sink.Publisher, n int, between func(settled int)) {
	tb.Helper()
	enc := newEncoder(tb)
	ctx := testenv.Context(tb, 4*testenv.Deadline)
	added, settled := 0, 0
	next := message(tb, enc, 0)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for settled < n {
		now := time.Now()
		for added < n && p.Room(now) {
			taken, err := p.Add(ctx, next, now)
			if err != nil {
				tb.Fatal(err)
			}
			if !taken {
				break
			}
			if added++; added < n {
				next = message(tb, enc, added)
			}
		}
		if err := p.Step(ctx, now, added < n); err != nil {
			tb.Fatal(err)
		}
		if got := len(p.Settled()); got > 0 {
			settled += got
			if between != nil {
				between(settled)
			}
		}
		wait := 100 * time.Millisecond
		if at := p.Deadline(now); !at.IsZero() {
			wait = min(wait, max(0, at.Sub(now)))
		}
		timer.Reset(wait)
		select {
		case <-p.Wake():
		case <-timer.C:
		case <-ctx.Done():
			tb.Fatalf("%d of %d settled, condition: %v, stats %+v", settled, n, p.Condition(), p.Stats())
		}
	}
}

// expectInOrder checks that the stream holds messages 0 to n-1 of ours, each once, in order.
func expectInOrder(tb testing.TB, natsURL, stream string, n int) {
	tb.Helper()
	var got, want []string
	for _, m := range testenv.DumpStream(tb, natsURL, stream) {
		if m.Header.Get("Outbox-Source") == source {
			got = append(got, m.Header.Get("Nats-Msg-Id"))
		}
	}
	for i := range n {
		want = append(want, fmt.Sprintf("%08d-0000-4000-8000-000000000000", i))
	}
	if !slices.Equal(got, want) {
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				tb.Fatalf("stream holds %d of our messages, want %d; the first difference is at %d: %s", len(got), len(want), i, got[i])
			}
		}
		tb.Fatalf("stream holds %d of our messages, want %d", len(got), len(want))
	}
}

// writeForeign publishes into the stream until the returned function is called, as
// fast as the server takes it or one message every pace; stop returns how many were sent.
func writeForeign(tb testing.TB, natsURL string, pace time.Duration) (stop func() int) {
	tb.Helper()
	nc := testenv.ConnectNATS(tb, natsURL)
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(256))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	sent := 0
	var group sync.WaitGroup
	tick := time.NewTicker(max(pace, time.Nanosecond))
	group.Go(func() {
		defer tick.Stop()
		for ctx.Err() == nil {
			if pace > 0 {
				<-tick.C
			}
			if _, err := js.PublishMsgAsync(nats.NewMsg("others.x")); err == nil {
				sent++
			}
		}
	})
	end := sync.OnceValue(func() int {
		cancel()
		group.Wait()
		return sent
	})
	tb.Cleanup(func() { end() })
	return end
}

func TestAForeignWriterAtFullLoadCostsNeitherEventsNorOrder(t *testing.T) {
	natsURL := testenv.NATS(t).URL()
	stream := makeStream(t, natsURL, nil)
	stop := writeForeign(t, natsURL, 0)
	p := newPublisher(t, natsURL, stream)
	publishAll(t, p, 20000, nil)
	if sent := stop(); sent < 1000 {
		t.Errorf("the foreign writer sent only %d messages", sent)
	}
	t.Logf("%+v", p.Stats())
	expectInOrder(t, natsURL, stream, 20000)
}

func TestLoneEventsArriveBesideAForeignWriterAtFullLoad(t *testing.T) {
	natsURL := testenv.NATS(t).URL()
	stream := makeStream(t, natsURL, nil)
	stop := writeForeign(t, natsURL, 0)
	p := newPublisher(t, natsURL, stream)
	enc := newEncoder(t)
	ctx := testenv.Context(t, 4*testenv.Deadline)
	for n := range 100 {
		next, taken := message(t, enc, n), false
		for settled := 0; settled == 0; settled = len(p.Settled()) {
			if !taken && p.Room(time.Now()) {
				var err error
				if taken, err = p.Add(ctx, next, time.Now()); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Step(ctx, time.Now(), false); err != nil {
				t.Fatal(err)
			}
			if ctx.Err() != nil {
				t.Fatalf("event %d is not settled: %v, stats %+v", n, p.Condition(), p.Stats())
			}
		}
	}
	stop()
	t.Logf("%+v", p.Stats())
	expectInOrder(t, natsURL, stream, 100)
}

func TestAStreamWithoutBatchesLosesNothingToAForeignWriterAndCountsTheDisorder(t *testing.T) {
	for name, pace := range map[string]time.Duration{"at full load": 0, "now and then": 3 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			natsURL := testenv.NATS(t).URL()
			stream := makeStream(t, natsURL, func(c *jetstream.StreamConfig) { c.AllowBatchPublish = false })
			stop := writeForeign(t, natsURL, pace)
			p := newPublisher(t, natsURL, stream)
			const n = 20000
			publishAll(t, p, n, nil)
			stop()
			ids, inversions := disorder(t, natsURL, stream)
			t.Logf("%d behind later ones, stats %+v", inversions, p.Stats())
			slices.Sort(ids)
			if distinct := len(slices.Compact(slices.Clone(ids))); len(ids) != n || distinct != n {
				t.Errorf("stream holds %d of our messages, %d distinct, want %d", len(ids), distinct, n)
			}
			if counted := p.Stats().OrderViolations; counted != inversions {
				t.Errorf("%d order violations counted, the stream shows %d", counted, inversions)
			}
		})
	}
}

// disorder returns the ids of our messages and how many stand behind a later one.
func disorder(tb testing.TB, natsURL, stream string) (ids []string, inversions uint64) {
	tb.Helper()
	latest := ""
	for _, m := range testenv.DumpStream(tb, natsURL, stream) {
		if m.Header.Get("Outbox-Source") != source {
			continue
		}
		id := m.Header.Get("Nats-Msg-Id")
		ids = append(ids, id)
		if id < latest {
			inversions++
		}
		latest = max(latest, id)
	}
	return ids, inversions
}

func TestAStreamWithoutBatchesKeepsTheOrderWhenTheConnectionBreaks(t *testing.T) {
	natsURL := testenv.NATS(t).URL()
	stream := makeStream(t, natsURL, func(c *jetstream.StreamConfig) { c.AllowBatchPublish = false })
	brokenConnections(t, natsURL, stream)
}

func TestBatchesKeepTheOrderWhenTheConnectionBreaks(t *testing.T) {
	natsURL := testenv.NATS(t).URL()
	brokenConnections(t, natsURL, makeStream(t, natsURL, nil))
}

// brokenConnections publishes while the connection is cut again and again.
func brokenConnections(t *testing.T, natsURL, stream string) {
	t.Helper()
	proxy := testenv.NewProxy(t, testenv.AddressOf(t, natsURL))
	p := newPublisher(t, proxy.URL(natsURL), stream)
	cutAt := 1000
	publishAll(t, p, 8000, func(settled int) {
		if settled >= cutAt {
			cutAt += 1500
			proxy.Cut()
			proxy.Heal()
		}
	})
	if p.Stats().Reconnects < 3 {
		t.Errorf("only %d reconnects: the test cut nothing", p.Stats().Reconnects)
	}
	t.Logf("%+v", p.Stats())
	expectInOrder(t, natsURL, stream, 8000)
}

func TestR3StepDownsCostNeitherEventsNorOrder(t *testing.T) {
	group := testenv.NATSCluster(t, 3)
	natsURL := group.URL()
	stream := makeStream(t, natsURL, func(c *jetstream.StreamConfig) { c.Replicas = 3 })
	nc := testenv.ConnectNATS(t, natsURL)
	p := newPublisher(t, natsURL, stream)
	stepAt := 2000
	publishAll(t, p, 15000, func(settled int) {
		if settled >= stepAt {
			stepAt += 4000
			if _, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, 5*time.Second); err != nil {
				t.Logf("step down: %v", err)
			}
		}
	})
	t.Logf("%+v", p.Stats())
	expectInOrder(t, natsURL, stream, 15000)
}

// The connection is cut once between a request and its answer, while the publisher
// reads in the stream what it holds.
func TestReadingTheStreamOutlivesALostAnswer(t *testing.T) {
	natsURL := testenv.NATS(t).URL()
	stream := makeStream(t, natsURL, nil)
	publishAll(t, newPublisher(t, natsURL, stream), 300, nil)
	proxy := testenv.NewProxy(t, testenv.AddressOf(t, natsURL))
	p := newPublisher(t, proxy.URL(natsURL), stream)
	ctx := testenv.Context(t, 2*testenv.Deadline)
	testenv.Eventually(t, testenv.Deadline, func() error {
		if err := p.Step(ctx, time.Now(), false); err != nil || !p.Room(time.Now()) {
			return fmt.Errorf("no room: %w, condition %w", err, p.Condition())
		}
		return nil
	})
	proxy.After(testenv.ToClient, 100, func() { proxy.Cut(); proxy.Heal() })
	next, settled := message(t, newEncoder(t), 0), 0
	testenv.Eventually(t, testenv.Deadline, func() error {
		if settled == 0 && p.Room(time.Now()) {
			if _, err := p.Add(ctx, next, time.Now()); err != nil {
				return err
			}
		}
		if err := p.Step(ctx, time.Now(), false); err != nil {
			return err
		}
		if settled += len(p.Settled()); settled == 0 {
			return fmt.Errorf("the event is not settled, condition %w", p.Condition())
		}
		return nil
	})
	expectInOrder(t, natsURL, stream, 300)
}
