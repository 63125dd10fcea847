package request

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// column is a column of the table with what a domain is made of.
type column struct {
	replication.ColumnInfo
	baseType string // as SQL
	kind     decode.TypeKind
}

// layout says which columns of the table hold what.
type layout struct {
	fields    [decode.NumFields]*column // nil where the table has none
	extras    []*column
	order     *column // nil when nothing orders the rows
	rowFilter string  // of the publication, as SQL
	encoding  string  // in which texts come
}

func readLayout(ctx context.Context, admin *replication.Admin, o Outbox) (*layout, error) {
	table, err := admin.Table(ctx, o.Table.Schema, o.Table.Name)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the table
	}
	if table == nil {
		return nil, fault.NewOperator("table-missing", fmt.Sprintf("table %s does not exist", o.Table), "outbox-cdc setup creates it", nil)
	}
	l := &layout{}
	columns, err := readTypes(ctx, admin, table)
	if err != nil {
		return nil, err
	}
	var ascii bool
	_, err = admin.Lookup(ctx, []any{&ascii, &l.rowFilter}, `SELECT current_setting('server_encoding') = 'SQL_ASCII',
		coalesce((SELECT to_jsonb(p)->>'rowfilter' FROM pg_publication_tables p WHERE pubname = $1 AND schemaname = $2 AND tablename = $3), '')`,
		o.Publication, o.Table.Schema, o.Table.Name)
	if err != nil {
		return nil, fmt.Errorf("read publication %q: %w", o.Publication, err)
	}
	l.encoding = "UTF8"
	if ascii {
		l.encoding = "SQL_ASCII" // bytes as they are, as the slot sends them
	}
	for i := range decode.NumFields {
		l.fields[i] = columns[o.Columns.Column(decode.Field(i))]
	}
	if l.fields[decode.FieldEventID] == nil {
		_, err := l.need(decode.FieldEventID, "this command")
		return nil, err
	}
	for _, extra := range o.Columns.Extra() {
		c := columns[extra.Column]
		if c == nil {
			return nil, fault.NewOperator("column-missing", fmt.Sprintf("table %s has no column %s", o.Table, decode.QuoteIdentifier(extra.Column)), "correct --columns", nil)
		}
		l.extras = append(l.extras, c)
	}
	if l.order = columns[o.Columns.Order()]; l.order == nil {
		l.order = l.fields[decode.FieldOccurredAt]
	}
	return l, nil
}

// readTypes returns the table's columns by name. What is generated is not streamed, and so
// is no part of an event.
func readTypes(ctx context.Context, admin *replication.Admin, table *replication.TableInfo) (map[string]*column, error) {
	columns := map[string]*column{}
	for _, c := range table.Columns {
		if !c.Generated {
			columns[c.Name] = &column{ColumnInfo: c}
		}
	}
	var name, typeName, baseType string
	var oid uint32
	err := admin.Each(ctx, []any{&name, &oid, &typeName, &baseType}, func() error {
		c := columns[name]
		if c == nil {
			return nil
		}
		c.kind, c.baseType = decode.KindOfOID(oid), baseType
		if typeName == "citext" {
			c.kind = decode.KindText
		}
		return nil
	}, `
		WITH RECURSIVE t(name, oid, base, type) AS (
			SELECT a.attname::text, y.oid, y.typbasetype, y.typname::text FROM pg_attribute a JOIN pg_type y ON y.oid = a.atttypid
			WHERE a.attrelid = $1::oid AND a.attnum > 0 AND NOT a.attisdropped
			UNION ALL SELECT t.name, y.oid, y.typbasetype, y.typname::text FROM t JOIN pg_type y ON y.oid = t.base)
		SELECT name, oid, type, format_type(oid, -1) FROM t WHERE base = 0`, table.OID)
	if err != nil {
		return nil, fmt.Errorf("read columns of %s: %w", replication.QuoteName(table.Schema, table.Name), err)
	}
	return columns, nil
}

// need returns the column of a field, which what asks for it cannot do without.
func (l *layout) need(f decode.Field, what string) (*column, error) {
	if c := l.fields[f]; c != nil {
		return c, nil
	}
	return nil, fault.NewOperator("column-missing", fmt.Sprintf("%s: the table has no column for %s", what, f), fmt.Sprintf("name it with --columns %s=COLUMN", f), nil)
}

func (l *layout) orderNullable() bool { return l.order != nil && !l.order.NotNull }

// text is a column's value as the slot sends it, as SQL: format takes the output function
// of the type, where a cast to text would shorten some.
func (l *layout) text(c *column) string { return "format('%s', " + quoted(c) + ")" }

// bytes is the same as bytea, NULL where the value is.
func (l *layout) bytes(c *column) string {
	if c == nil {
		return "NULL::bytea"
	}
	return fmt.Sprintf("CASE WHEN %s IS NOT NULL THEN convert_to(%s, '%s') END", quoted(c), l.text(c), l.encoding)
}

// selected is what is read of each row, in the order of scan.into.
func (l *layout) selected(o Outbox) []string {
	id := l.text(l.fields[decode.FieldEventID])
	out := []string{
		"t.xmin::text::bigint", "NULL::text", id,
		o.dead(id),
	}
	if l.order != nil {
		out[1] = fmt.Sprintf("CASE WHEN %s IS NOT NULL THEN %s END", quoted(l.order), l.text(l.order))
	}
	for _, c := range l.fields {
		out = append(out, l.bytes(c))
	}
	for _, c := range l.extras {
		out = append(out, l.bytes(c))
	}
	return out
}

// dead is whether an open dead letter stands for the event with an id, as SQL.
func (o Outbox) dead(eventID string) string {
	return fmt.Sprintf("EXISTS (SELECT FROM %s d WHERE d.event_id = %s AND d.resolved_at IS NULL AND substr(d.source, strpos(d.source, '/') + 1) = '%s')",
		replication.QuoteName(o.Table.Schema, "outbox_dead_letter"), eventID, strings.ReplaceAll(o.SourceName, "'", "''"))
}

// scan takes rows.
type scan struct {
	xid    int64
	place  Place
	dead   bool
	values decode.Values
}

func newScan(l *layout) *scan {
	s := &scan{values: decode.Values{Extras: make([][]byte, len(l.extras))}}
	for i, c := range l.fields {
		if c != nil {
			s.values.Kinds[i] = c.kind
		}
	}
	return s
}

func (s *scan) into() []any {
	into := []any{&s.xid, &s.place.Order, &s.place.EventID, &s.dead}
	for i := range s.values.Fields {
		into = append(into, &s.values.Fields[i])
	}
	for i := range s.values.Extras {
		into = append(into, &s.values.Extras[i])
	}
	return into
}

// row returns the row that was scanned last. It owns its bytes.
func (s *scan) row(table decode.TableName) Row {
	return Row{Place: s.place, Event: decode.NewEvent(decode.Position{}, time.Time{}, table, s.values), XID: uint32(s.xid), Dead: s.dead}
}
