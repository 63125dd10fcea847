package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// EachUnconfirmed calls each with the event id (as it stands in the row) of every event
// up to endLSN that the slot has not confirmed. The slot does not move. It is held while this
// goes on: one in use gives SQLSTATE 55006, and a forwarder that starts meanwhile
// stands by.
func EachUnconfirmed(ctx context.Context, admin *replication.Admin, names provision.Names, endLSN pglogrepl.LSN, each func(id []byte) error) error {
	needs := provision.NeededColumns(names.Columns, names.Subject)
	decoder := decode.New(decode.Config{
		Table: names.Table, Mapping: names.Columns, Required: []decode.Field{decode.FieldEventID}, Messages: names.Messages,
		// Partitions have names of their own. What else the publication holds has ids of its
		// own, which no row of the outbox has.
		AcceptRelation: func(r decode.Relation) (bool, error) { return hasColumns(r, needs), nil },
	})
	args := []any{names.Slot, endLSN.String(), `"` + strings.ReplaceAll(names.Publication, `"`, `""`) + `"`}
	sql := "SELECT data FROM pg_logical_slot_peek_binary_changes($1::text::name, $2::text::pg_lsn, NULL, 'proto_version', '1', 'publication_names', $3::text"
	if names.Messages {
		sql += ", 'messages', 'true'"
	}
	var wal []byte
	err := admin.Each(ctx, []any{&wal}, func() error {
		change, err := decoder.Decode(wal)
		if err != nil || change.Kind != decode.ChangeEvent {
			return err
		}
		return each(change.Event.Value(decode.FieldEventID))
	}, sql+")", args...)
	if err != nil {
		return fmt.Errorf("read what slot %q has not confirmed: %w", names.Slot, err)
	}
	return nil
}

func hasColumns(r decode.Relation, needs []provision.Need) bool {
	for _, need := range needs {
		if !slices.ContainsFunc(r.Columns, func(c decode.Column) bool { return c.Name == need.Column }) {
			return false
		}
	}
	return true
}
