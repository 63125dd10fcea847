package forwarder

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
)

const (
	// turnMax is how long a loop may take for one turn; connecting and a look into
	// the catalog are part of a turn.
	turnMax = 60 * time.Second
	// stalledAfter is how many times the ack timeout the oldest event may wait before
	// the forwarder is called not ready.
	stalledAfter = 3
)

// Live tells whether the loops turn.
func (f *Forwarder) Live() (bool, string) {
	now := time.Now()
	for name, at := range map[string]int64{
		"reader":    f.shared.readerTurnedAt.Load(),
		"publisher": f.shared.publisherTurnedAt.Load(),
	} {
		if at != 0 && now.Sub(time.Unix(0, at)) > turnMax {
			return false, fmt.Sprintf("the %s has not turned for %s", name, now.Sub(time.Unix(0, at)).Round(time.Second))
		}
	}
	return true, "the loops turn"
}

// Ready tells whether events flow and progress is made, or this is a standby.
func (f *Forwarder) Ready() (bool, string) {
	s := f.machine.snapshot()
	switch s.state {
	case StateStandby:
		return true, "standby: " + s.reason
	case StateStreaming:
	default:
		return false, strings.TrimSuffix(s.state.String()+": "+s.reason, ": ")
	}
	if unpublished := f.watcher.whyRed(); unpublished != "" {
		return false, "the outbox is not published: " + unpublished
	}
	now := time.Now()
	if at := f.figures.oldestSentAt.Load(); at != 0 {
		since := max(at, f.figures.settledAt.Load())
		if waited := now.Sub(time.Unix(0, since)); waited > stalledAfter*f.cfg.AckTimeout {
			return false, fmt.Sprintf("no progress for %s", waited.Round(time.Second))
		}
	}
	silent := now.Sub(time.Unix(0, max(f.shared.lastFrameAt.Load(), f.shared.busyAt.Load())))
	if silent > max(silenceMin, 3*f.cfg.StatusInterval) {
		return false, fmt.Sprintf("PostgreSQL has been silent for %s", silent.Round(time.Second))
	}
	return true, "streaming"
}

// Figures are what a running forwarder adds to the status document.
type Figures struct {
	State           string     `json:"state"`
	Reason          string     `json:"reason,omitempty"`
	Since           time.Time  `json:"since"`
	ConfirmedLSN    string     `json:"confirmed_lsn"`
	ConfirmableLSN  string     `json:"confirmable_lsn"`
	Published       uint64     `json:"events_published"`
	Duplicates      uint64     `json:"events_duplicate"`
	AlreadyStored   uint64     `json:"events_already_stored"`
	DeadLettered    uint64     `json:"events_dead_lettered"`
	InFlight        int64      `json:"in_flight_events"`
	Waiting         int        `json:"waiting_events"`
	WaitingBytes    int64      `json:"waiting_bytes"`
	OldestUnacked   float64    `json:"oldest_unacked_seconds"`
	FastBatches     bool       `json:"fast_batches"`
	OwnStream       bool       `json:"own_stream"`
	Resyncs         uint64     `json:"resyncs"`
	OrderViolations uint64     `json:"order_violations"`
	SkippedRows     uint64     `json:"rows_of_other_tables"`
	OutOfBand       uint64     `json:"messages_not_transactional"`
	LastEvent       *lastEvent `json:"last_event"`
	Unpublished     string     `json:"unpublished,omitempty"`
}

// Figures returns the running figures.
func (f *Forwarder) Figures() Figures {
	s := f.machine.snapshot()
	events, bytes := f.queue.load()
	out := Figures{
		State: s.state.String(), Reason: s.reason, Since: s.since.UTC(),
		ConfirmedLSN:   pglogrepl.LSN(f.shared.confirmedLSN.Load()).String(),
		ConfirmableLSN: f.queue.confirmable().String(),
		Published:      f.figures.published.Load(), Duplicates: f.figures.duplicates.Load(), AlreadyStored: f.figures.found.Load(), DeadLettered: f.figures.deadLetters.Load(),
		InFlight: f.figures.inFlight.Load(), Waiting: events, WaitingBytes: bytes,
		FastBatches: f.figures.batched.Load(), OwnStream: f.figures.ownStream.Load(), Resyncs: f.figures.resyncs.Load(),
		OrderViolations: f.figures.violations.Load(), SkippedRows: f.shared.skippedRows.Load(), OutOfBand: f.shared.outOfBand.Load(),
		LastEvent: f.figures.lastEvent.Load(), Unpublished: f.watcher.whyRed(),
	}
	if at := f.figures.oldestSentAt.Load(); at != 0 {
		out.OldestUnacked = time.Since(time.Unix(0, at)).Seconds()
	}
	return out
}

// Status returns the document of GET /status.
func (f *Forwarder) Status(ctx context.Context) (any, error) {
	if f.status == nil {
		return f.Figures(), nil
	}
	return f.status(ctx, f.Figures())
}
