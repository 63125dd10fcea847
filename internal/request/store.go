package request

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/replication"
)

// Submit stores a request, wakes the forwarder and returns the request's id.
func (s Store) Submit(ctx context.Context, admin *replication.Admin, kind Kind, selection Selection) (int64, error) {
	text, err := json.Marshal(selection)
	if err != nil {
		return 0, fmt.Errorf("submit %s request: %w", kind, err)
	}
	var id int64
	err = admin.InTransaction(ctx, func(tx replication.Tx) error {
		_, err := tx.Lookup(ctx, []any{&id},
			"INSERT INTO "+s.table+" (kind, selection) VALUES ($1, $2::text::jsonb) RETURNING id", string(kind), string(text))
		if err != nil {
			return err
		}
		return tx.ExecArgs(ctx, "SELECT pg_notify($1, $2)", Channel, selection.Slot)
	})
	if err != nil {
		return 0, fmt.Errorf("submit %s request: %w", kind, err)
	}
	return id, nil
}

const columns = "id, kind, selection::text, state, coalesce(progress, '{}')::text, requested_at, finished_at, coalesce(error, '')"

// Get reads a request; nil without error means that there is none of that id.
func (s Store) Get(ctx context.Context, admin *replication.Admin, id int64) (*Request, error) {
	return s.one(ctx, admin, "SELECT "+columns+" FROM "+s.table+" WHERE id = $1", id)
}

// Waiting tells whether there is an unfinished request for the holder of a slot.
func (s Store) Waiting(ctx context.Context, admin *replication.Admin, slot string) (bool, error) {
	var waiting bool
	_, err := admin.Lookup(ctx, []any{&waiting},
		"SELECT EXISTS (SELECT FROM "+s.table+" WHERE finished_at IS NULL AND selection->>'slot' = $1)", slot)
	if err != nil {
		return false, fmt.Errorf("look for requests: %w", err)
	}
	return waiting, nil
}

// Next takes the oldest unfinished request for the holder of a slot, also from a process
// that had begun it; nil without error means that there is none. holder is any text that
// no other process has.
func (s Store) Next(ctx context.Context, admin *replication.Admin, slot, holder string) (*Request, error) {
	return s.one(ctx, admin, "UPDATE "+s.table+` SET state = 'running', progress = coalesce(progress, '{}') || jsonb_build_object('holder', $2::text)
		WHERE id = (SELECT id FROM `+s.table+` WHERE finished_at IS NULL AND selection->>'slot' = $1 ORDER BY id LIMIT 1)
		  AND finished_at IS NULL RETURNING `+columns, slot, holder)
}

func (s Store) one(ctx context.Context, admin *replication.Admin, sql string, args ...any) (*Request, error) {
	var r Request
	var selection, progress string
	found, err := admin.Lookup(ctx, []any{
		&r.ID, (*string)(&r.Kind), &selection, (*string)(&r.State), &progress, &r.RequestedAt, &r.FinishedAt, &r.Error,
	}, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	if !found {
		return nil, nil
	}
	if err := errors.Join(json.Unmarshal([]byte(selection), &r.Selection), json.Unmarshal([]byte(progress), &r.Progress)); err != nil {
		return nil, fmt.Errorf("read request %d: %w", r.ID, err)
	}
	return &r, nil
}

// SaveProgress notes how far a request got. False says that it is not this process's any
// more: it was cancelled, or another process has taken it.
func (s Store) SaveProgress(ctx context.Context, admin *replication.Admin, r *Request) (bool, error) {
	return s.update(ctx, admin, r, "progress = $3::text::jsonb")
}

// Finish ends a request, with an error for a person unless it is done. False is as with
// SaveProgress.
func (s Store) Finish(ctx context.Context, admin *replication.Admin, r *Request, state State, reason string) (bool, error) {
	return s.update(ctx, admin, r, "progress = $3::text::jsonb, state = $4, error = nullif($5, ''), finished_at = now()", string(state), reason)
}

// SaveProgressIn is SaveProgress inside a transaction.
func (s Store) SaveProgressIn(ctx context.Context, tx replication.Tx, r *Request) (bool, error) {
	return update(ctx, tx, s.table, r, "progress = $3::text::jsonb")
}

func (s Store) update(ctx context.Context, admin *replication.Admin, r *Request, set string, args ...any) (bool, error) {
	return update(ctx, admin, s.table, r, set, args...)
}

// lookuper is a connection or a transaction.
type lookuper interface {
	Lookup(ctx context.Context, into []any, sql string, args ...any) (bool, error)
}

func update(ctx context.Context, conn lookuper, table string, r *Request, set string, args ...any) (bool, error) {
	progress, err := json.Marshal(r.Progress)
	if err != nil {
		return false, fmt.Errorf("save progress of request %d: %w", r.ID, err)
	}
	var id int64
	ours, err := conn.Lookup(ctx, []any{&id},
		"UPDATE "+table+" SET "+set+" WHERE id = $1 AND finished_at IS NULL AND progress->>'holder' = $2 RETURNING id",
		append([]any{r.ID, r.Progress.Holder, string(progress)}, args...)...)
	if err != nil {
		return false, fmt.Errorf("save progress of request %d: %w", r.ID, err)
	}
	return ours, nil
}

// Cancel ends a request that has not come to an end. False says that it had.
func (s Store) Cancel(ctx context.Context, admin *replication.Admin, id int64) (bool, error) {
	var cancelled int64
	found, err := admin.Lookup(ctx, []any{&cancelled},
		"UPDATE "+s.table+" SET state = 'cancelled', finished_at = now() WHERE id = $1 AND finished_at IS NULL RETURNING id", id)
	if err != nil {
		return false, fmt.Errorf("cancel request %d: %w", id, err)
	}
	return found, nil
}
