package sim

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/forwarder"
)

// letter is a row of outbox_dead_letter. Nobody resolves one here.
type letter struct {
	id         int64
	event      *event
	aggregate  deadletter.Aggregate
	heldBehind int64
	commitLSN  pglogrepl.LSN
	at         time.Time
}

// pgLetters is a connection to the dead letters.
type pgLetters struct{ *pgConn }

// Letters implements forwarder.Server.
func (s *pgServer) Letters(ctx context.Context) (forwarder.Letters, error) {
	c, err := s.dial(ctx)
	if err != nil {
		return nil, err
	}
	return pgLetters{c}, nil
}

// KnownAfter implements forwarder.Letters.
func (c pgLetters) KnownAfter(ctx context.Context, _ string, from decode.Position) ([]deadletter.Known, pglogrepl.LSN, error) {
	var end pglogrepl.LSN
	known, err := query(ctx, c.pgConn, func() ([]deadletter.Known, error) {
		var known []deadletter.Known
		for _, l := range c.pg.letters {
			if l.event.position.Compare(from) >= 0 {
				known = append(known, deadletter.Known{ID: l.id, Position: l.event.position, EventID: l.event.id})
			}
		}
		slices.SortFunc(known, func(a, b deadletter.Known) int { return a.Position.Compare(b.Position) })
		return known, nil
	})
	if err == nil {
		end, err = c.WALEnd(ctx)
	}
	return known, end, err
}

// Heads implements forwarder.Letters.
func (c pgLetters) Heads(ctx context.Context, _ string, each func(deadletter.Head)) error {
	heads, err := query(ctx, c.pgConn, func() ([]deadletter.Head, error) {
		var heads []deadletter.Head
		for _, l := range c.pg.letters {
			if l.heldBehind == 0 {
				heads = append(heads, deadletter.Head{ID: l.id, Aggregate: l.aggregate, Source: systemID + "/outbox", Position: l.event.position})
			}
		}
		return heads, nil
	})
	for _, h := range heads {
		each(h)
	}
	return err
}

// Count implements forwarder.Letters.
func (c pgLetters) Count(ctx context.Context, _ string) (deadletter.Counts, error) {
	return query(ctx, c.pgConn, func() (deadletter.Counts, error) {
		var n deadletter.Counts
		for _, l := range c.pg.letters {
			if l.heldBehind == 0 {
				n.Dead++
			} else {
				n.Held++
			}
		}
		return n, nil
	})
}

// Insert implements forwarder.Letters.
func (c pgLetters) Insert(ctx context.Context, d deadletter.Draft) (deadletter.Receipt, error) {
	return query(ctx, c.pgConn, func() (deadletter.Receipt, error) {
		pg := c.pg
		if pg.holder == nil || pg.holder.pid != d.WalsenderPID {
			return deadletter.Receipt{}, deadletter.ErrNotHolder
		}
		for _, l := range pg.letters {
			if l.event.position == d.Event.Position {
				return deadletter.Receipt{ID: l.id, StoredLSN: pg.walEndLSN}, nil
			}
		}
		id := string(d.Event.Value(decode.FieldEventID))
		e := pg.rows[id]
		if e == nil || e.position != d.Event.Position {
			c.w.failf("a dead letter for event %q at %s, which no row ever was", id, d.Event.Position)
			return deadletter.Receipt{}, errReset
		}
		l := &letter{id: pg.lettersMade + 1, at: time.Now(), event: e, heldBehind: d.HeldBehind}
		l.aggregate, _ = deadletter.AggregateOf(d.Event)
		if l.heldBehind != 0 && !slices.ContainsFunc(pg.letters, func(o *letter) bool { return o.id == l.heldBehind }) {
			return deadletter.Receipt{}, deadletter.ErrHeadResolved
		}
		t := pg.write(nil)
		l.commitLSN = t.commitLSN
		pg.lettersMade++
		pg.letters = append(pg.letters, l)
		c.w.tracef("postgres: %s makes event %.8s at %s dead letter %d (%s), held behind %d", c.p.name, id, e.position, l.id, d.ReasonCode, l.heldBehind)
		pg.onLetter(l)
		return deadletter.Receipt{ID: l.id, New: true, StoredLSN: pg.walEndLSN}, nil
	})
}
