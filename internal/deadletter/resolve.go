package deadletter

import (
	"context"
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/replication"
)

// The resolutions. A discarded one is followed by the reason text.
const (
	ResolutionRetried   = "retried"
	ResolutionDiscarded = "discarded: "
)

// Resolve notes in one transaction what was decided about letters. Those that are resolved
// already stay as they are; it returns how many were not.
func (s *Store) Resolve(ctx context.Context, resolution string, ids ...int64) (int, error) {
	resolved := 0
	err := s.admin.InTransaction(ctx, func(tx replication.Tx) error {
		resolved = 0
		return tx.Each(ctx, []any{new(int64)}, func() error { resolved++; return nil },
			s.sql(`UPDATE {table} SET resolved_at = clock_timestamp(), resolution = $1::text
				WHERE id = ANY ($2::bigint[]) AND resolved_at IS NULL RETURNING id`), resolution, ids)
	})
	if err != nil {
		return 0, fmt.Errorf("resolve dead letters: %w", err)
	}
	return resolved, nil
}

// Refuse notes that a letter could not be delivered once more, and why. It stays open.
func (s *Store) Refuse(ctx context.Context, id int64, reasonCode, reason string) error {
	err := s.admin.InTransaction(ctx, func(tx replication.Tx) error {
		return tx.ExecArgs(ctx, s.sql(`UPDATE {table} SET attempts = attempts + 1, reason_code = $2::text, reason = $3::text
			WHERE id = $1 AND resolved_at IS NULL`), id, reasonCode, column(reason))
	})
	if err != nil {
		return fmt.Errorf("note another attempt at dead letter %d: %w", id, err)
	}
	return nil
}

// Discarded says what became of a letter that was to be discarded.
type Discarded struct {
	Done bool // false also when it was resolved before
	// Held is how many events wait for it: then nothing was done, since they are to be
	// published first, by the holder of the slot.
	Held int
}

// Discard resolves a letter that nothing waits for. While it decides, no event can come to
// wait for the letter.
func (s *Store) Discard(ctx context.Context, id int64, reason string) (Discarded, error) {
	var d Discarded
	err := s.admin.InTransaction(ctx, func(tx replication.Tx) error {
		d = Discarded{}
		open, err := tx.Lookup(ctx, []any{new(int64)}, s.sql(`SELECT id FROM {table} WHERE id = $1 AND resolved_at IS NULL FOR UPDATE`), id)
		if err != nil || !open {
			return err
		}
		if _, err := tx.Lookup(ctx, []any{&d.Held}, s.sql(`SELECT count(*)::int FROM {table} WHERE held_behind = $1 AND resolved_at IS NULL`), id); err != nil || d.Held > 0 {
			return err
		}
		d.Done = true
		return tx.ExecArgs(ctx, s.sql(`UPDATE {table} SET resolved_at = clock_timestamp(), resolution = $2::text WHERE id = $1`),
			id, ResolutionDiscarded+column(reason))
	})
	if err != nil {
		return Discarded{}, fmt.Errorf("discard dead letter %d: %w", id, err)
	}
	return d, nil
}
