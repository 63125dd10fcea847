package sink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

// Acknowledged is what the stream said to a message that was published again.
type Acknowledged struct {
	StreamSeq uint64
	// Duplicate says that the stream has a message of this id already, at that sequence,
	// and stored nothing.
	Duplicate bool
}

// ErrNotSent says that a message was certainly not stored, since the place in the stream
// has to be found first: it may be republished as soon as the publisher is quiet again.
var ErrNotSent = errors.New("the place in the stream has to be found first")

// Quiet tells whether Republish may be called: all that was added is settled, and the
// place in the stream is known.
func (p *Publisher) Quiet() bool {
	s := p.seq
	return p.broker != nil && p.poison == nil && p.walk != nil && !s.paused &&
		s.phase == phaseOpen && s.unsettled() == 0 && !s.batchOpen && !s.awaiting()
}

// LastSequence returns the stream's last sequence as far as is known. It is meant for a
// quiet publisher.
func (p *Publisher) LastSequence() uint64 { return p.seq.lastSeq }

// RateAllows tells whether the rate allows one more message now, and else when it does.
func (p *Publisher) RateAllows(now time.Time) (at time.Time, ok bool) {
	if p.cfg.RateMax <= 0 {
		return now, true
	}
	tokens := p.limiter.TokensAt(now)
	if tokens >= 1 {
		return now, true
	}
	return now.Add(time.Duration((1 - tokens) / p.cfg.RateMax * float64(time.Second))), false
}

// Republish publishes a message of EncodeAgain outside of the order, and waits for the
// stream's answer, at most for the ack timeout. It returns a *Poison when the message can
// never be stored as things are, a *fault.Error for what a person has to mend, and ErrNotSent; after any other error it is
// not known whether the message is stored. The publisher must be quiet; after an error it
// is again once it has read the stream.
func (p *Publisher) Republish(ctx context.Context, m *Message) (Acknowledged, error) {
	now := time.Now()
	// With it the newest first delivery is found behind any number of such messages.
	if seq, known := p.newestSequence(); known {
		m = m.with(HeaderLastSequence, strconv.FormatUint(seq, 10))
	}
	if p.Quiet() {
		if err := p.admit(ctx, m); err != nil {
			return Acknowledged{}, err
		}
	}
	if !p.Quiet() { // it was not, or the stream could not be read
		return Acknowledged{}, ErrNotSent
	}
	s := p.seq
	s.newRound()
	s.plainRound = true
	s.replyBuf = appendPlainReply(s.replyBuf[:0], s.inbox, s.nonce, s.round, 1)
	p.limiter.AllowN(now, 1)
	err := p.publish(m, s.replyBuf, s.lastSeq, s.own)
	if err == nil {
		err = p.flush()
	}
	if err != nil {
		s.disconnected()
		return Acknowledged{}, fmt.Errorf("publish again: %w", err)
	}
	a, err := p.awaitAnswer(ctx)
	if err == nil {
		var ack Acknowledged
		if ack, err = p.acknowledged(a, m); err == nil {
			s.lastSeq = max(s.lastSeq, ack.StreamSeq)
			s.newRound()
			p.everOpen = true
			return ack, nil
		}
	}
	s.resync()
	p.judged = true
	return Acknowledged{}, err
}

// newestSequence returns where the newest first delivery is, 0 when there is none.
func (p *Publisher) newestSequence() (seq uint64, known bool) {
	if p.seq.acked > p.newest.acked {
		return p.seq.acked, true // what was stored since is newer, and all of it is acknowledged
	}
	if p.newest.event != nil {
		seq = p.newest.event.Sequence
	}
	return seq, p.newest.sure
}

// awaitAnswer waits for the answer to the only message of the present round.
func (p *Publisher) awaitAnswer(ctx context.Context) (answer, error) {
	timeout := time.NewTimer(p.cfg.AckTimeout)
	defer timeout.Stop()
	for {
		if a, ok := p.answerOfRound(); ok {
			return a, nil
		}
		if p.watchConnection(); p.seq.phase != phaseOpen {
			return answer{}, errors.New("publish again: the connection to NATS was lost")
		}
		select {
		case <-p.wake:
		case <-timeout.C:
			return answer{}, fmt.Errorf("publish again: stream %q did not answer within %s", p.cfg.Stream, p.cfg.AckTimeout)
		case <-ctx.Done():
			return answer{}, fmt.Errorf("publish again: %w", ctx.Err())
		}
	}
}

func (p *Publisher) answerOfRound() (answer, bool) {
	p.mu.Lock()
	p.answers, p.spare = p.spare[:0], p.answers
	p.mu.Unlock()
	for _, a := range p.spare {
		switch {
		case a.round != p.seq.round:
		case a.kind == answerForeign || a.kind == answerStored && a.stream != p.cfg.Stream:
			p.seq.foreignAnswers++
		default:
			return a, true
		}
	}
	return answer{}, false
}

// acknowledged sorts the stream's answer.
func (p *Publisher) acknowledged(a answer, m *Message) (Acknowledged, error) {
	switch a.kind {
	case answerStored:
		return Acknowledged{StreamSeq: a.streamSeq, Duplicate: a.duplicate}, nil
	case answerRefused:
	default:
		return Acknowledged{}, fmt.Errorf("publish again: no stream answers on subject %q", clip(m.Subject))
	}
	if a.code == codeWrongLastSeq { // somebody else wrote into the stream
		return Acknowledged{}, ErrNotSent
	}
	row := fault.JetStreamRow(strconv.Itoa(a.code))
	what := fmt.Sprintf("stream %q refused it with error %d: %s", p.cfg.Stream, a.code, row.Title)
	switch row.Class {
	case fault.Poison:
		code := PoisonRefused
		if a.code == codeMsgTooLarge {
			code = PoisonTooLarge
		}
		return Acknowledged{}, &Poison{Code: code, Reason: what, EventID: m.EventID, Position: m.Position}
	case fault.Operator:
		return Acknowledged{}, fault.NewOperator("stream-refuses", what, row.Hint, nil)
	default:
		return Acknowledged{}, errors.New("publish again: " + what)
	}
}

// IsOfRequest tells whether the message at a sequence was published for a request.
func (p *Publisher) IsOfRequest(ctx context.Context, seq uint64, request int64) (bool, error) {
	if p.broker == nil {
		return false, ErrNotSent
	}
	m, err := p.broker.Message(ctx, p.cfg.Stream, MessageQuery{Seq: seq})
	if err != nil || m == nil {
		return false, err
	}
	return m.isOfRequest(p.origin.Source(), request), nil
}

func (m *Fetched) isOfRequest(source string, request int64) bool {
	return m.Header.Get(HeaderSource) == source && m.Header.Get(HeaderRequest) == strconv.FormatInt(request, 10)
}

// ReadBack looks through some messages, from one sequence to another, for those that were published
// for a request, and calls each with their event ids as in the header. It returns where to go on, or 0
// at the end. First deliveries may lie between them: a request has its turn again and again.
func (p *Publisher) ReadBack(ctx context.Context, from, to uint64, request int64, each func(eventID string)) (next uint64, err error) {
	if !p.Quiet() {
		return from, ErrNotSent
	}
	if from > to {
		return 0, nil
	}
	last := min(to, from+chunkSize-1)
	messages, err := p.broker.Chunk(ctx, p.cfg.Stream, from, last)
	if err != nil {
		return from, err
	}
	for _, m := range messages {
		if m.isOfRequest(p.origin.Source(), request) {
			each(m.Header.Get(HeaderEventID))
		}
	}
	return last + 1, nil
}
