package replication

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Plugin is the output plugin of every slot that the forwarder reads.
const Plugin = "pgoutput"

// failoverSince is the first server version that mirrors slots to standbys.
const failoverSince = 170000

// SlotInfo is a row of pg_replication_slots and what follows from it. Pointers are nil
// where the value is NULL or this server version has no such column.
type SlotInfo struct {
	Name               string  `json:"slot_name"`
	Plugin             *string `json:"plugin"` // nil for a physical slot
	Type               string  `json:"slot_type"`
	Database           *string `json:"database"`
	Temporary          bool    `json:"temporary"`
	TwoPhase           bool    `json:"two_phase"`
	Active             bool    `json:"active"`
	ActivePID          *int32  `json:"active_pid"`
	CatalogXmin        *string `json:"catalog_xmin"`
	RestartLSN         *string `json:"restart_lsn"`
	ConfirmedFlushLSN  *string `json:"confirmed_flush_lsn"`
	WALStatus          *string `json:"wal_status"`          // reserved, extended, unreserved, lost
	SafeWALSize        *int64  `json:"safe_wal_size"`       // bytes until it may be lost
	Conflicting        *bool   `json:"conflicting"`         // 16+
	Failover           *bool   `json:"failover"`            // 17+
	Synced             *bool   `json:"synced"`              // 17+
	InactiveSince      *string `json:"inactive_since"`      // 17+
	InvalidationReason *string `json:"invalidation_reason"` // 17+

	LagBytes      *int64 `json:"-"` // WAL that the slot's reader has not confirmed
	RetainedBytes *int64 `json:"-"` // WAL that the slot holds back on the server's disk
}

// Lost reports whether the WAL that the slot needs is gone: only dropping it is left.
func (s *SlotInfo) Lost() bool {
	return s.WALStatus != nil && *s.WALStatus == "lost" || s.InvalidationReason != nil ||
		s.Type == "logical" && s.RestartLSN == nil
}

// Slot looks a slot up; nil without error means that this server has none of that name.
func (a *Admin) Slot(ctx context.Context, name string) (*SlotInfo, error) {
	var row []byte
	var info SlotInfo
	found, err := a.Lookup(ctx, []any{&row, &info.LagBytes, &info.RetainedBytes}, `
		SELECT convert_to(to_jsonb(s)::text, 'UTF8'), pg_wal_lsn_diff(w.lsn, s.confirmed_flush_lsn)::bigint, pg_wal_lsn_diff(w.lsn, s.restart_lsn)::bigint
		FROM pg_replication_slots s, (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END) w(lsn)
		WHERE s.slot_name = $1`, name)
	if err != nil {
		return nil, fmt.Errorf("read slot %q: %w", name, err)
	}
	if !found {
		return nil, nil
	}
	if err := json.Unmarshal(row, &info); err != nil {
		return nil, fmt.Errorf("read slot %q: %w", name, err)
	}
	return &info, nil
}

// SlotsUsed counts the slots of the server, of all databases and kinds.
func (a *Admin) SlotsUsed(ctx context.Context) (int, error) {
	var n int
	if err := a.conn.QueryRow(ctx, `SELECT count(*) FROM pg_replication_slots`).Scan(&n); err != nil {
		return 0, fmt.Errorf("count slots: %w", err)
	}
	return n, nil
}

// CreateSlotSQL is the statement that makes the slot on a server of that version.
func CreateSlotSQL(name string, failover bool, serverVersionNumber int) string {
	return "SELECT " + createSlotCall(name, failover, serverVersionNumber)
}

func createSlotCall(name string, failover bool, serverVersionNumber int) string {
	if serverVersionNumber >= failoverSince {
		return fmt.Sprintf("pg_create_logical_replication_slot(%s, 'pgoutput', temporary => false, twophase => false, failover => %t)", quoteLiteral(name), failover)
	}
	return fmt.Sprintf("pg_create_logical_replication_slot(%s, 'pgoutput')", quoteLiteral(name))
}

// CreateSlot makes a slot and returns where it begins. It waits for every transaction
// that has written and is still open, in any database, for at most timeout; then it fails with SQLSTATE 55P03
// or 57014 and leaves nothing behind: the server drops an unfinished slot with the statement.
func (a *Admin) CreateSlot(ctx context.Context, name string, failover bool, timeout time.Duration) (pglogrepl.LSN, error) {
	server, err := a.Server(ctx)
	if err != nil {
		return 0, err
	}
	var begin string
	err = pgx.BeginFunc(ctx, a.conn, func(tx pgx.Tx) error {
		ms := max(1, timeout.Milliseconds())
		// The lock timeout counts for each transaction waited for, the statement timeout for all together.
		limits := fmt.Sprintf("SET LOCAL lock_timeout = %d; SET LOCAL statement_timeout = %d", ms, ms+ms/4+1)
		if _, err := tx.Exec(ctx, limits, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT lsn::text FROM "+createSlotCall(name, failover, server.VersionNumber)).Scan(&begin)
	})
	if err != nil {
		return 0, fmt.Errorf("create slot %q: %w", name, err)
	}
	lsn, err := pglogrepl.ParseLSN(begin)
	if err != nil {
		return 0, fmt.Errorf("create slot %q: read its position: %w", name, err)
	}
	return lsn, nil
}

// DropSlot removes a slot and frees the WAL that it holds. A slot in use is refused with 55006.
func (a *Admin) DropSlot(ctx context.Context, name string) error {
	if _, err := a.conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, name); err != nil {
		return fmt.Errorf("drop slot %q: %w", name, err)
	}
	return nil
}

