package provision

import (
	"context"
	"fmt"
	"strings"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// undelivered looks for the oldest row that is not in the stream yet, by what the
// catalog and the stream's newest event tell, so that it works without a running forwarder.
type undelivered struct {
	table       *replication.TableInfo
	slot        *replication.SlotInfo // nil when missing
	columns     decode.Mapping
	deadLetters *replication.TableInfo // nil when missing
	lastEventID string                 // of the newest event in the stream; empty when unknown
}

// undeliveredTimeout bounds the search: the table may be huge and without indexes.
const undeliveredTimeout = "5s"

// seconds returns the age of the oldest such row, by commit time where
// track_commit_timestamp is on, else by the row's own time. It is nil when all is delivered or nothing can be said.
//
// A row counts when the slot may still stream it (its transaction is not older than the
// slot's catalog_xmin, which trails by some seconds) and it comes after the newest event
// in the stream by the order column (without one: by transaction id). Transactions that overlap may be
// missed until the newest event has passed them; the slot itself misses none.
func (u undelivered) seconds(ctx context.Context, admin *replication.Admin) (*float64, error) {
	if u.slot == nil && u.lastEventID == "" {
		return nil, nil
	}
	if u.slot != nil && u.slot.LagBytes != nil && *u.slot.LagBytes <= 0 {
		return nil, nil
	}
	if u.timeExpression() == "" || u.table.Column(u.columns.Column(decode.FieldEventID)) == nil {
		return nil, nil
	}
	var seconds *float64
	err := admin.InTransaction(ctx, func(tx replication.Tx) error {
		if err := tx.Exec(ctx, "SET LOCAL statement_timeout = '"+undeliveredTimeout+"'"); err != nil {
			return err
		}
		var newest *string
		if u.lastEventID != "" {
			if _, err := tx.Lookup(ctx, []any{&newest}, u.newestSQL(), u.lastEventID); err != nil {
				return err
			}
		}
		sql, args := u.oldestSQL(newest)
		_, err := tx.Lookup(ctx, []any{&seconds}, sql, args...)
		return err
	})
	switch state := replication.SQLState(err); {
	case err == nil:
		return seconds, nil
	case state == stateCancelled && ctx.Err() == nil, strings.HasPrefix(state, "22"):
		return nil, nil
	default:
		return nil, fmt.Errorf("look for the oldest undelivered row: %w", err)
	}
}

// newestSQL finds where the stream's newest event stands in the table: its value of the
// order column, else its transaction id. $1 is the event id.
func (u undelivered) newestSQL() string {
	eventID := u.table.Column(u.columns.Column(decode.FieldEventID))
	place := "xmin"
	if order := u.orderColumn(); order != nil {
		place = replication.QuoteName(order.Name)
	}
	return fmt.Sprintf("SELECT %s::text FROM %s WHERE %s = $1::text::%s ORDER BY 1 DESC LIMIT 1",
		place, replication.QuoteName(u.table.Schema, u.table.Name), replication.QuoteName(eventID.Name), eventID.Type)
}

func (u undelivered) orderColumn() *replication.ColumnInfo {
	if name := u.columns.Order(); name != "" {
		return u.table.Column(name)
	}
	return nil
}

// oldestSQL finds the oldest row after that place; nil when the place is not known.
func (u undelivered) oldestSQL(newest *string) (sql string, args []any) {
	conditions := []string{"true"}
	if u.slot != nil && u.slot.CatalogXmin != nil {
		args = append(args, *u.slot.CatalogXmin)
		conditions = append(conditions, fmt.Sprintf("age(t.xmin) <= age($%d::text::xid)", len(args)))
	}
	order := u.orderColumn()
	if newest != nil {
		args = append(args, *newest)
		if order != nil {
			conditions = append(conditions, fmt.Sprintf("t.%s > $%d::text::%s", replication.QuoteName(order.Name), len(args), order.Type))
		} else {
			conditions = append(conditions, fmt.Sprintf("age(t.xmin) < age($%d::text::xid)", len(args)))
		}
	}
	if u.deadLetters != nil && u.deadLetters.Selectable {
		conditions = append(conditions, fmt.Sprintf("NOT EXISTS (SELECT 1 FROM %s d WHERE d.event_id = t.%s::text)",
			replication.QuoteName(u.deadLetters.Schema, u.deadLetters.Name), replication.QuoteName(u.columns.Column(decode.FieldEventID))))
	}
	from := fmt.Sprintf("FROM %s t WHERE %s", replication.QuoteName(u.table.Schema, u.table.Name), strings.Join(conditions, " AND "))
	if order != nil {
		return fmt.Sprintf("SELECT extract(epoch FROM clock_timestamp() - %s)::float8 %s ORDER BY t.%s LIMIT 1", u.timeExpression(), from, replication.QuoteName(order.Name)), args
	}
	return fmt.Sprintf("SELECT extract(epoch FROM clock_timestamp() - min(%s))::float8 %s", u.timeExpression(), from), args
}

// timeExpression is the row's commit time, else its own time, as SQL; empty when it has none.
func (u undelivered) timeExpression() string {
	own := "NULL::timestamptz"
	column := u.table.Column(u.columns.Column(decode.FieldOccurredAt))
	if column != nil {
		switch decode.KindOfOID(column.TypeOID) {
		case decode.KindTimestampTZ, decode.KindTimestamp, decode.KindDate:
			own = "t." + replication.QuoteName(column.Name) + "::timestamptz"
		default:
		}
	}
	return "coalesce(CASE WHEN current_setting('track_commit_timestamp')::bool THEN pg_xact_commit_timestamp(t.xmin) END, " + own + ")"
}
