package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// Config says what is compared, and how.
type Config struct {
	provision.Names
	Stream string
	Source string // name of the outbox in the stream, with any system identifier
	Filter Filter
	// IncludeAgedOut counts rows as missing that are older than what the stream holds.
	IncludeAgedOut bool
	// NeedLetters refuses to compare where dead letters cannot be read: what is missing may
	// be one that was discarded.
	NeedLetters bool
	// Settle is how long the slot may take to confirm what is in the table now.
	Settle time.Duration

	// Note, if set, takes what a person has to know to read the document.
	Note func(text string)
	// Warn, if set, takes why the document may say more than is so.
	Warn func(text string)
	// Progress, if set, is called often: what is done, how much of it, of how much (0: not known).
	Progress func(what string, done, total uint64)
}

// Servers are the connections that a comparison needs. Its statements go over both of
// the first two at the same time.
type Servers struct {
	Table *replication.Admin
	Slot  *replication.Admin
	NATS  *sink.Client
}

// Result is the outcome of a comparison. It holds files until Close.
type Result struct {
	Document

	rows    rowList
	missing bitmap
}

// Close frees the files.
func (r *Result) Close() error { return r.rows.close() }

// Replace takes over what a later comparison found, and frees the files of this one.
func (r *Result) Replace(later *Result) error {
	err := r.Close()
	*r = *later
	return err
}

// EachMissing calls each with the event id of every missing row that has one, in the
// order of the table.
func (r *Result) EachMissing(each func(eventID string) error) error {
	return r.rows.each(&r.missing, func(_ uint64, found row) error {
		if len(found.id) == 0 {
			return nil
		}
		return each(string(found.id))
	})
}

// verification is one comparison under way.
type verification struct {
	cfg     Config
	servers Servers
	pg      provision.Postgres
	stream  sink.StreamStatus
	query   tableQuery

	keys keyer
	comparison
	result  *Result
	highest map[string]newest // by source

	snapshotAt    int64 // by the server's clock, in microseconds
	snapshotTaken time.Time
	// What is committed at snapshotLSN or behind it, on this timeline, is not in the snapshot.
	snapshotLSN pglogrepl.LSN
	timeline    uint32
	markLSN     pglogrepl.LSN
	scannedSeq  uint64 // up to where the stream was read
	oldestAt    int64  // when its oldest message was stored, in microseconds
	hasLetters  bool   // dead letters can be read
	// unsettled says that the slot had not confirmed all in time: then what it may have
	// yet to send is told by transaction.
	unsettled   bool
	catalogXmin uint32
}

// newest is the message with the highest position so far.
type newest struct {
	position decode.Position
	sequence uint64
}

// Verify compares the table with the stream. The caller closes the result. The error is
// for a person where one must act: no table, no stream, a stream that forgets what was consumed, no
// rights.
func Verify(ctx context.Context, servers Servers, cfg Config) (*Result, error) {
	v := &verification{cfg: cfg, servers: servers, result: &Result{}}
	v.filtered = !cfg.Filter.Empty()
	err := v.run(ctx)
	if err = errors.Join(err, v.comparison.close()); err != nil {
		return nil, errors.Join(err, v.result.Close())
	}
	return v.result, nil
}

func (v *verification) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{
		v.look, v.lookAtLetters, v.readTable, v.settle, v.readDeadLetters, v.readStream, v.judge,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (v *verification) note(format string, args ...any) {
	if v.cfg.Note != nil {
		v.cfg.Note(fmt.Sprintf(format, args...))
	}
}

// progressEvery is how many rows or messages lie between two reports.
const progressEvery = 1 << 14

func (v *verification) progress(what string, done, total uint64) {
	if v.cfg.Progress != nil && done > 0 && done%progressEvery == 0 {
		v.cfg.Progress(what, done, total)
	}
}

// look finds out whether the two sides can be compared at all.
func (v *verification) look(ctx context.Context) error {
	var err error
	if v.pg, err = provision.Inspect(ctx, v.servers.Table, v.cfg.Names); err != nil {
		return err //nolint:wrapcheck // it names what was looked for
	}
	switch t := v.pg.Table; {
	case t == nil:
		return fault.NewOperator("table-missing", fmt.Sprintf("table %s does not exist in database %s: there is nothing to compare the stream with", v.cfg.Table, v.pg.Server.Database),
			"give --table the outbox table; outbox-cdc setup creates it", nil)
	case !t.Selectable:
		return fault.NewOperator("table-rights", fmt.Sprintf("role %s may not read table %s", v.pg.Server.Role, v.cfg.Table),
			fmt.Sprintf("GRANT SELECT ON %s TO %s", v.cfg.Table, decode.QuoteIdentifier(v.pg.Server.Role)), nil)
	case v.pg.Server.InRecovery:
		return fault.NewTransient("the server is a standby (in recovery)", "give --database-url the primary, or all hosts separated by commas", nil)
	}
	if v.query, err = newTableQuery(v.pg, v.cfg.Names, v.cfg.Filter); err != nil {
		return err
	}
	if s := v.pg.Slot; s != nil && !s.Lost() {
		if err := provision.SlotFault(v.pg, v.cfg.Names); err != nil {
			return err //nolint:wrapcheck // it is the user's sentence already
		}
	}
	return v.lookAtStream(ctx)
}

func (v *verification) lookAtStream(ctx context.Context) error {
	s, err := v.servers.NATS.StreamStatus(ctx, v.cfg.Stream)
	switch {
	case err != nil:
		return err //nolint:wrapcheck // it names the stream
	case !s.Exists:
		return fault.NewOperator("stream-missing", fmt.Sprintf("stream %s does not exist", v.cfg.Stream),
			"give --stream the stream of this outbox; outbox-cdc stream create makes it", nil)
	case s.Retention != "limits":
		return fault.NewOperator("stream-retention", fmt.Sprintf("stream %s has %s retention: it forgets what was consumed, so that it cannot be compared with the table", v.cfg.Stream, s.Retention),
			"use a stream with limits retention; outbox-cdc wait tells whether all is delivered", nil)
	}
	if s.MaxMsgsPerSubj > 0 {
		v.note("stream %s keeps %d messages of a subject: events that it dropped for that count as missing", v.cfg.Stream, s.MaxMsgsPerSubj)
	}
	v.stream = s
	return nil
}

// readTable takes a snapshot, marks the place in the WAL behind it, and keeps the rows.
func (v *verification) readTable(ctx context.Context) error {
	err := v.servers.Table.InTransaction(ctx, func(tx replication.Tx) error {
		var err error
		if v.snapshotLSN, v.timeline, err = readWALPlace(ctx, v.servers.Slot); err != nil {
			return err
		}
		if v.snapshotAt, err = prepareSnapshot(ctx, tx); err != nil {
			return err
		}
		v.snapshotTaken = time.Now()
		if v.markLSN, err = Mark(ctx, v.servers.Slot); err != nil {
			return err
		}
		return v.query.eachRow(ctx, tx, func(r row, selected bool) error {
			place := v.result.rows.count
			v.progress("rows read", place, 0)
			if err := v.addRow(&v.keys, r.id, place, selected); err != nil {
				return err
			}
			return v.result.rows.add(r)
		})
	})
	if err != nil {
		return fmt.Errorf("read table %s: %w", v.cfg.Table, err)
	}
	return nil
}
