package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// Store reads and writes letters over one connection. It belongs to one goroutine. Errors
// keep the server's answer, for replication.SQLState.
type Store struct {
	admin *replication.Admin
	table string // quoted, with its schema
}

// NewStore returns the store of the letters beside the outboxes of a schema. The caller
// closes the connection.
func NewStore(admin *replication.Admin, schema string) *Store {
	return &Store{admin: admin, table: replication.QuoteName(schema, Table)}
}

// sql fills the table's name in.
func (s *Store) sql(text string) string { return strings.ReplaceAll(text, "{table}", s.table) }

// ofName chooses the letters of an outbox by the name in its source; $n is the name.
const ofName = `substr(l.source, strpos(l.source, '/') + 1) = `

const letterColumns = `l.id, l.source, l.position, l.event_id, l.aggregate_type, l.aggregate_id, l.subject, l.headers::text, l.reason_code, l.reason,
	l.attempts, l.held_behind, l.first_failed_at, l.dead_at, l.resolved_at, l.resolution`

// Each calls each with every letter of a filter, in the order in which they were stored,
// and ends at its first error. The connection is busy meanwhile: each must not use it.
func (s *Store) Each(ctx context.Context, f Filter, each func(Letter) error) error {
	where, args := f.where()
	query := "SELECT " + letterColumns + " FROM " + s.table + " l WHERE " + where + " ORDER BY l.id"
	if f.Limit > 0 {
		query += " LIMIT " + strconv.Itoa(f.Limit)
	}
	var l Letter
	var headers *string
	into := []any{
		&l.ID, &l.Source, &l.Position, &l.EventID, &l.AggregateType, &l.AggregateID, &l.Subject, &headers, &l.ReasonCode, &l.Reason,
		&l.Attempts, &l.HeldBehind, &l.FirstFailedAt, &l.DeadAt, &l.ResolvedAt, &l.Resolution,
	}
	err := s.admin.Each(ctx, into, func() error {
		l.Headers = nil
		if headers != nil {
			l.Headers = json.RawMessage(*headers)
		}
		l.FirstFailedAt, l.DeadAt = l.FirstFailedAt.UTC(), l.DeadAt.UTC()
		return each(l)
	}, query, args...)
	if err != nil {
		return fmt.Errorf("read dead letters: %w", err)
	}
	return nil
}

// List returns the letters of a filter, in the order in which they were stored.
func (s *Store) List(ctx context.Context, f Filter) ([]Letter, error) {
	list := []Letter{}
	err := s.Each(ctx, f, func(l Letter) error {
		list = append(list, l)
		return nil
	})
	return list, err
}

// where returns the filter as a condition on l with its arguments.
func (f Filter) where() (condition string, args []any) {
	conditions := []string{"true"}
	add := func(condition string, value any) {
		args = append(args, value)
		conditions = append(conditions, strings.ReplaceAll(condition, "$", "$"+strconv.Itoa(len(args))))
	}
	if f.SourceName != "" {
		add(ofName+"$::text", f.SourceName)
	}
	if len(f.IDs) > 0 {
		add("l.id = ANY ($::bigint[])", f.IDs)
	}
	if len(f.EventIDs) > 0 {
		add("l.event_id = ANY ($::text[])", f.EventIDs)
	}
	if f.Aggregate != (Aggregate{}) {
		add("coalesce(l.aggregate_type, '') = $::text", f.Aggregate.Type)
		add("l.aggregate_id = $::text", f.Aggregate.ID)
	}
	if f.ReasonCode != "" {
		add("l.reason_code = $::text", f.ReasonCode)
	}
	if f.HeldBehind != 0 {
		add("l.held_behind = $::bigint", f.HeldBehind)
	}
	if f.AfterID != 0 {
		add("l.id > $::bigint", f.AfterID)
	}
	if f.OpenOnly {
		conditions = append(conditions, "l.resolved_at IS NULL")
	}
	return strings.Join(conditions, " AND "), args
}

// Event returns the whole event of a letter. extras are the names of the extra columns of
// today's mapping. It is nil without error when there is no such letter.
func (s *Store) Event(ctx context.Context, id int64, extras []string) (*decode.Event, error) {
	var event, payload []byte
	found, err := s.admin.Lookup(ctx, []any{&event, &payload}, s.sql(`SELECT event, payload FROM {table} WHERE id = $1`), id)
	if err != nil {
		return nil, fmt.Errorf("read dead letter %d: %w", id, err)
	}
	if !found {
		return nil, nil
	}
	e, err := decodeEvent(event, payload, extras)
	if err != nil {
		return nil, fmt.Errorf("read dead letter %d: %w", id, err)
	}
	return e, nil
}

