package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

const (
	// askedOften is how many questions for our position within a second mean that the
	// server shuts down: it asks again and again for one that covers all it has sent.
	askedOften = 3
	// shutdownGrace is how long it may then wait for us: what can be settled is.
	shutdownGrace = 2 * time.Second
	// replyPause is the least time between two equal answers to such questions: each
	// answer at once brings the next question.
	replyPause = 10 * time.Millisecond
)

// chores are due between frames: status messages, signs of a server that shuts
// down or is gone.
func (r *reader) chores(now time.Time) error {
	r.shared.readerTurnedAt.Store(now.UnixNano())
	if r.gotFrame {
		r.heard()
		r.gotFrame = false
	}
	r.shared.skippedRows.Store(r.decoder.Skipped())
	if n := r.decoder.NonTransactionalMessages(); n > 0 && r.shared.outOfBand.Swap(n) == 0 {
		r.log.Warn("a logical message that belongs to no transaction is not forwarded",
			"hint", "pg_logical_emit_message(true, 'outbox', ...): its first argument makes it transactional")
	}
	if r.shared.serverStopping.Load() && r.stopSeenAt.IsZero() {
		r.stopSeenAt = now
	}
	if !r.stopSeenAt.IsZero() && now.Sub(r.stopSeenAt) >= shutdownGrace {
		return fault.NewTransient("the server is shutting down and waits for us: disconnecting so that it can", "", nil)
	}
	silent := now.Sub(time.Unix(0, r.shared.lastFrameAt.Load()))
	if silent >= r.silenceMax() && now.Sub(time.Unix(0, r.shared.busyAt.Load())) >= r.silenceMax() {
		return fault.NewTransient(fmt.Sprintf("the server has been silent for %s", silent.Round(time.Second)), "", nil)
	}
	if r.shared.rereadGeneration.Load() == r.session.generation {
		_ = r.sayGoodbye() // the slot is free at once then; else it is waited for
		return errReread
	}
	due := !now.Before(r.statusAt)
	if !due && !r.replyOwed {
		return nil
	}
	if r.replyOwed && !due && r.asked > askedOften && r.confirmLSN() == pglogrepl.LSN(r.shared.confirmedLSN.Load()) &&
		now.Sub(r.statusAt.Add(-r.cfg.StatusInterval)) < replyPause {
		return nil // the same answer again would only bring the same question again
	}
	return r.sendStatus(now, silent >= r.cfg.StatusInterval)
}

func (r *reader) silenceMax() time.Duration { return max(silenceMin, 3*r.cfg.StatusInterval) }

// confirmLSN is what may be told: what is settled, never more than this server has
// sent, never less than was told before.
func (r *reader) confirmLSN() pglogrepl.LSN {
	lsn := min(r.queue.confirmable(), r.ceilingLSN)
	return max(lsn, pglogrepl.LSN(r.shared.confirmedLSN.Load()))
}

func (r *reader) sendStatus(now time.Time, probe bool) error {
	lsn := r.confirmLSN()
	err := r.stream.SendStatus(replication.Status{WriteLSN: lsn, FlushLSN: lsn, ApplyLSN: lsn, ReplyRequested: probe}, now)
	if err != nil {
		return fmt.Errorf("slot %s: %w", r.cfg.Slot, err)
	}
	r.shared.confirmedLSN.Store(uint64(lsn))
	r.statusAt = now.Add(r.cfg.StatusInterval)
	r.replyOwed = false
	return nil
}

// leaveSettled lets what was handed over settle and be confirmed before the reader
// gives up for err, so that the next start sends none of it again.
func (r *reader) leaveSettled(ctx context.Context, err error) error {
	r.queue.push(r.pending)
	deadline := time.Now().Add(r.cfg.ShutdownTimeout)
	for events, _ := r.queue.load(); events > 0 && time.Now().Before(deadline) && pause(ctx, tick/10); events, _ = r.queue.load() {
		r.heard()
		if choreErr := r.chores(time.Now()); choreErr != nil {
			return err
		}
	}
	_ = r.sayGoodbye() // err is what ends the stream
	return err
}

// goodbyeMax bounds the wait for the server to take note of the final position.
const goodbyeMax = 2 * time.Second

// sayGoodbye tells the final position and waits until the server has read it.
func (r *reader) sayGoodbye() error {
	if err := r.sendStatus(time.Now(), false); err != nil {
		return err
	}
	if err := r.stream.Finish(goodbyeMax); err != nil {
		return fmt.Errorf("slot %s: %w", r.cfg.Slot, err)
	}
	return nil
}

// drain waits for the publisher to settle what is in flight, keeping PostgreSQL
// informed, and tells it the final position.
func (r *reader) drain() error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-r.publisherDone:
			return r.sayGoodbye()
		case now := <-ticker.C:
			if now.Before(r.statusAt) {
				continue
			}
			if err := r.sendStatus(now, false); err != nil {
				return err
			}
		}
	}
}
