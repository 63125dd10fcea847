package sink

import (
	"context"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// storedAt is the n-th event as a stream holds it.
func storedAt(seq uint64, n int) *Fetched {
	m := numbered(n)
	return &Fetched{Sequence: seq, Subject: "s", Header: nats.Header{HeaderSource: {"1/o"}, HeaderPosition: {m.Position.String()}, HeaderEventID: {m.EventID}}}
}

// ownStream is a stream that holds nothing but ours; number tells which event is at a sequence.
type ownStream struct {
	Broker
	last   uint64
	number func(seq uint64) int
}

func (o *ownStream) Message(_ context.Context, _ string, q MessageQuery) (*Fetched, error) {
	switch {
	case q.LastBySubject != "":
		return storedAt(o.last, o.number(o.last)), nil
	case q.Seq <= o.last:
		return storedAt(q.Seq, o.number(q.Seq)), nil
	}
	return nil, nil
}

func (o *ownStream) Chunk(_ context.Context, _ string, first, last uint64) ([]*Fetched, error) {
	var out []*Fetched
	for seq := first; seq <= min(last, o.last); seq++ {
		out = append(out, storedAt(seq, o.number(seq)))
	}
	return out, nil
}

// begun is a publisher that has read the stream at the beginning of a session.
func (o *ownStream) begun(t *testing.T, from decode.Position, batched bool) *Publisher {
	t.Helper()
	p := NewPublisher(PublisherConfig{Stream: "S", Subject: "s", InFlightMax: 4096, Log: slog.New(slog.DiscardHandler)})
	p.broker = o
	p.Begin(Origin{SystemID: "1", Name: "o", From: from, Timeline: 1, WALEndLSN: 1000})
	end := tail{firstSeq: 1, lastSeq: o.last, keeps: true, own: true, batched: batched, newest: storedAt(o.last, o.number(o.last))}
	if err := p.resume(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	return p
}

// expectStored checks where the walk finds an event; 0 is nowhere.
func expectStored(t *testing.T, p *Publisher, n int, want uint64) {
	t.Helper()
	m := numbered(n)
	p.walk.chunksLeft = 100
	if v, err := p.walk.check(t.Context(), m.Position, m.EventID); err != nil || v.seq != want {
		t.Errorf("%s is stored at %d, but the verdict is %+v, %v", m.EventID, want, v, err)
	}
}

func TestABacklogOfMoreThanAMillionStoredEventsIsFoundFromItsFirstOne(t *testing.T) {
	o := &ownStream{last: 1<<20 + 500, number: func(seq uint64) int { return int(seq - 1) }}
	p := o.begun(t, decode.Position{Timeline: 1, CommitLSN: 10}, true)
	for n := range 3 {
		expectStored(t, p, n, uint64(n+1))
	}
}

// Without batches an event that was refused is stored behind all that were on their way with it.
func TestAnEventThatWasStoredFarBehindLaterOnesIsFound(t *testing.T) {
	order := func(seq uint64) int { // 0, 2 to 300, 1
		switch seq {
		case 1:
			return 0
		case 301:
			return 1
		default:
			return int(seq)
		}
	}
	for first := range 3 { // also where the newest message comes before what is looked for
		o := &ownStream{last: 301, number: order}
		p := o.begun(t, numbered(first).Position, false)
		for n := first; n < 3; n++ {
			expectStored(t, p, n, []uint64{1, 301, 2}[n])
		}
		if p.phantoms != 0 {
			t.Errorf("from event %d on: %d phantoms", first, p.phantoms)
		}
	}
}
