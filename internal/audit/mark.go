package audit

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/replication"
)

// markPrefix is the prefix of our logical messages. It is not that of events, so that
// no forwarder takes one for an event.
const markPrefix = "outbox-cdc"

// lookEvery is the time between two looks at the slot while it is waited for.
const lookEvery = 50 * time.Millisecond

// Mark writes a logical message without content and returns where it ends in the WAL.
// What was committed before the call lies before it; once the slot has confirmed it, all
// that is delivered or a dead letter. It needs a server that takes writes.
func Mark(ctx context.Context, admin *replication.Admin) (pglogrepl.LSN, error) {
	var text string
	err := admin.InTransaction(ctx, func(tx replication.Tx) error {
		// The position must be durable before it is waited for, whatever the role or the
		// database sets; copies on standbys are of no concern.
		if err := tx.Exec(ctx, "SET LOCAL synchronous_commit = 'local'"); err != nil {
			return err
		}
		_, err := tx.Lookup(ctx, []any{&text}, "SELECT pg_logical_emit_message(true, $1::text, ''::text)::text", markPrefix)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("write a mark into the WAL: %w", err)
	}
	lsn, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return 0, fmt.Errorf("read position of the mark: %w", err)
	}
	return lsn, nil
}

// readWALPlace returns where the server writes now, and on which timeline.
func readWALPlace(ctx context.Context, admin *replication.Admin) (pglogrepl.LSN, uint32, error) {
	var text, file string
	_, err := admin.Lookup(ctx, []any{&text, &file}, "SELECT pg_current_wal_insert_lsn()::text, pg_walfile_name(pg_current_wal_insert_lsn())")
	if err != nil {
		return 0, 0, fmt.Errorf("read end of WAL: %w", err)
	}
	lsn, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return 0, 0, fmt.Errorf("read end of WAL: %w", err)
	}
	const digits = 8 // of the timeline, in hexadecimal
	timeline, err := strconv.ParseUint(file[:min(digits, len(file))], 16, 32)
	if err != nil {
		return 0, 0, fmt.Errorf("read timeline: %w", err)
	}
	return lsn, uint32(timeline), nil
}

// confirmed is the position that a slot has confirmed; 0 when it has none.
func confirmed(s *replication.SlotInfo) pglogrepl.LSN {
	if s == nil || s.ConfirmedFlushLSN == nil {
		return 0
	}
	lsn, err := pglogrepl.ParseLSN(*s.ConfirmedFlushLSN)
	if err != nil {
		return 0 // the server wrote it: cannot happen
	}
	return lsn
}

// AwaitConfirmed waits until the slot has confirmed markLSN, until it has to end, or
// until stop says so at a look. It returns the slot as it was last seen, nil when it does not
// exist (any more), and whether the position was confirmed.
func AwaitConfirmed(ctx context.Context, admin *replication.Admin, slot string, markLSN pglogrepl.LSN, timeout time.Duration,
	stop func(*replication.SlotInfo) bool,
) (*replication.SlotInfo, bool, error) {
	end := time.NewTimer(timeout)
	defer end.Stop()
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	for last := false; ; {
		info, err := admin.Slot(ctx, slot)
		if err != nil {
			return nil, false, err //nolint:wrapcheck // it names the slot
		}
		if done := confirmed(info) >= markLSN; done || last || info == nil || info.Lost() || stop != nil && stop(info) {
			return info, done, nil
		}
		select {
		case <-ctx.Done():
			return info, false, ctx.Err()
		case <-end.C:
			last = true
		case <-again.C:
		}
	}
}
