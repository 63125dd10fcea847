package request

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

const (
	// pageStart is how many rows are asked for before the size of one is known.
	pageStart = 16
	pageMax   = 500
	// pageBytes is what a page may take in memory, roughly: a single row may be larger.
	pageBytes = 2 << 20
)

// Outbox is the table that rows are read of.
type Outbox struct {
	Table       decode.TableName
	Columns     decode.Mapping
	Publication string // its row filter says which rows are events
	SourceName  string // of the outbox, to know its dead letters
}

// Row is a row of the table as an event, with the zero position.
type Row struct {
	Place Place
	Event *decode.Event
	// XID is the transaction that wrote it, without its epoch.
	XID uint32
	// Dead says that an open dead letter stands for it.
	Dead bool
}

// Rows reads the rows that a selection means, in pages, in the order of the table: by the
// order column, else by the time of the rows; rows without one come last. It belongs to
// one goroutine.
type Rows struct {
	admin   *replication.Admin
	outbox  Outbox
	layout  *layout
	where   []string // conditions
	args    []any    // their parameters
	wanted  []string // the event ids of the selection
	limit   int
	eventID string // the event id's text, as SQL
}

// OpenRows looks the table up and checks that the selection can be asked of it.
func OpenRows(ctx context.Context, admin *replication.Admin, outbox Outbox, s Selection) (*Rows, error) {
	l, err := readLayout(ctx, admin, outbox)
	if err != nil {
		return nil, err
	}
	r := &Rows{admin: admin, outbox: outbox, layout: l, limit: pageStart, eventID: l.text(l.fields[decode.FieldEventID]), wanted: s.EventIDs}
	if l.rowFilter != "" {
		r.where = append(r.where, "("+l.rowFilter+")")
	}
	if len(s.EventIDs) > 0 {
		id := l.fields[decode.FieldEventID]
		r.add(fmt.Sprintf("%s = ANY ($::text[]::%s[])", quoted(id), id.baseType), s.EventIDs)
	}
	if s.Aggregate != nil {
		if err := r.addEqual(decode.FieldAggregateType, s.Aggregate.Type, "--aggregate"); err != nil {
			return nil, err
		}
		if err := r.addEqual(decode.FieldAggregateID, s.Aggregate.ID, "--aggregate"); err != nil {
			return nil, err
		}
	}
	if s.Since != nil {
		if err := r.addTime(">=", *s.Since, "--since"); err != nil {
			return nil, err
		}
	}
	if s.Until != nil {
		if err := r.addTime("<", *s.Until, "--until"); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// add adds a condition; $ stands for its parameter.
func (r *Rows) add(condition string, value any) {
	r.args = append(r.args, value)
	r.where = append(r.where, strings.ReplaceAll(condition, "$", fmt.Sprintf("$%d", len(r.args))))
}

func (r *Rows) addEqual(f decode.Field, value, flag string) error {
	c, err := r.layout.need(f, flag)
	if err == nil {
		r.add(fmt.Sprintf("%s = $::text::%s", quoted(c), c.baseType), value)
	}
	return err
}

func (r *Rows) addTime(operator string, at time.Time, flag string) error {
	c, err := r.layout.need(decode.FieldOccurredAt, flag)
	if err == nil {
		r.add(fmt.Sprintf("%s::timestamptz %s $::text::timestamptz", quoted(c), operator), at.UTC().Format("2006-01-02T15:04:05.999999999Z"))
	}
	return err
}

func quoted(c *column) string { return "t." + replication.QuoteName(c.Name) }

// from is the end of each query, from FROM on.
func (r *Rows) from(conditions ...string) string {
	all := append(slices.Clone(r.where), conditions...)
	if len(all) == 0 {
		all = []string{"true"}
	}
	return " FROM " + replication.QuoteName(r.outbox.Table.Schema, r.outbox.Table.Name) + " t WHERE " + strings.Join(all, " AND ")
}

// Count returns how many rows the selection means now. It reads the table.
func (r *Rows) Count(ctx context.Context) (int64, error) {
	var n int64
	if _, err := r.admin.Lookup(ctx, []any{&n}, "SELECT count(*)"+r.from(), r.args...); err != nil {
		return 0, r.failed(err)
	}
	return n, nil
}

// Missing returns those of the selection's event ids that no row has.
func (r *Rows) Missing(ctx context.Context) ([]string, error) {
	id := r.layout.fields[decode.FieldEventID]
	var missing []string
	var one string
	// Compared in the column's own type: a uuid may be written in several ways.
	err := r.admin.Each(ctx, []any{&one}, func() error {
		missing = append(missing, one)
		return nil
	}, fmt.Sprintf("SELECT given FROM unnest($1::text[]) given WHERE NOT EXISTS (SELECT FROM %s t WHERE %s = given::%s)",
		replication.QuoteName(r.outbox.Table.Schema, r.outbox.Table.Name), quoted(id), id.baseType), r.wanted)
	if err != nil {
		return nil, r.failed(err)
	}
	return missing, nil
}

func (r *Rows) failed(err error) error {
	if state := replication.SQLState(err); strings.HasPrefix(state, "22") { // what was given is no value of the column's type
		return fault.NewOperator("selection", fmt.Sprintf("select rows of table %s", r.outbox.Table), "give values of the columns' types", err)
	}
	return fmt.Errorf("read rows of table %s: %w", r.outbox.Table, err)
}

// Page returns the rows behind a place (nil: from the first on), at most some hundred.
// None are returned at the end. It blocks until the server has answered.
func (r *Rows) Page(ctx context.Context, after *Place) ([]Row, error) {
	rows, err := r.page(ctx, after, false)
	if err != nil || len(rows) > 0 || !r.layout.orderNullable() || after != nil && after.Order == nil {
		return rows, err
	}
	return r.page(ctx, nil, true) // those without an order
}

// LookForLetters notes for rows of a page whether an open dead letter stands for them now. It
// blocks until the server has answered.
func (r *Rows) LookForLetters(ctx context.Context, page []Row) error {
	ids := make([]string, 0, len(page))
	for _, row := range page {
		ids = append(ids, row.Place.EventID)
	}
	dead := map[string]bool{}
	var id string
	err := r.admin.Each(ctx, []any{&id}, func() error { dead[id] = true; return nil },
		"SELECT given FROM unnest($1::text[]) given WHERE "+r.outbox.dead("given"), ids)
	if err != nil {
		return fmt.Errorf("look for dead letters of table %s: %w", r.outbox.Table, err)
	}
	for i := range page {
		page[i].Dead = dead[page[i].Place.EventID]
	}
	return nil
}

// page reads one page; withoutOrder begins with the rows whose order is NULL.
func (r *Rows) page(ctx context.Context, after *Place, withoutOrder bool) ([]Row, error) {
	conditions, order, args := r.behind(after, withoutOrder)
	var rows []Row
	var bytes int64
	scan := newScan(r.layout)
	err := r.admin.Each(ctx, scan.into(), func() error {
		row := scan.row(r.outbox.Table)
		bytes += int64(row.Event.Size())
		rows = append(rows, row)
		return nil
	}, fmt.Sprintf("SELECT %s%s ORDER BY %s LIMIT %d", strings.Join(r.layout.selected(r.outbox), ", "), r.from(conditions...), order, r.limit), args...)
	if err != nil {
		return nil, r.failed(err)
	}
	if len(rows) > 0 {
		mean := max(1, bytes/int64(len(rows)))
		r.limit = int(min(pageMax, max(1, pageBytes/mean)))
	}
	return rows, nil
}

// behind returns the conditions that rows behind a place meet, and the order.
func (r *Rows) behind(after *Place, withoutOrder bool) (conditions []string, order string, args []any) {
	args = slices.Clone(r.args)
	parameter := func(value, kind string) string {
		args = append(args, value)
		return fmt.Sprintf("$%d::text%s", len(args), kind)
	}
	id := r.eventID + ` COLLATE "C"`
	c := r.layout.order
	switch {
	case c == nil, withoutOrder, after != nil && after.Order == nil:
		if c != nil {
			conditions = append(conditions, quoted(c)+" IS NULL")
		}
		if after != nil {
			conditions = append(conditions, id+" > "+parameter(after.EventID, ""))
		}
		return conditions, id, args
	case after != nil:
		conditions = append(conditions, fmt.Sprintf("(%s, %s) > (%s, %s)", quoted(c), id,
			parameter(*after.Order, "::"+c.baseType), parameter(after.EventID, "")))
	case !c.NotNull:
		conditions = append(conditions, quoted(c)+" IS NOT NULL")
	}
	return conditions, quoted(c) + ", " + id, args
}
