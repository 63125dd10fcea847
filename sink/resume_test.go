package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func numbered(n int) *Message {
	return &Message{EventID: fmt.Sprint("e", n), Subject: "s", Position: decode.Position{Timeline: 1, CommitLSN: 10, Ordinal: uint64(n)}}
}

func openSequencer(t tail, messages int) (*sequencer, *scriptWire, time.Time) {
	w, now := &scriptWire{}, time.Unix(0, 0)
	s := newSequencer(limits{inFlightMax: 4096, ackTimeout: 5 * time.Second, settleGrace: time.Second}, w, "S", "I", "b")
	t.batched = true
	s.synced(t, now)
	for i := range messages {
		s.add(numbered(i), false, false)
	}
	return s, w, now
}

func TestALostAnswerToTheEndOfABatchIsATimeout(t *testing.T) {
	s, _, now := openSequencer(tail{own: true}, 16)
	s.pump(now, true)
	s.handle(answer{kind: answerFlow, round: s.round, seq: 16, count: 16}, now)
	s.pump(now, false) // all is settled, nothing waits: the batch is ended without a message
	s.add(numbered(99), false, false)
	s.pump(now, false)
	if at := s.deadline(now); at.IsZero() || s.inFlight() != 0 {
		t.Fatalf("deadline %v with %d in flight: nothing would ever send the message that waits", at, s.inFlight())
	}
	s.tick(now.Add(5 * time.Second))
	if s.phase != phaseSync || s.cause.kind != causeTimeout {
		t.Errorf("phase %s, cause %s", s.phase, s.cause.kind)
	}
}

func TestABatchWithoutExpectationIsAnExceptionForOneBatch(t *testing.T) {
	s, _, now := openSequencer(tail{lastSeq: 5}, 1)
	for !s.withoutExpect {
		s.pump(now, false)
		s.handle(answer{kind: answerRefused, code: codeWrongLastSeq, round: s.round, seq: 1}, now)
		s.synced(tail{batched: true, lastSeq: 5}, now)
	}
	s.pump(now, false)
	s.handle(answer{kind: answerStored, stream: "S", round: s.round, seq: 1, count: 1, streamSeq: 10}, now)
	if s.unsettled() != 0 || s.withoutExpect {
		t.Errorf("%d unsettled, still without expectation: %v", s.unsettled(), s.withoutExpect)
	}
}

func TestALateAnswerAfterAFailedReadingDoesNotUpsetTheNumbers(t *testing.T) {
	s, _, now := openSequencer(tail{own: true}, 3)
	s.pump(now, true)
	s.tick(now.Add(6 * time.Second))
	failed := errors.New("away")
	if err := s.sift(func(*Message) (bool, bool, error) { return true, false, failed }); !errors.Is(err, failed) {
		t.Fatal(err)
	}
	s.handle(answer{kind: answerStored, stream: "S", round: s.round, seq: 3, count: 2, streamSeq: 2}, now)
	if s.inFlight() != 0 || s.unsettled() != 1 {
		t.Errorf("%d in flight, %d unsettled", s.inFlight(), s.unsettled())
	}
	s.forgetUnsent()
	if err := s.sift(func(*Message) (bool, bool, error) { return true, false, nil }); err != nil || s.unsettled() != 0 {
		t.Errorf("%v, %d unsettled", err, s.unsettled())
	}
}

// heap is a stream that fits into one chunk.
type heap []*Fetched

func (h heap) Chunk(context.Context, string, uint64, uint64) ([]*Fetched, error) { return h, nil }
func (h heap) Message(context.Context, string, MessageQuery) (*Fetched, error)   { return nil, nil }

func TestAnEventThatWasStoredLateIsFoundBehindLaterOnes(t *testing.T) {
	at := func(seq uint64, n int) *Fetched {
		m := numbered(n)
		return &Fetched{Sequence: seq, Header: nats.Header{HeaderSource: {"1/o"}, HeaderPosition: {m.Position.String()}, HeaderEventID: {m.EventID}}}
	}
	w := &walk{messages: heap{at(1, 2), at(2, 1), at(3, 3)}, source: "1/o", nextSeq: 1, lastSeq: 3, chunksLeft: 1}
	for n, want := range []uint64{2, 1, 3} {
		m := numbered(n + 1)
		if v, err := w.check(t.Context(), m.Position, m.EventID); err != nil || v.seq != want {
			t.Errorf("%s: sequence %d, %v, want %d", m.EventID, v.seq, err, want)
		}
	}
}

func TestTheSamePositionWithAnotherEventIsAConflict(t *testing.T) {
	m := numbered(1)
	w := &walk{messages: heap{{Sequence: 7, Header: nats.Header{HeaderSource: {"1/o"}, HeaderPosition: {m.Position.String()}, HeaderEventID: {"other"}}}},
		source: "1/o", nextSeq: 1, lastSeq: 7, chunksLeft: 1}
	var conflict *ConflictError
	if _, err := w.check(t.Context(), m.Position, m.EventID); !errors.As(err, &conflict) || conflict.Sequence != 7 {
		t.Errorf("error %v", err)
	}
}

func TestLargeStoredMessagesAreReadInPieces(t *testing.T) {
	natsURL := testenv.NATS(t).URL()
	js := testenv.JetStream(t, natsURL)
	ctx := testenv.Context(t, 2*testenv.Deadline)
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "LARGE", Subjects: []string{"large"}}); err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 1000<<10)
	for range chunkSize {
		if _, err := js.Publish(ctx, "large", body); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Dial(ctx, ClientConfig{URL: natsURL}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := c.Chunk(ctx, "LARGE", 1, chunkSize); err != nil || len(got) != chunkSize {
		t.Errorf("%d messages, %v", len(got), err)
	}
}
