package sink_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// again makes the n-th message of a run once more, for a request.
func again(tb testing.TB, enc *sink.Encoder, n int, request int64, fresh bool) *sink.Message {
	tb.Helper()
	var v decode.Values
	v.Fields[decode.FieldEventID] = fmt.Appendf(nil, "%08d-0000-4000-8000-000000000000", n)
	v.Kinds[decode.FieldEventID] = decode.KindUUID
	v.Fields[decode.FieldAggregateType], v.Fields[decode.FieldEventType] = []byte("order"), []byte("placed")
	v.Fields[decode.FieldPayload], v.Kinds[decode.FieldPayload] = []byte(`{"n":1}`), decode.KindJSON
	m, err := enc.EncodeAgain(decode.NewEvent(decode.Position{}, time.Time{}, decode.TableName{}, v),
		sink.Again{Kind: "replay", Request: request, FreshID: fresh})
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// quiet lets a publisher work until a message may be republished.
func quiet(tb testing.TB, p *sink.Publisher) {
	tb.Helper()
	testenv.Eventually(tb, testenv.Deadline, func() error {
		if err := p.Step(testenv.Context(tb, testenv.Deadline), time.Now(), false); err != nil {
			tb.Fatal(err)
		}
		p.Settled()
		if !p.Quiet() {
			return fmt.Errorf("the publisher is not quiet: %w", p.Condition())
		}
		return nil
	})
}

func republish(tb testing.TB, p *sink.Publisher, m *sink.Message) sink.Acknowledged {
	tb.Helper()
	ack, err := p.Republish(testenv.Context(tb, testenv.Deadline), m)
	if err != nil {
		tb.Fatal(err)
	}
	return ack
}

// countingBroker counts the requests for stored messages.
type countingBroker struct {
	sink.Broker
	asked *int
}

func (b countingBroker) Message(ctx context.Context, stream string, query sink.MessageQuery) (*sink.Fetched, error) {
	*b.asked++
	return b.Broker.Message(ctx, stream, query)
}

func (b countingBroker) Chunk(ctx context.Context, stream string, first, last uint64) ([]*sink.Fetched, error) {
	*b.asked += int(last - first + 1)
	return b.Broker.Chunk(ctx, stream, first, last)
}

func TestTheStreamTellsStoredAndSwallowedApartForWhatIsPublishedAgain(t *testing.T) {
	url := testenv.NATS(t).URL()
	stream := makeStream(t, url, nil)
	p, enc := newPublisher(t, url, stream), newEncoder(t)
	publishAll(t, p, 3, nil)
	quiet(t, p)
	if ack := republish(t, p, again(t, enc, 1, 9, false)); !ack.Duplicate || ack.StreamSeq != 2 {
		t.Errorf("got %+v, want a duplicate of message 2", ack)
	}
	if ack := republish(t, p, again(t, enc, 1, 9, true)); ack.Duplicate || ack.StreamSeq != 4 {
		t.Errorf("got %+v, want message 4", ack)
	}
	if ack := republish(t, p, again(t, enc, 1, 9, true)); !ack.Duplicate || ack.StreamSeq != 4 {
		t.Errorf("got %+v: the fresh id of a request is not the same each time", ack)
	}
	m := testenv.DumpStream(t, url, stream)[3]
	for name, want := range map[string]string{
		"Nats-Msg-Id": "00000001-0000-4000-8000-000000000000.9", "Outbox-Event-Id": "00000001-0000-4000-8000-000000000000",
		"Outbox-Republished": "replay", "Outbox-Request": "9", "Outbox-Last-Sequence": "3", "Outbox-Position": "", "Outbox-Source": source,
	} {
		if got := m.Header.Get(name); got != want {
			t.Errorf("header %s is %q, want %q", name, got, want)
		}
	}
	if is, err := p.IsOfRequest(t.Context(), 4, 9); err != nil || !is {
		t.Errorf("message 4 is not of request 9: %v, %v", is, err)
	}
	if is, err := p.IsOfRequest(t.Context(), 3, 9); err != nil || is {
		t.Errorf("message 3 is of request 9: %v, %v", is, err)
	}
	// First deliveries go on behind it, in a batch with expected sequences.
	if st := p.Stats(); st.Resyncs != 0 {
		t.Errorf("%d resyncs", st.Resyncs)
	}
	publishFrom(t, p, 3, 50)
	if st := p.Stats(); st.Resyncs != 0 || !st.OwnStream || !st.Batched {
		t.Errorf("stats %+v", st)
	}
}

// publishFrom hands over messages from number first on and returns once all are settled.
func publishFrom(tb testing.TB, p *sink.Publisher, first, n int) {
	tb.Helper()
	enc := newEncoder(tb)
	ctx := testenv.Context(tb, testenv.Deadline)
	added := 0
	testenv.Eventually(tb, testenv.Deadline, func() error {
		now := time.Now()
		for added < n && p.Room(now) {
			taken, err := p.Add(ctx, message(tb, enc, first+added), now)
			if err != nil {
				tb.Fatal(err)
			}
			if !taken {
				break
			}
			added++
		}
		if err := p.Step(ctx, now, added < n); err != nil {
			tb.Fatal(err)
		}
		p.Settled()
		if added < n || p.Unsettled() > 0 {
			return fmt.Errorf("%d added, %d not settled: %w", added, p.Unsettled(), p.Condition())
		}
		return nil
	})
}

// Milliseconds at start: what was republished must not be looked at message by message.
func TestTheNewestFirstDeliveryIsFoundBehindTwoThousandRepublishedMessagesWithAFewRequests(t *testing.T) {
	url := testenv.NATS(t).URL()
	stream := makeStream(t, url, func(cfg *jetstream.StreamConfig) { cfg.Duplicates = 100 * time.Millisecond })
	p, enc := newPublisher(t, url, stream), newEncoder(t)
	const first, republished, later = 3000, 2000, 5
	publishAll(t, p, first, nil)
	quiet(t, p)
	for n := range republished {
		if ack := republish(t, p, again(t, enc, n, 1, true)); ack.Duplicate {
			t.Fatalf("message %d was swallowed", n)
		}
	}
	cfg := sink.PublisherConfig{Client: sink.ClientConfig{URL: url}, Stream: stream, Subject: "ours.{aggregate_type}.{event_type}",
		InFlightMax: 4096, AckTimeout: 2 * time.Second, Log: slog.New(slog.DiscardHandler)}
	asked := 0
	dial := sink.Dialer(cfg)
	cfg.Dial = func(ctx context.Context, a sink.Answers) (sink.Broker, error) {
		b, err := dial(ctx, a)
		return countingBroker{b, &asked}, err
	}
	restart := func(from decode.Position, n, most int) {
		t.Helper()
		p := sink.NewPublisher(cfg)
		defer p.Close()
		p.Begin(sink.Origin{SystemID: "7000", Name: "outbox", Timeline: 1, WALEndLSN: 1000, From: from})
		asked = 0
		publishFrom(t, p, int(from.Ordinal), n)
		if asked > most {
			t.Errorf("%d messages were asked for from %s on, want at most %d", asked, from, most)
		}
		t.Logf("%d messages asked for from %s on", asked, from)
	}
	at := func(n int) decode.Position {
		return decode.Position{Timeline: 1, CommitLSN: 100, Ordinal: uint64(n)}
	}
	expect := func(want int) {
		t.Helper()
		if got := len(testenv.DumpStream(t, url, stream)); got != want {
			t.Fatalf("the stream holds %d messages, want %d", got, want)
		}
	}
	// All is stored and confirmed; the last ten are not confirmed; then five new ones.
	restart(at(first), 0, 10)
	restart(at(first-10), 10, 60)
	expect(first + republished)
	restart(at(first-10), 10+later, 60)
	expect(first + republished + later)
	// Now the republished ones are in the middle of what is not confirmed: they are read
	// once, as what lies between first deliveries is.
	restart(at(first-10), 10+later, republished+200)
	expect(first + republished + later)
	// A client from outside finds it as well.
	c, err := sink.Dial(t.Context(), cfg.Client, cfg.Log)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	last, err := c.LastEvent(t.Context(), stream, source, cfg.Subject)
	if err != nil || last == nil || last.Sequence != first+republished+later {
		t.Errorf("newest event %+v, %v", last, err)
	}
}

func TestAPointerToAMessageThatIsGoneIsNoReasonToStoreAnythingTwice(t *testing.T) {
	url := testenv.NATS(t).URL()
	js := testenv.JetStream(t, url)
	stream := makeStream(t, url, func(cfg *jetstream.StreamConfig) { cfg.Duplicates = 100 * time.Millisecond })
	p, enc := newPublisher(t, url, stream), newEncoder(t)
	publishAll(t, p, 20, nil)
	quiet(t, p)
	for n := range 300 { // more than are looked at one by one
		republish(t, p, again(t, enc, n, 1, true))
	}
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteMsg(t.Context(), 20); err != nil { // the newest first delivery alone
		t.Fatal(err)
	}
	c, err := sink.Dial(t.Context(), sink.ClientConfig{URL: url}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const subject = "ours.{aggregate_type}.{event_type}"
	last, err := c.LastEvent(t.Context(), stream, source, subject)
	if err != nil || last == nil || last.Sequence != 19 {
		t.Errorf("newest event %+v, %v, want message 19", last, err)
	}
	if err := s.Purge(t.Context(), jetstream.WithPurgeSequence(50)); err != nil { // all first deliveries
		t.Fatal(err)
	}
	if last, err = c.LastEvent(t.Context(), stream, source, subject); err != nil || last != nil {
		t.Errorf("newest event %+v, %v, want none", last, err)
	}
}

func TestAMessageThatIsTooLargeIsRefused(t *testing.T) {
	url := testenv.NATS(t).URL()
	stream := makeStream(t, url, nil)
	p, enc := newPublisher(t, url, stream), newEncoder(t)
	quiet(t, p)
	s := testenv.JetStream(t, url)
	cfg := jetstream.StreamConfig{Name: stream, Subjects: []string{"ours.>", "others.>"}, AllowBatchPublish: true, MaxMsgSize: 100}
	if _, err := s.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	_, err := p.Republish(t.Context(), again(t, enc, 1, 1, false)) // refused by the server: the limit is newer than what was read
	var poison *sink.Poison
	if !errors.As(err, &poison) || poison.Code != sink.PoisonTooLarge {
		t.Fatalf("got %v", err)
	}
	quiet(t, p)
	if _, err = p.Republish(t.Context(), again(t, enc, 1, 1, false)); !errors.As(err, &poison) { // now by what is known
		t.Fatalf("got %v", err)
	}
}

// The thawed holder of a slot that another has taken must not go on with a request.
func TestInAnOwnStreamAMessageOfALateHolderIsNotStored(t *testing.T) {
	url := testenv.NATS(t).URL()
	stream := makeStream(t, url, nil)
	late, enc := newPublisher(t, url, stream), newEncoder(t)
	publishAll(t, late, 3, nil)
	quiet(t, late)
	now := newPublisher(t, url, stream)
	quiet(t, now)
	republish(t, now, again(t, enc, 0, 1, true))
	if ack, err := late.Republish(t.Context(), again(t, enc, 1, 1, true)); err == nil {
		t.Errorf("stored as message %d", ack.StreamSeq)
	}
	quiet(t, late) // it reads the stream, and may go on if it holds the slot still
	if ack := republish(t, late, again(t, enc, 1, 1, true)); ack.StreamSeq != 5 {
		t.Errorf("got %+v", ack)
	}
	ids := map[string]int{}
	next, err := late.ReadBack(t.Context(), 4, late.LastSequence(), 1, func(id string) { ids[id]++ })
	if err != nil || len(ids) != 2 {
		t.Fatalf("read back %v, %v", ids, err)
	}
	if next, err = late.ReadBack(t.Context(), next, late.LastSequence(), 1, nil); err != nil || next != 0 {
		t.Errorf("next %d, %v", next, err)
	}
}