// Payload returns the bytes of a letter's payload; nil for NULL.
func (s *Store) Payload(ctx context.Context, id int64) ([]byte, error) {
	var payload []byte
	if _, err := s.admin.Lookup(ctx, []any{&payload}, s.sql(`SELECT payload FROM {table} WHERE id = $1`), id); err != nil {
		return nil, fmt.Errorf("read payload of dead letter %d: %w", id, err)
	}
	return payload, nil
}

// KnownMax is how many letters KnownAfter returns at the most.
const KnownMax = 10_000

// positionForm keeps what is no position of ours from being read as one.
const positionForm = `^[0-9]{1,10}:[0-9A-F]{1,8}/[0-9A-F]{1,8}:[0-9]{1,20}$`

// KnownAfter returns the letters of a source ("<system identifier>/<name>"), open or not,
// that stand for positions at or behind one, in the order of positions. There are more when
// there are KnownMax of them. storedLSN is an end of the WAL behind all their commits.
func (s *Store) KnownAfter(ctx context.Context, source string, from decode.Position) (known []Known, storedLSN pglogrepl.LSN, err error) {
	var id int64
	var position, eventID string
	err = s.admin.Each(ctx, []any{&id, &position, &eventID}, func() error {
		p, err := decode.ParsePosition(position)
		if err != nil {
			return err
		}
		known = append(known, Known{ID: id, Position: p, EventID: eventID})
		return nil
	}, s.sql(`
		WITH ours AS MATERIALIZED (
			SELECT id, position, coalesce(event_id, '') AS event_id FROM {table} WHERE source = $1::text AND position ~ $2::text),
		place AS MATERIALIZED (
			SELECT *, split_part(position, ':', 1)::bigint AS t, split_part(position, ':', 2)::pg_lsn AS l, split_part(position, ':', 3)::numeric AS n FROM ours)
		SELECT id, position, event_id FROM place WHERE (t, l, n) >= ($3::text::bigint, $4::text::pg_lsn, $5::text::numeric)
		ORDER BY t, l, n LIMIT `+strconv.Itoa(KnownMax)),
		source, positionForm, strconv.FormatUint(uint64(from.Timeline), 10), from.CommitLSN.String(), strconv.FormatUint(from.Ordinal, 10))
	if err != nil {
		return nil, 0, fmt.Errorf("read dead letters behind position %s: %w", from, err)
	}
	storedLSN, err = s.flushedLSN(ctx)
	return known, storedLSN, err
}

// Heads calls each with the open letters of an outbox that hold their aggregate, oldest
// first: those that wait for no other. each must not use the connection.
func (s *Store) Heads(ctx context.Context, sourceName string, each func(Head)) error {
	var h Head
	var position string
	err := s.admin.Each(ctx, []any{&h.ID, &h.Aggregate.Type, &h.Aggregate.ID, &h.Source, &position}, func() error {
		var err error
		if h.Position, err = decode.ParsePosition(position); err != nil {
			h.Position = decode.Position{} // written by somebody else: it holds all the same
		}
		each(h)
		return nil
	}, s.sql(`SELECT l.id, coalesce(l.aggregate_type, ''), l.aggregate_id, l.source, l.position FROM {table} l
		WHERE l.resolved_at IS NULL AND l.held_behind IS NULL AND l.aggregate_id IS NOT NULL AND `+ofName+`$1::text ORDER BY l.id`), sourceName)
	if err != nil {
		return fmt.Errorf("read dead letters that hold their aggregate: %w", err)
	}
	return nil
}

// Counts are the open letters of an outbox.
type Counts struct {
	Dead int64 // that wait for no other
	Held int64 // that wait behind one
}

// Count counts the open letters of an outbox.
func (s *Store) Count(ctx context.Context, sourceName string) (Counts, error) {
	var c Counts
	_, err := s.admin.Lookup(ctx, []any{&c.Dead, &c.Held}, s.sql(`SELECT count(*) FILTER (WHERE l.held_behind IS NULL), count(*) FILTER (WHERE l.held_behind IS NOT NULL)
		FROM {table} l WHERE l.resolved_at IS NULL AND `+ofName+`$1::text`), sourceName)
	if err != nil {
		return Counts{}, fmt.Errorf("count dead letters: %w", err)
	}
	return c, nil
}
