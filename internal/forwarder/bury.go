package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// judge decides once what becomes of the next event: a message to be published (p.held), a
// dead letter to be stored (p.draft), or neither, when it is settled. False says that
// this cannot be told yet.
func (p *publisher) judge(ctx context.Context, it *item, now time.Time) (bool, error) {
	ready, err := p.letters.ready(ctx, it.event, now)
	if !ready || err != nil {
		return p.haltOn(err)
	}
	e := it.event
	if p.letters.stands(e) {
		_, ok, err := p.sink.Pass(ctx, e.Position, e.Value(decode.FieldEventID), now)
		if ok {
			p.settleStored(it, p.letters.storedLSN)
		}
		return ok, err //nolint:wrapcheck // it is the user's sentence already
	}
	m, err := p.encoder.Encode(e)
	poison, isPoison := isPoison(err)
	if err != nil && (!isPoison || !p.cfg.OnPoison.stores()) {
		return false, fmt.Errorf("encode event: %w", err)
	}
	if condemned := p.letters.condemns(e); condemned != nil {
		poison = condemned
	}
	head := p.letters.headOf(e)
	if poison == nil && head == 0 {
		m.Number = p.number
		p.held = m
		return true, nil
	}
	// Published is published, whatever would become of it today.
	stored, ok, err := p.sink.Pass(ctx, e.Position, e.Value(decode.FieldEventID), now)
	switch {
	case !ok || err != nil:
		return false, err //nolint:wrapcheck // it is the user's sentence already
	case stored:
		p.settleFound(it)
	case head != 0:
		p.hold(e, m, head, now)
	default:
		p.condemn(e, poison, now)
	}
	return true, nil
}

// condemn makes an event that can never be published the next dead letter.
func (p *publisher) condemn(e *decode.Event, poison *sink.Poison, now time.Time) {
	p.held = nil
	p.draft = &deadletter.Draft{
		Source: p.letters.source, Event: e, Extras: p.letters.extras, Subject: poison.Subject,
		ReasonCode: poison.Code, Reason: poison.Reason, Attempts: 1, FirstFailedAt: now,
	}
}

// hold makes an event wait behind the letter with an id.
func (p *publisher) hold(e *decode.Event, m *sink.Message, head int64, now time.Time) {
	p.draft = &deadletter.Draft{
		Source: p.letters.source, Event: e, Extras: p.letters.extras,
		ReasonCode: deadletter.ReasonHeld, Reason: deadletter.HeldReason(head),
		FirstFailedAt: now, HeldBehind: head,
	}
	if m != nil {
		p.draft.Subject = m.Subject
	}
}

// draftWaits tells whether the draft may hold its aggregate, and something that was taken
// before it is not settled yet. Whoever discards a letter publishes what waits behind it: what
// comes before it must be stored by then, or be a letter with a smaller id.
func (p *publisher) draftWaits() bool {
	return p.draft != nil && p.draft.HeldBehind == 0 && p.cfg.OnPoison == PoisonHoldAggregate && p.sink.Unsettled() > 0
}

// bury stores the draft; false says that it has to be tried again.
func (p *publisher) bury(ctx context.Context, it *item, now time.Time) (bool, error) {
	if p.draftWaits() {
		return false, nil
	}
	d := p.draft
	d.Slot, d.WalsenderPID = p.cfg.Slot, p.shared.walsenderPID.Load()
	receipt, done, err := p.letters.insert(ctx, *d, now)
	if errors.Is(err, deadletter.ErrHeadResolved) {
		// Another may have become the head of those that waited: all heads are read again.
		p.letters.reloadHeads()
		p.draft = nil // and it is judged anew
		return p.event(ctx, it, now)
	}
	if !done || err != nil {
		return p.haltOn(err)
	}
	p.metrics.AddDeadLetter(d.ReasonCode)
	p.figures.deadLetters.Add(1)
	id, position := deadletter.EventIDOf(d.Event), d.Event.Position.String()
	if d.HeldBehind != 0 {
		p.log.Info("event held behind a dead letter of its aggregate", "event_id", id, "position", position, "held_behind", d.HeldBehind)
	} else {
		p.log.Warn("dead letter: the event was not published", "event_id", id, "position", position, "reason_code", d.ReasonCode, "reason", d.Reason,
			"hint", mends(d.ReasonCode)+"; then "+p.cfg.retryCommand(id))
	}
	p.settleStored(it, receipt.StoredLSN)
	return true, nil
}

// haltOn stops before the next event, if err is not nil: what was handed over is settled first.
func (p *publisher) haltOn(err error) (bool, error) {
	p.halt = err
	return false, nil
}

// settleStored settles an event that a letter stands for.
func (p *publisher) settleStored(it *item, storedLSN pglogrepl.LSN) {
	p.tracker.SettleStored(p.number, storedLSN)
	p.dismiss(it)
}

// settleFound settles an event that the stream holds already.
func (p *publisher) settleFound(it *item) {
	p.tracker.Settle(p.number)
	p.metrics.AddSkipped(metrics.SkippedAlreadyStored, 1)
	p.figures.found.Add(1)
	p.dismiss(it)
}

// dismiss gives back what an event took that never reached the sink.
func (p *publisher) dismiss(it *item) {
	p.queue.release(p.generation, 1, int64(it.event.Size()))
	p.figures.settledAt.Store(time.Now().UnixNano())
	p.taken(it)
}

// taken is called when nothing more is to be done for an event here.
func (p *publisher) taken(it *item) {
	p.held, p.draft, p.number, it.event = nil, nil, 0, nil
}

// reread makes the reader start anew from the slot's own position, so that the event of a
// message which turned out to be poison comes by again, and all behind it.
func (p *publisher) reread(poison *sink.Poison) {
	if p.rereading {
		return
	}
	p.rereading = true
	p.letters.condemned = poison
	p.log.Info("reading again from the slot's position: a message that was taken can never be stored",
		"event_id", poison.EventID, "position", poison.Position.String(), "reason_code", poison.Code)
	p.shared.rereadGeneration.Store(p.generation)
}
