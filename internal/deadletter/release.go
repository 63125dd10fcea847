package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/outbox-cdc/outbox-cdc/replication"
)

// Release says what became of an open letter that waits for no other, the head, and of the
// events behind it.
type Release struct {
	Head       int64
	Resolution string
	// Published are held ones that are in the stream now, the first ones.
	Published []int64
	// Stuck is the next held one, when it could not be published: it becomes the head of those
	// behind it. 0 when all were published.
	Stuck                  int64
	StuckCode, StuckReason string
	StuckOnceMore          bool // it is one attempt more
}

// errMore makes a transaction end without effect.
var errMore = errors.New("more events wait")

// Release resolves the head and what was published of those that wait for it, in one
// transaction with also. more is true, and nothing was done, when there are other events
// behind the head and none is stuck: they are to be published first. While it decides, no
// event can come to wait. It returns ErrHeadResolved when the head is not open any more.
func (s *Store) Release(ctx context.Context, r Release, also func(replication.Tx) error) (more bool, err error) {
	err = s.admin.InTransaction(ctx, func(tx replication.Tx) error {
		if err := durable(ctx, tx); err != nil {
			return err
		}
		open, err := tx.Lookup(ctx, []any{new(int64)}, s.sql(`SELECT id FROM {table} WHERE id = $1 AND resolved_at IS NULL FOR UPDATE`), r.Head)
		if err != nil {
			return err
		}
		if !open {
			return ErrHeadResolved
		}
		if err := s.settleHeld(ctx, tx, r); err != nil {
			return err
		}
		if err := tx.ExecArgs(ctx, s.sql(`UPDATE {table} SET resolved_at = clock_timestamp(), resolution = $2::text WHERE id = $1`),
			r.Head, column(r.Resolution)); err != nil {
			return err
		}
		return also(tx)
	})
	switch {
	case errors.Is(err, errMore):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("release what waits behind dead letter %d: %w", r.Head, err)
	}
	return false, nil
}

// settleHeld resolves those that were published, and lets the others wait for the one that
// is stuck.
func (s *Store) settleHeld(ctx context.Context, tx replication.Tx, r Release) error {
	err := tx.ExecArgs(ctx, s.sql(`UPDATE {table} SET resolved_at = clock_timestamp(), resolution = $2::text
		WHERE id = ANY ($1::bigint[]) AND resolved_at IS NULL`), r.Published, ResolutionRetried)
	if err != nil {
		return err
	}
	if r.Stuck == 0 {
		var waits bool
		_, err := tx.Lookup(ctx, []any{&waits}, s.sql(`SELECT EXISTS (SELECT FROM {table} WHERE held_behind = $1 AND resolved_at IS NULL)`), r.Head)
		if err == nil && waits {
			return errMore
		}
		return err
	}
	attempts := 0
	if r.StuckOnceMore {
		attempts = 1
	}
	if err := tx.ExecArgs(ctx, s.sql(`UPDATE {table} SET held_behind = NULL, attempts = attempts + $2::int, reason_code = $3::text, reason = $4::text WHERE id = $1`),
		r.Stuck, int32(attempts), r.StuckCode, column(r.StuckReason)); err != nil {
		return err
	}
	return tx.ExecArgs(ctx, s.sql(`UPDATE {table} SET held_behind = $2::bigint, reason = $3::text WHERE held_behind = $1 AND resolved_at IS NULL`),
		r.Head, r.Stuck, HeldReason(r.Stuck))
}

// HeldReason is the reason of an event that waits behind a letter.
func HeldReason(head int64) string {
	return "waits behind dead letter " + strconv.FormatInt(head, 10) + " of its aggregate"
}
