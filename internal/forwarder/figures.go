package forwarder

import (
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// figures are running numbers for health and status.
type figures struct {
	published    atomic.Uint64
	duplicates   atomic.Uint64
	found        atomic.Uint64
	deadLetters  atomic.Uint64
	inFlight     atomic.Int64
	oldestSentAt atomic.Int64 // unix nanoseconds; 0 when nothing is in flight
	settledAt    atomic.Int64
	lastEvent    atomic.Pointer[lastEvent]
	batched      atomic.Bool
	ownStream    atomic.Bool
	resyncs      atomic.Uint64
	violations   atomic.Uint64
	foreign      atomic.Uint64
}

type lastEvent struct {
	EventID  string `json:"event_id"`
	Subject  string `json:"subject"`
	Sequence uint64 `json:"sequence"`
	Position string `json:"position"`
}

// settle accounts for what the stream has stored.
func (p *publisher) settle(settled []sink.Settlement) {
	now := time.Now()
	var bytes int64
	duplicates, found := 0, 0
	for i := range settled {
		st := &settled[i]
		p.tracker.Settle(st.Message.Number)
		bytes += int64(st.Message.EventSize())
		switch {
		case st.AlreadyStored:
			found++
		case st.Duplicate:
			duplicates++
		default:
			p.metrics.ObserveCommitToAck(now.Sub(st.Message.CommitTime).Seconds())
			p.metrics.ObservePublish(now.Sub(st.SentAt).Seconds())
		}
		if p.debug {
			p.log.Debug("published", "event_id", st.Message.EventID, "aggregate_id", st.Message.AggregateID,
				"trace_id", st.Message.TraceID, "subject", st.Message.Subject, "position", st.Message.Position.String(),
				"sequence", st.StreamSeq, "duplicate", st.Duplicate, "already_stored", st.AlreadyStored)
		}
	}
	p.publishLSN()
	p.queue.release(p.generation, len(settled), bytes)
	p.metrics.AddPublished(len(settled) - duplicates - found)
	p.metrics.AddSkipped(metrics.SkippedAlreadyStored, found)
	p.figures.found.Add(uint64(found))
	p.figures.published.Add(uint64(len(settled) - duplicates - found))
	p.figures.settledAt.Store(now.UnixNano())
	last := settled[len(settled)-1]
	p.figures.lastEvent.Store(&lastEvent{
		EventID: last.Message.EventID, Subject: last.Message.Subject,
		Sequence: last.StreamSeq, Position: last.Message.Position.String(),
	})
}

// report passes figures and the sink's condition on.
func (p *publisher) report(now time.Time) {
	st := p.sink.Stats()
	events, bytes := p.queue.load()
	p.metrics.SetInFlight(st.InFlight, bytes)
	p.metrics.SetOldestUnacked(st.OldestAddedAt)
	if confirmedLSN := p.shared.confirmedLSN.Load(); confirmedLSN > 0 {
		p.metrics.SetConfirmedLSN(confirmedLSN)
	}
	p.metrics.AddOrderViolations(int(st.OrderViolations - p.last.OrderViolations))
	p.metrics.AddRetries(int(st.Resent - p.last.Resent))
	for range st.Reconnects - p.last.Reconnects {
		p.metrics.AddReconnect(metrics.SideNATS)
	}
	if st.OrderViolations > p.last.OrderViolations {
		p.log.Warn("events were stored behind later ones: the stream does not take fast batches and somebody else writes into it",
			"events", st.OrderViolations-p.last.OrderViolations, "hint", "nats stream edit "+p.cfg.Stream+" --allow-fast, on nats-server 2.14 or newer")
	}
	if n := st.Duplicates - p.last.Duplicates; n > 0 {
		p.metrics.AddSkipped(metrics.SkippedDuplicate, int(n))
		p.figures.duplicates.Add(n)
		p.log.Warn("the stream had the message ids of new events already: two rows share an event id, or somebody else published them",
			"events", n, "hint", "an event id must be unique within the stream; look for it with: nats stream view "+p.cfg.Stream)
	}
	if st.Phantoms > p.last.Phantoms {
		p.log.Warn("the stream holds events that this server does not have: published before a failover or from another copy of the database",
			"events", st.Phantoms-p.last.Phantoms, "event_ids", p.sink.Passed())
	}
	p.last = st
	p.figures.inFlight.Store(int64(st.InFlight))
	oldest := int64(0)
	if !st.OldestSentAt.IsZero() {
		oldest = st.OldestSentAt.UnixNano()
	}
	p.figures.oldestSentAt.Store(oldest)
	p.figures.batched.Store(st.Batched)
	p.figures.ownStream.Store(st.OwnStream)
	p.figures.resyncs.Store(st.Resyncs)
	p.figures.violations.Store(st.OrderViolations)
	p.figures.foreign.Store(st.ForeignAnswers)
	reason := p.letters.reason
	if c := p.sink.Condition(); c != nil {
		if errors.Is(c, sink.ErrSuperseded) {
			p.shared.rereadGeneration.Store(p.generation)
		}
		reason = "NATS: " + strings.TrimPrefix(c.Error(), "connect to NATS: ")
	}
	p.machine.setSink(reason, now, "events_waiting", events)
}
