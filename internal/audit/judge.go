package audit

import (
	"context"
	"time"
)

// judge compares what was read and writes the document.
func (v *verification) judge(ctx context.Context) error {
	if err := v.compare(); err != nil {
		return err
	}
	if err := v.compareAgain(ctx); err != nil {
		return err
	}
	d := &v.result.Document
	d.Checked, d.InStream, d.UnknownCount, d.PendingCount = v.checked, v.inStream, v.unknown, v.pending
	d.DuplicateCount, d.OrderInversionCount = v.duplicates.count, v.inversions.count
	d.Missing, d.Duplicates, d.OrderInversions = []Event{}, []Duplicate{}, []Inversion{}
	if err := v.judgeAbsent(); err != nil {
		return err
	}
	if err := v.nameListed(ctx); err != nil {
		return err
	}
	d.judge()
	return nil
}

// compareAgain reads the stream once more where messages are out of order and some have no
// row: which have none is known only now, and what was stored behind one of those need not be
// behind one that counts.
func (v *verification) compareAgain(ctx context.Context) error {
	if v.inversions.count == 0 || v.withoutRow.count == 0 {
		return nil
	}
	if err := v.forgetMessages(); err != nil {
		return err
	}
	if err := v.scanStream(ctx); err != nil {
		return err
	}
	return v.compare()
}

// judgeAbsent tells rows that are missing from those that are too old or have yet to be
// sent.
func (v *verification) judgeAbsent() error {
	d := &v.result.Document
	h := v.horizonOf()
	if v.stream.FirstSequence > 1 && !v.query.ordered && v.absent.count > 0 {
		v.note("table %s has neither an order column nor a time: rows older than what the stream holds count as missing", v.cfg.Table)
	}
	return v.result.rows.each(&v.absent, func(place uint64, r row) error {
		switch {
		case v.mayBeSent(r):
			d.PendingCount++
		case h.before(place, r) && !v.cfg.IncludeAgedOut:
			d.AgedOutCount++
		default:
			v.result.missing.add(place)
			d.MissingCount++
			if len(d.Missing) < listMax {
				d.Missing = append(d.Missing, Event{EventID: string(r.id)})
			}
		}
		return nil
	})
}

// keptSince is the time before which the stream has dropped messages by their age.
func (v *verification) keptSince() int64 {
	if v.stream.MaxAge <= 0 {
		return never
	}
	return v.snapshotAt + (time.Since(v.snapshotTaken) - v.stream.MaxAge).Microseconds()
}

// nameListed finds the ids of the events that are listed by their messages.
func (v *verification) nameListed(ctx context.Context) error {
	d := &v.result.Document
	for _, f := range v.duplicates.items {
		m, err := v.servers.NATS.MessageAt(ctx, v.cfg.Stream, f.sequences[0])
		if err != nil {
			return err //nolint:wrapcheck // it names the stream
		}
		entry := Duplicate{Sequences: f.sequences}
		if m != nil {
			entry.EventID = m.EventID
		}
		d.Duplicates = append(d.Duplicates, entry)
	}
	ids, err := v.idsOf(v.inversions.items)
	if err != nil {
		return err
	}
	var unnamed []string
	for _, f := range v.inversions.items {
		entry := Inversion{Sequences: f.sequences}
		m, err := v.servers.NATS.MessageAt(ctx, v.cfg.Stream, f.sequences[1])
		if err != nil {
			return err //nolint:wrapcheck // it names the stream
		}
		if m != nil {
			entry.AggregateID = m.AggregateID
		}
		if entry.AggregateID == "" && f.hasRow {
			unnamed = append(unnamed, ids[f.place])
		}
		d.OrderInversions = append(d.OrderInversions, entry)
	}
	of, err := aggregatesOf(ctx, v.servers.Table, v.pg.Table, v.cfg.Names, unnamed)
	if err != nil {
		return err
	}
	for i, f := range v.inversions.items {
		if e := &d.OrderInversions[i]; e.AggregateID == "" && f.hasRow {
			e.AggregateID = of[ids[f.place]]
		}
	}
	return nil
}

// idsOf returns the ids of rows by their places.
func (v *verification) idsOf(events []found) (map[uint64]string, error) {
	var places bitmap
	for _, f := range events {
		if f.hasRow {
			places.add(f.place)
		}
	}
	ids := map[uint64]string{}
	if places.count == 0 {
		return ids, nil
	}
	err := v.result.rows.each(&places, func(place uint64, r row) error {
		ids[place] = string(r.id)
		return nil
	})
	return ids, err
}
