package audit

import (
	"context"
	"fmt"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// settle waits until the slot has confirmed what is in the snapshot. Where no forwarder
// holds it, it reads what the slot has yet to send.
func (v *verification) settle(ctx context.Context) error {
	deadline := time.Now().Add(v.cfg.Settle)
	for {
		slot, done, err := AwaitConfirmed(ctx, v.servers.Slot, v.cfg.Slot, v.markLSN, time.Until(deadline),
			func(s *replication.SlotInfo) bool { return !s.Active })
		switch {
		case err != nil || done:
			return err
		case slot == nil:
			v.note("slot %s does not exist: all rows are compared without waiting", v.cfg.Slot)
			return nil
		case slot.Lost():
			v.note("slot %s is lost: all rows are compared without waiting", v.cfg.Slot)
			return nil
		case slot.Active:
			v.unsettled = true
			v.note("slot %s has not confirmed all within %s: rows that it may have yet to send are pending, not missing", v.cfg.Slot, v.cfg.Settle)
			return v.readCatalogXmin(slot)
		}
		err = EachUnconfirmed(ctx, v.servers.Slot, v.cfg.Names, v.markLSN, func(id []byte) error {
			return v.addSettled(&v.keys, id, unconfirmed)
		})
		if replication.SQLState(err) != objectInUse {
			return err
		}
		// A forwarder has come: wait for it.
	}
}

// objectInUse is the SQLSTATE of a slot that somebody holds.
const objectInUse = "55006"

func (v *verification) readCatalogXmin(slot *replication.SlotInfo) error {
	if slot.CatalogXmin == nil {
		return nil
	}
	if _, err := fmt.Sscan(*slot.CatalogXmin, &v.catalogXmin); err != nil {
		return fmt.Errorf("read catalog_xmin of slot %s: %w", slot.Name, err)
	}
	return nil
}

// mayBeSent tells whether the slot may have yet to send a row: only transactions that
// ended before it are older than its catalog_xmin.
func (v *verification) mayBeSent(r row) bool {
	return v.unsettled && int32(r.xmin-v.catalogXmin) >= 0
}

// lookAtLetters finds out whether dead letters can be read. Where they cannot, those that the
// stream lacks look like any other that is missing.
func (v *verification) lookAtLetters(ctx context.Context) error {
	table, err := v.servers.Slot.Table(ctx, v.cfg.Table.Schema, deadletter.Table)
	if err != nil {
		return err //nolint:wrapcheck // it names the table
	}
	name := decode.TableName{Schema: v.cfg.Table.Schema, Name: deadletter.Table}
	var what, fix, code string
	switch {
	case table == nil:
		what, fix, code = fmt.Sprintf("table %s does not exist", name), provision.DeadLetterFix(v.cfg.Names, "42P01"), "dead-letter-table"
	case !table.Selectable:
		what, fix, code = fmt.Sprintf("role %s may not read %s", v.pg.Server.Role, name), provision.DeadLetterFix(v.cfg.Names, "42501"), "dead-letter-rights"
	default:
		v.hasLetters = true
		return nil
	}
	if v.cfg.NeedLetters {
		return fault.NewOperator(code, what+": what is missing may be a dead letter that was discarded, and is not published again unseen", fix, nil)
	}
	if v.cfg.Warn != nil {
		v.cfg.Warn(fmt.Sprintf("%s: dead letters could not be looked at, and count as missing (%s)", what, fix))
	}
	return nil
}

// readDeadLetters takes the events that are settled without being stored. A letter is
// stored before the slot's position passes it, so it is there by now.
func (v *verification) readDeadLetters(ctx context.Context) error {
	if !v.hasLetters {
		return nil
	}
	err := deadletter.NewStore(v.servers.Slot, v.cfg.Table.Schema).Each(ctx, deadletter.Filter{SourceName: v.cfg.Source}, func(l deadletter.Letter) error {
		switch {
		case l.Open() && l.HeldBehind == nil:
			v.result.DeadLetters++
		case l.Open():
			v.result.Held++
		case l.Resolution != nil && *l.Resolution == deadletter.ResolutionRetried:
			return nil // it is in the stream since
		}
		var id []byte
		if l.EventID != nil {
			id = []byte(*l.EventID)
		}
		return v.addSettled(&v.keys, id, deadLetter)
	})
	return err //nolint:wrapcheck // it says what was read
}