// AdvanceSlot moves a slot forward without reading: what lies between is never streamed.
// It returns where the slot ended up.
func (a *Admin) AdvanceSlot(ctx context.Context, name string, to pglogrepl.LSN) (pglogrepl.LSN, error) {
	var end string
	err := a.conn.QueryRow(ctx, `SELECT end_lsn::text FROM pg_replication_slot_advance($1, $2::text::pg_lsn)`, name, to.String()).Scan(&end)
	if err != nil {
		return 0, fmt.Errorf("advance slot %q to %s: %w", name, to, err)
	}
	lsn, err := pglogrepl.ParseLSN(end)
	if err != nil {
		return 0, fmt.Errorf("advance slot %q: read its position: %w", name, err)
	}
	return lsn, nil
}

// WALEnd returns the end of the server's WAL.
func (a *Admin) WALEnd(ctx context.Context) (pglogrepl.LSN, error) {
	var end string
	err := a.conn.QueryRow(ctx, `SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text`).Scan(&end)
	if err != nil {
		return 0, fmt.Errorf("read end of WAL: %w", err)
	}
	lsn, err := pglogrepl.ParseLSN(end)
	if err != nil {
		return 0, fmt.Errorf("read end of WAL: %w", err)
	}
	return lsn, nil
}

// OpenTransaction is a transaction that has written and is not over.
type OpenTransaction struct {
	PID         int32          // 0 for a prepared transaction
	Prepared    string         // its global identifier; empty for an ordinary one
	Age         *time.Duration // nil where the role may not see it
	User        string
	Application string
	Database    string
	State       string // such as "idle in transaction"; empty where the role may not see it
}

// String names the transaction for a person.
func (t OpenTransaction) String() string {
	text := fmt.Sprintf("pid %d", t.PID)
	if t.Prepared != "" {
		text = fmt.Sprintf("prepared transaction %q", t.Prepared)
	}
	if t.Age != nil {
		text += fmt.Sprintf(", open for %s", t.Age.Round(100*time.Millisecond))
	}
	text += fmt.Sprintf(" (role %s, database %s", t.User, t.Database)
	if t.Application != "" {
		text += ", application " + t.Application
	}
	if t.State != "" {
		text += ", " + t.State
	}
	return text + ")"
}

// EndSQL is the statement that ends the transaction.
func (t OpenTransaction) EndSQL() string {
	if t.Prepared != "" {
		return "ROLLBACK PREPARED " + quoteLiteral(t.Prepared)
	}
	return fmt.Sprintf("SELECT pg_terminate_backend(%d)", t.PID)
}

// OpenTransactions lists, oldest first, the transactions that the creation of a slot
// waits for: all that have written, in any database. Ours is left out. At most ten are returned.
func (a *Admin) OpenTransactions(ctx context.Context) ([]OpenTransaction, error) {
	rows, err := a.conn.Query(ctx, `
		SELECT l.pid, '', extract(epoch FROM clock_timestamp() - s.xact_start)::float8, coalesce(s.usename::text, '?'), coalesce(s.application_name, ''),
		       coalesce(s.datname::text, '?'), coalesce(s.state, ''), age(l.transactionid)
		FROM pg_locks l LEFT JOIN pg_stat_activity s ON s.pid = l.pid
		WHERE l.locktype = 'transactionid' AND l.granted AND l.pid IS NOT NULL AND l.pid <> pg_backend_pid()
		UNION ALL
		SELECT 0, gid, extract(epoch FROM clock_timestamp() - prepared)::float8, owner::text, '', database::text, 'prepared', age(transaction)
		FROM pg_prepared_xacts
		ORDER BY 8 DESC LIMIT 10`)
	if err != nil {
		return nil, fmt.Errorf("list open transactions: %w", err)
	}
	defer rows.Close()
	var list []OpenTransaction
	for rows.Next() {
		var t OpenTransaction
		var seconds *float64
		var xidAge int
		if err := rows.Scan(&t.PID, &t.Prepared, &seconds, &t.User, &t.Application, &t.Database, &t.State, &xidAge); err != nil {
			return nil, fmt.Errorf("list open transactions: %w", err)
		}
		if seconds != nil {
			age := time.Duration(*seconds * float64(time.Second))
			t.Age = &age
		}
		list = append(list, t)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list open transactions: %w", err)
	}
	return list, nil
}
