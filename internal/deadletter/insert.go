package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// Draft is an event that is to become a letter.
type Draft struct {
	Source  string // "<system identifier>/<name>"
	Event   *decode.Event
	Extras  []string // names of the mapping's extra columns, in the order of Event.Extra
	Subject string   // empty when it has none
	// ReasonCode and Reason say what is wrong, never with a payload in them.
	ReasonCode, Reason string
	Attempts           int
	FirstFailedAt      time.Time
	HeldBehind         int64 // id of the letter that it waits for; 0 for none
	// Slot and WalsenderPID are how the caller holds the slot. A process that was frozen while
	// another took the slot over stores nothing.
	Slot         string
	WalsenderPID uint32
}

// Receipt says what became of a draft.
type Receipt struct {
	ID int64
	// New is false when the position had a letter before: that one stands as it was.
	New bool
	// StoredLSN is an end of the WAL behind the letter's commit: a standby that has replayed
	// up to there has the letter.
	StoredLSN pglogrepl.LSN
}

// ErrHeadResolved says that the letter which an event was to wait for is no longer open, and
// that the event has no letter: nothing was stored.
var ErrHeadResolved = errors.New("the letter to wait for is resolved")

// ErrNotHolder says that the slot is no longer the caller's: nothing was stored.
var ErrNotHolder = errors.New("the slot is held by another process")

// Insert stores a letter in a transaction of its own, which is durable when it returns: on
// this server's disk at least, and on its synchronous standbys where it has any. A position
// that has a letter keeps it. It blocks until the server has answered or ctx ends; after an
// error the letter may or may not be there, and the same call again finds out.
func (s *Store) Insert(ctx context.Context, d Draft) (Receipt, error) {
	receipt, err := s.insert(ctx, d, column, headers(d.Event))
	if strings.HasPrefix(replication.SQLState(err), "22") {
		// A text that the encoding of this database does not have, or an object that jsonb
		// does not take. The event itself is kept as bytes either way.
		receipt, err = s.insert(ctx, d, asciiColumn, nil)
	}
	if err != nil {
		return Receipt{}, fmt.Errorf("store dead letter for position %s: %w", d.Event.Position, err)
	}
	return receipt, nil
}

// durable makes the commit of a transaction wait for the disk, or a crash of the server would
// forget it, and ends the transaction of a process that is frozen before its commit: it must
// not keep what it wrote to from its successor.
func durable(ctx context.Context, tx replication.Tx) error {
	_, err := tx.Lookup(ctx, []any{new(string), new(string)}, durableSQL)
	return err
}

const durableSQL = `SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('on', 'remote_apply')
	THEN current_setting('synchronous_commit') ELSE 'on' END, true), set_config('idle_in_transaction_session_timeout', '10s', true)`

// The position that has a letter is written to without a change: a transaction that writes
// nothing would not wait until the other one's commit is durable.
const insertSQL = `
	INSERT INTO {table} AS l (source, position, event_id, aggregate_type, aggregate_id, subject, headers, payload, event,
	                     reason_code, reason, attempts, held_behind, first_failed_at, dead_at)
	VALUES ($1::text, $2::text, $3::text, $4::text, $5::text, $6::text, $7::text::jsonb, $8::bytea, $9::bytea,
	        $10::text, $11::text, $12::int, $13::bigint, $14::timestamptz, clock_timestamp())
	ON CONFLICT (source, position) DO UPDATE SET reason_code = l.reason_code
	RETURNING id, xmax = 0`

func (s *Store) insert(ctx context.Context, d Draft, text func(string) string, headers *string) (Receipt, error) {
	var receipt Receipt
	kept, payload := encodeEvent(d.Event, d.Extras)
	value := func(f decode.Field) *string { return textOrNull(d.Event.Value(f), text) }
	var subject *string
	if d.Subject != "" {
		subject = textOrNull([]byte(d.Subject), text)
	}
	var heldBehind *int64
	if d.HeldBehind != 0 {
		heldBehind = &d.HeldBehind
	}
	err := s.admin.InTransaction(ctx, func(tx replication.Tx) error {
		if err := durable(ctx, tx); err != nil {
			return err
		}
		holds, err := tx.Lookup(ctx, []any{new(int)}, `SELECT 1 FROM pg_replication_slots WHERE slot_name = $1 AND active_pid = $2::bigint`, d.Slot, int64(d.WalsenderPID))
		if err != nil {
			return err
		}
		if !holds {
			return ErrNotHolder
		}
		if err := s.waitsFor(ctx, tx, d); err != nil {
			return err
		}
		_, err = tx.Lookup(ctx, []any{&receipt.ID, &receipt.New}, s.sql(insertSQL),
			d.Source, d.Event.Position.String(), value(decode.FieldEventID), value(decode.FieldAggregateType), value(decode.FieldAggregateID),
			subject, headers, payload, kept, d.ReasonCode, text(d.Reason), int32(d.Attempts), heldBehind, d.FirstFailedAt)
		return err
	})
	if err != nil {
		return Receipt{}, err
	}
	// A wait for a synchronous standby that was cancelled ends in success, with a warning.
	if err := ctx.Err(); err != nil {
		return Receipt{}, err
	}
	receipt.StoredLSN, err = s.flushedLSN(ctx)
	return receipt, err
}

// waitsFor returns ErrHeadResolved when the letter that a draft is to wait for is no longer
// open. The draft may be stored all the same, by a call whose answer was lost: then it was
// published with that letter, or is open behind another, and stands.
func (s *Store) waitsFor(ctx context.Context, tx replication.Tx, d Draft) error {
	if d.HeldBehind == 0 {
		return nil
	}
	// Whoever resolves the letter waits for us, or we see that it is resolved.
	open, err := tx.Lookup(ctx, []any{new(int64)}, s.sql(`SELECT id FROM {table} WHERE id = $1 AND resolved_at IS NULL FOR SHARE`), d.HeldBehind)
	if err != nil || open {
		return err
	}
	stored, err := tx.Lookup(ctx, []any{new(int64)}, s.sql(`SELECT id FROM {table} WHERE source = $1::text AND position = $2::text FOR SHARE`),
		d.Source, d.Event.Position.String())
	if err == nil && !stored {
		err = ErrHeadResolved
	}
	return err
}

// flushedLSN returns how far the WAL is on disk, which is behind each commit that returned.
func (s *Store) flushedLSN(ctx context.Context) (pglogrepl.LSN, error) {
	var text string
	if _, err := s.admin.Lookup(ctx, []any{&text}, `SELECT pg_current_wal_flush_lsn()::text`); err != nil {
		return 0, fmt.Errorf("read the end of the WAL: %w", err)
	}
	lsn, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return 0, fmt.Errorf("read the end of the WAL: %w", err)
	}
	return lsn, nil
}

func textOrNull(value []byte, text func(string) string) *string {
	if value == nil {
		return nil
	}
	s := text(string(value))
	return &s
}

// column returns a text as a text column takes it: without bytes that are not UTF-8, and
// without NUL, which values of logical messages may hold.
func column(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

// asciiColumn writes what is not ASCII as \u escapes.
func asciiColumn(s string) string {
	s = column(s)
	if strings.IndexFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
		return s
	}
	quoted := strconv.QuoteToASCII(s)
	return quoted[1 : len(quoted)-1]
}

// headers returns the headers column when it is an object that jsonb is likely to take.
func headers(e *decode.Event) *string {
	text := strings.TrimSpace(string(e.Value(decode.FieldHeaders)))
	if !strings.HasPrefix(text, "{") || !json.Valid([]byte(text)) {
		return nil
	}
	return &text
}
