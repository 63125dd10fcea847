package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/request"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

const (
	// sliceMax is how long new events wait for those of a request.
	sliceMax = 50 * time.Millisecond
	// liveShare is how long a request waits then, unless no new event does.
	liveShare = 200 * time.Millisecond
	// turnTime is after how long a turn is answered although it is not done: whoever asked
	// saves how far it got, and learns whether it is still wanted.
	turnTime = 250 * time.Millisecond
	// undeliveredMax bounds how many events may wait for a forwarder while a command holds
	// the slot for a request.
	undeliveredMax = 100_000
)

// turn is a piece of a request, which the publisher works on between two transactions
// with nothing in flight. One turn serves for all of a request: it belongs to the publisher
// from when it is handed over until it is answered.
type turn struct {
	again  sink.Again
	events []*decode.Event
	// inSequence ends the turn behind the first event that was not stored.
	inSequence bool
	// afterLSN: all that was committed before is to be delivered first, so that nothing
	// is published again before it was published at all.
	afterLSN pglogrepl.LSN
	// readFrom: what the stream holds of the request from this sequence on needs not be
	// published; 0 when nothing was.
	readFrom uint64
	// readTo is the stream's end when reading began: what comes behind it is not of a former
	// holder, and beside new events there is always more.
	readTo uint64
	// answer takes one; whoever asks may have gone.
	answer chan turnAnswer

	// The publisher's:
	since    time.Time // when it was taken
	stepped  time.Time // when it was worked on last
	outcomes []outcome
	found    map[string]int // messages of the request in the stream, by event id
	resumed  bool
	sequence uint64
}

// turnAnswer says what became of a turn.
type turnAnswer struct {
	// outcomes are those of the first events. err says why there are no more; without one
	// the turn may be handed over again with the others.
	outcomes []outcome
	err      error
	done     bool // no event is left
	// sequence is one of the stream: what was published for the other events has a higher one.
	sequence uint64
	// deliveredLSN is up to where everything was delivered, or looked at.
	deliveredLSN pglogrepl.LSN
}

// outcome is what became of one event.
type outcome struct {
	stored, swallowed bool
	refusal           *request.Refusal
}

var (
	errTurnLost = errors.New("the slot is not held any more")
	errTurnLate = errors.New("the forwarder is stopping")
)

// turns is the publisher's side of the requests.
type turns struct {
	incoming  chan *turn
	now       *turn
	notBefore time.Time // new events have the word until then
	// While the slot is held for requests alone:
	passedLSN   pglogrepl.LSN       // what the slot brought was looked at up to here
	undelivered map[string]struct{} // ids of the events that it brought
	tooMany     bool
}

// takeTurn looks for the next turn, or gives the present one back when it cannot be
// worked on.
func (p *publisher) takeTurn(able error, now time.Time) {
	switch {
	case able != nil && p.turns.now != nil:
		p.endTurn(able)
	case able == nil && p.turns.now == nil:
		select {
		case t := <-p.turns.incoming:
			p.beginTurn(t, now)
		default:
		}
	case able == nil && now.Sub(p.turns.now.since) >= turnTime:
		p.endTurn(nil)
	}
}

func (p *publisher) beginTurn(t *turn, now time.Time) {
	t.since, t.stepped, t.outcomes, t.sequence = now, time.Time{}, nil, 0
	p.turns.now = t
}

// ableToTurn returns why no turn can be worked on, or nil.
func (p *publisher) ableToTurn(ctx context.Context, holding bool) error {
	switch {
	case stopping(ctx) || p.halt != nil:
		return errTurnLate
	case !holding:
		return errTurnLost
	default:
		return nil
	}
}

// stopsAt tells whether a turn comes before an item.
func (p *publisher) stopsAt(it *item, now time.Time) bool {
	return it.kind == itemBegin && p.turnDue(now)
}

// endTurn answers.
func (p *publisher) endTurn(err error) {
	t := p.turns.now
	if t == nil {
		return
	}
	p.turns.now = nil
	if t.readFrom > 0 || len(t.found) > 0 {
		t.sequence = 0 // what a predecessor published for later events lies before
	}
	done := err == nil && !t.stepped.IsZero() && t.readFrom == 0 && len(t.outcomes) == len(t.events)
	t.answer <- turnAnswer{outcomes: t.outcomes, err: err, done: done, sequence: t.sequence, deliveredLSN: p.deliveredLSN()}
}

// turnDue tells whether the present turn is to be worked on before the next transaction.
func (p *publisher) turnDue(now time.Time) bool {
	t := p.turns.now
	if t == nil || p.tracker == nil || p.deliveredLSN() < t.afterLSN {
		return false
	}
	if !now.Before(p.turns.notBefore) {
		return true
	}
	events, _ := p.queue.load()
	return events == 0
}

// deliveredLSN returns up to where everything was delivered, or looked at.
func (p *publisher) deliveredLSN() pglogrepl.LSN {
	switch {
	case p.cfg.RequestsOnly:
		return p.turns.passedLSN
	case p.tracker == nil:
		return 0
	}
	return p.tracker.ConfirmableLSN()
}

// turnReady tells whether the present turn can be worked on now.
func (p *publisher) turnReady(now time.Time) bool {
	if !p.turnDue(now) || p.tracker.InTransaction() || !p.sink.Quiet() {
		return false
	}
	_, ok := p.sink.RateAllows(now)
	return ok
}

// turnWait returns how long to sleep at the most, for the present turn's sake.
func (p *publisher) turnWait(now time.Time) time.Duration {
	if p.turns.now == nil {
		return publishIdle
	}
	at, ok := p.sink.RateAllows(now)
	if ok {
		at = p.turns.notBefore
	}
	if wait := at.Sub(now); wait > 0 {
		return wait
	}
	return max(time.Millisecond, p.turns.now.since.Add(turnTime).Sub(now)) // what else it waits for wakes the publisher
}

