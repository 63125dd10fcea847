package audit

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// Filter selects rows; what is not set selects all.
type Filter struct {
	Since, Until  time.Time // by occurred_at; Since is inclusive, Until exclusive
	HasAggregate  bool
	AggregateType string
	AggregateID   string
}

// Empty tells whether all rows are selected.
func (f Filter) Empty() bool { return f == Filter{} }

// tableQuery reads the whole table, since an event of a row that is not selected is
// not unknown.
type tableQuery struct {
	sql     string
	args    []any
	ordered bool // the rows come in the order in which they were inserted, more or less
	timed   bool // they have a time
}

// newTableQuery builds the query. The error is one for the user.
func newTableQuery(pg provision.Postgres, names provision.Names, f Filter) (tableQuery, error) {
	t := pg.Table
	id := t.Column(names.Columns.Column(decode.FieldEventID))
	if id == nil {
		return tableQuery{}, fault.NewOperator("column-missing", fmt.Sprintf("table %s has no column %s (mapped to event_id)", names.Table, names.Columns.Column(decode.FieldEventID)),
			"--columns event_id=COLUMN names it", nil)
	}
	occurredAt, timed := timeColumn(t, names)
	q := tableQuery{timed: timed}
	selected, err := q.selection(t, names, f, occurredAt)
	if err != nil {
		return tableQuery{}, err
	}
	if filter := rowFilter(pg, names); filter != "" {
		selected = append(selected, filter) // what is not published is never in the stream
	}
	q.sql = fmt.Sprintf("SELECT %s::text, %s, t.xmin::text::bigint, coalesce(%s, false) FROM %s t",
		column(id), epochOf(occurredAt), strings.Join(append(selected, "true"), " AND "), replication.QuoteName(t.Schema, t.Name))
	order := t.Column(names.Columns.Order())
	switch {
	case order != nil:
		q.sql += " ORDER BY " + column(order)
		q.ordered = true
	case timed:
		q.sql += " ORDER BY " + occurredAt
		q.ordered = true
	}
	return q, nil
}

func column(c *replication.ColumnInfo) string { return "t." + replication.QuoteName(c.Name) }

// timeColumn returns the column that says when a row's event happened, as SQL.
func timeColumn(t *replication.TableInfo, names provision.Names) (string, bool) {
	c := t.Column(names.Columns.Column(decode.FieldOccurredAt))
	if c == nil {
		return "", false
	}
	switch decode.KindOfOID(c.TypeOID) {
	case decode.KindTimestampTZ, decode.KindTimestamp, decode.KindDate:
		return column(c) + "::timestamptz", true
	default:
		return "", false
	}
}

func epochOf(occurredAt string) string {
	if occurredAt == "" {
		return "NULL::float8"
	}
	return "(extract(epoch FROM " + occurredAt + ") * 1000000)::float8"
}

// selection returns the conditions of a filter, and adds their values to the arguments.
func (q *tableQuery) selection(t *replication.TableInfo, names provision.Names, f Filter, occurredAt string) ([]string, error) {
	var conditions []string
	add := func(format, value string) {
		q.args = append(q.args, value)
		conditions = append(conditions, fmt.Sprintf(format, len(q.args)))
	}
	if !f.Since.IsZero() || !f.Until.IsZero() {
		if occurredAt == "" {
			return nil, fault.NewUsage(fmt.Sprintf("table %s has no time by which rows could be selected", names.Table),
				"leave out --since and --until, or name a column with a time: --columns occurred_at=COLUMN")
		}
		if !f.Since.IsZero() {
			add(occurredAt+" >= $%d::text::timestamptz", f.Since.UTC().Format(time.RFC3339Nano))
		}
		if !f.Until.IsZero() {
			add(occurredAt+" < $%d::text::timestamptz", f.Until.UTC().Format(time.RFC3339Nano))
		}
	}
	if f.HasAggregate {
		for _, part := range []struct {
			field decode.Field
			value string
		}{{decode.FieldAggregateType, f.AggregateType}, {decode.FieldAggregateID, f.AggregateID}} {
			c := t.Column(names.Columns.Column(part.field))
			if c == nil {
				return nil, fault.NewUsage(fmt.Sprintf("table %s has no column for %s", names.Table, part.field),
					fmt.Sprintf("leave out --aggregate, or name the column: --columns %s=COLUMN", part.field))
			}
			add(column(c)+"::text = $%d::text", part.value)
		}
	}
	return conditions, nil
}

// rowFilter is the publication's condition on the rows of the table, as SQL.
func rowFilter(pg provision.Postgres, names provision.Names) string {
	if pg.Publication == nil {
		return ""
	}
	entry := pg.Publication.Find(names.Table.Schema, names.Table.Name)
	if entry == nil || entry.RowFilter == nil {
		return ""
	}
	return "(" + *entry.RowFilter + ")"
}

// prepareSnapshot makes the transaction one that sees the table as it is now, all of it,
// for as long as that takes.
func prepareSnapshot(ctx context.Context, tx replication.Tx) (now int64, err error) {
	// Rows that a policy hides would be taken for rows that are gone.
	err = tx.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY;
		SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL row_security = off`)
	if err != nil {
		return 0, err
	}
	var seconds float64
	var encoding string
	if _, err := tx.Lookup(ctx, []any{&seconds, &encoding}, "SELECT extract(epoch FROM clock_timestamp())::float8, current_setting('server_encoding')"); err != nil {
		return 0, err
	}
	if encoding == "SQL_ASCII" { // any bytes may be there: they are compared as they are
		err = tx.Exec(ctx, "SET LOCAL client_encoding = 'SQL_ASCII'")
	}
	return int64(seconds * 1e6), err
}

// eachRow reads the rows.
func (q *tableQuery) eachRow(ctx context.Context, tx replication.Tx, each func(r row, selected bool) error) error {
	var id *string
	var micros *float64
	var xmin int64
	var selected bool
	return tx.Each(ctx, []any{&id, &micros, &xmin, &selected}, func() error {
		r := row{occurredAt: noTime, xmin: uint32(xmin)}
		if id != nil {
			r.id = []byte(*id)
		}
		if micros != nil {
			r.occurredAt = toMicros(*micros)
		}
		return each(r, selected)
	}, q.sql, q.args...)
}

// toMicros reads a time that may be infinite.
func toMicros(micros float64) int64 {
	switch {
	case micros >= math.MaxInt64:
		return noTime
	case micros <= math.MinInt64:
		return never
	default:
		return int64(micros)
	}
}

// aggregatesOf looks up the aggregates of rows by their event ids.
func aggregatesOf(ctx context.Context, admin *replication.Admin, t *replication.TableInfo, names provision.Names, ids []string) (map[string]string, error) {
	id, aggregate := t.Column(names.Columns.Column(decode.FieldEventID)), t.Column(names.Columns.Column(decode.FieldAggregateID))
	if len(ids) == 0 || id == nil || aggregate == nil {
		return nil, nil
	}
	of := map[string]string{}
	var text, value string
	err := admin.Each(ctx, []any{&text, &value}, func() error {
		of[text] = value
		return nil
	}, fmt.Sprintf("SELECT %[1]s::text, coalesce(%[2]s::text, '') FROM %[3]s t WHERE %[1]s::text = ANY ($1::text[])",
		column(id), column(aggregate), replication.QuoteName(t.Schema, t.Name)), ids)
	if err != nil {
		return nil, fmt.Errorf("look up aggregates in %s: %w", names.Table, err)
	}
	return of, nil
}