// workTurn works on the present turn for a while.
func (p *publisher) workTurn(ctx context.Context) {
	for until := time.Now().Add(sliceMax); p.turns.now != nil && p.shared.holding.Load() && p.turnReady(time.Now()) && time.Now().Before(until); {
		done, err := p.stepTurn(ctx, p.turns.now)
		if done || err != nil {
			p.endTurn(err)
		}
	}
	p.turns.notBefore = time.Now().Add(liveShare)
}

// stepTurn works on one event; true says that the turn is done.
func (p *publisher) stepTurn(ctx context.Context, t *turn) (bool, error) {
	t.stepped = time.Now()
	t.sequence = max(t.sequence, p.sink.LastSequence())
	if p.turns.tooMany {
		return false, fault.NewOperator("not-delivered", fmt.Sprintf("more than %d events wait to be delivered", undeliveredMax),
			"start the forwarder: it delivers them, and works on the request then", nil)
	}
	if t.readFrom > 0 {
		return false, p.readTurnBack(ctx, t)
	}
	if len(t.outcomes) == len(t.events) {
		return true, nil
	}
	out, err := p.publishAgain(ctx, t, t.events[len(t.outcomes)])
	if errors.Is(err, sink.ErrNotSent) {
		return false, nil // once the publisher is quiet again
	}
	if err != nil {
		return false, err
	}
	t.outcomes = append(t.outcomes, out)
	t.sequence = max(t.sequence, p.sink.LastSequence())
	return len(t.outcomes) == len(t.events) || t.inSequence && !out.stored, nil
}

// readTurnBack finds what was published for the request before it was taken over.
func (p *publisher) readTurnBack(ctx context.Context, t *turn) error {
	t.resumed = true
	if t.readTo == 0 {
		t.readTo = p.sink.LastSequence()
	}
	next, err := p.sink.ReadBack(ctx, t.readFrom, t.readTo, t.again.Request, func(eventID string) {
		if t.found == nil {
			t.found = map[string]int{}
		}
		t.found[eventID]++
	})
	if err != nil {
		return fmt.Errorf("read what was published for request %d: %w", t.again.Request, err)
	}
	t.readFrom = next
	return nil
}

// publishAgain publishes one event of a turn.
func (p *publisher) publishAgain(ctx context.Context, t *turn, e *decode.Event) (outcome, error) {
	if _, waits := p.turns.undelivered[string(e.Value(decode.FieldEventID))]; waits && e.Position == (decode.Position{}) { // not of a dead letter
		return refuse(e, "not-delivered", "it was not published for the first time yet: the forwarder does that once it runs"), nil
	}
	m, err := p.encoder.EncodeAgain(e, t.again)
	if err != nil {
		return refusedBy(e, err)
	}
	if t.found[m.EventID] > 0 {
		if t.found[m.EventID]--; t.found[m.EventID] == 0 {
			delete(t.found, m.EventID)
		}
		return outcome{stored: true}, nil
	}
	ack, err := p.sink.Republish(ctx, m)
	if err != nil {
		return refusedBy(e, err)
	}
	if p.debug {
		p.log.Debug("published again", "event_id", m.EventID, "aggregate_id", m.AggregateID, "trace_id", m.TraceID, "subject", m.Subject,
			"sequence", ack.StreamSeq, "duplicate", ack.Duplicate, "request", t.again.Request)
	}
	if ack.Duplicate && (t.resumed || t.again.FreshID) { // it may be the request's own, of an attempt whose answer was lost
		own, err := p.sink.IsOfRequest(ctx, ack.StreamSeq, t.again.Request)
		if err != nil {
			return outcome{}, fmt.Errorf("look at message %d of stream %q: %w", ack.StreamSeq, p.cfg.Stream, err)
		}
		ack.Duplicate = !own
	}
	return outcome{stored: !ack.Duplicate, swallowed: ack.Duplicate}, nil
}

// refusedBy makes an outcome of poison; other errors end the turn.
func refusedBy(e *decode.Event, err error) (outcome, error) {
	poison, ok := isPoison(err)
	if !ok {
		return outcome{}, err
	}
	return refuse(e, poison.Code, poison.Reason), nil
}

func refuse(e *decode.Event, code, reason string) outcome {
	return outcome{refusal: &request.Refusal{EventID: string(e.Value(decode.FieldEventID)), Code: code, Reason: reason}}
}

// passBy takes note of what the slot brings while it is held for requests alone. Nothing
// of it is published or confirmed: the next forwarder gets all of it again.
func (p *publisher) passBy(it *item) {
	switch it.kind {
	case itemEvent:
		if len(p.turns.undelivered) < undeliveredMax {
			p.turns.undelivered[string(it.event.Value(decode.FieldEventID))] = struct{}{}
		} else {
			p.turns.tooMany = true
		}
		p.queue.release(p.generation, 1, int64(it.event.Size()))
	case itemCommit, itemKeepalive:
		p.turns.passedLSN = max(p.turns.passedLSN, it.lsn)
	case itemBegin, itemSession:
	}
}

// forgetPassed begins to take note anew, behind what is confirmed.
func (p *publisher) forgetPassed(confirmedLSN pglogrepl.LSN) {
	p.turns.passedLSN, p.turns.tooMany = confirmedLSN, false
	p.turns.undelivered = nil
	if p.cfg.RequestsOnly {
		p.turns.undelivered = map[string]struct{}{}
	}
}
