package forwarder

import (
	"context"
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// sqlServer is the real Server.
type sqlServer struct {
	cfg Config
}

// Connect implements Server.
func (s sqlServer) Connect(ctx context.Context) (Conn, error) {
	conn, err := replication.Connect(ctx, s.cfg.DatabaseURL, s.cfg.applicationName())
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what was tried
	}
	return sqlConn{conn}, nil
}

// Open implements Server.
func (s sqlServer) Open(ctx context.Context) (Admin, error) {
	admin, err := replication.OpenAdmin(ctx, s.cfg.DatabaseURL, s.cfg.applicationName())
	if err != nil {
		return nil, fmt.Errorf("open SQL connection: %w", err)
	}
	return sqlAdmin{Admin: admin, cfg: s.cfg}, nil
}

// Letters implements Server.
func (s sqlServer) Letters(ctx context.Context) (Letters, error) {
	admin, err := replication.OpenAdmin(ctx, s.cfg.DatabaseURL, s.cfg.applicationName())
	if err != nil {
		return nil, fmt.Errorf("open SQL connection: %w", err)
	}
	return sqlLetters{Store: deadletter.NewStore(admin, s.cfg.Table.Schema), admin: admin}, nil
}

type sqlLetters struct {
	*deadletter.Store
	admin *replication.Admin
}

// Close implements Letters.
func (l sqlLetters) Close() { l.admin.Close() }

type sqlConn struct{ *replication.Conn }

// Start implements Conn.
func (c sqlConn) Start(ctx context.Context, opts replication.StartOptions) (Stream, error) {
	stream, err := c.Conn.Start(ctx, opts)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the slot
	}
	return stream, nil
}

// sqlAdmin asks the catalog in SQL.
type sqlAdmin struct {
	*replication.Admin
	cfg Config
}

// Preflight implements Admin.
func (a sqlAdmin) Preflight(ctx context.Context) (provision.Findings, error) {
	return provision.Preflight(ctx, a.Admin, a.cfg.names()) //nolint:wrapcheck // it names what was looked for
}

// TableOID implements Admin.
func (a sqlAdmin) TableOID(ctx context.Context) (uint32, error) {
	var oid int64
	_, err := a.Lookup(ctx, []any{&oid}, `SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, a.cfg.Table.Schema, a.cfg.Table.Name)
	if err != nil {
		return 0, fmt.Errorf("look up table %s: %w", a.cfg.Table, err)
	}
	return uint32(oid), nil
}

// Kinship implements Admin.
func (a sqlAdmin) Kinship(ctx context.Context, rel decode.Relation) (Kinship, error) {
	var k Kinship
	_, err := a.Lookup(ctx, []any{&k.Same, &k.Partition, &k.Named, &k.Partitioned}, `
		SELECT coalesce(t.oid = $1::oid, false),
		       EXISTS (SELECT FROM pg_partition_ancestors($1::oid::regclass) a(relid) WHERE a.relid = t.oid),
		       EXISTS (SELECT FROM pg_publication p WHERE p.pubname = $4 AND (p.puballtables
		               OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = $1::oid)
		               OR EXISTS (SELECT FROM pg_publication_tables s WHERE s.pubname = p.pubname AND s.schemaname = $5 AND s.tablename = $6
		                          AND t.relkind IS DISTINCT FROM 'p'))),
		       coalesce(t.relkind = 'p', false)
		FROM (SELECT 1) one LEFT JOIN (SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		                               WHERE n.nspname = $2 AND c.relname = $3) t ON true`,
		rel.OID, a.cfg.Table.Schema, a.cfg.Table.Name, a.cfg.Publication, rel.Schema, rel.Name)
	if err != nil {
		return Kinship{}, fmt.Errorf("look up relation %s: %w", rel.Table(), err)
	}
	return k, nil
}

// Slot implements Admin.
func (a sqlAdmin) Slot(ctx context.Context) (*replication.SlotInfo, error) {
	return a.Admin.Slot(ctx, a.cfg.Slot) //nolint:wrapcheck // it names the slot
}

// SlotHolder implements Admin.
func (a sqlAdmin) SlotHolder(ctx context.Context) (Holder, bool, error) {
	var h Holder
	var pid int64
	found, err := a.Lookup(ctx, []any{&pid, &h.Application, &h.Address, &h.ReplyTime, &h.Waiting}, `
		SELECT s.active_pid::bigint, coalesce(a.application_name, '?'), coalesce(host(a.client_addr), 'local'),
		       coalesce(r.reply_time::text, CASE WHEN r.state IS NULL THEN '' ELSE 'never' END), coalesce(a.wait_event_type IN ('Activity', 'Client'), false)
		FROM pg_replication_slots s
		LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
		LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
		WHERE s.slot_name = $1 AND s.active_pid IS NOT NULL`, a.cfg.Slot)
	if err != nil {
		return Holder{}, false, fmt.Errorf("look who holds slot %s: %w", a.cfg.Slot, err)
	}
	h.PID = uint32(pid)
	return h, found, nil
}

// EndWalsender implements Admin.
func (a sqlAdmin) EndWalsender(ctx context.Context, pid uint32) (bool, error) {
	var ended bool
	found, err := a.Lookup(ctx, []any{&ended}, `
		SELECT pg_terminate_backend(s.active_pid) FROM pg_replication_slots s
		WHERE s.slot_name = $1 AND s.active_pid = $2::int
		  AND EXISTS (SELECT FROM pg_stat_replication r WHERE r.pid = s.active_pid)`, a.cfg.Slot, int32(pid))
	if err != nil {
		return false, fmt.Errorf("end walsender %d of slot %s: %w", pid, a.cfg.Slot, err)
	}
	return found && ended, nil
}

// WalsenderBusy implements Admin.
func (a sqlAdmin) WalsenderBusy(ctx context.Context, pid uint32) (bool, error) {
	var busy bool
	found, err := a.Lookup(ctx, []any{&busy},
		`SELECT coalesce(wait_event_type NOT IN ('Activity', 'Client'), true) FROM pg_stat_activity WHERE pid = $1::int`, int32(pid))
	if err != nil {
		return false, err //nolint:wrapcheck // it is only logged
	}
	return found && busy, nil
}

// OpenDeadLetters implements Admin.
func (a sqlAdmin) OpenDeadLetters(ctx context.Context) (int64, error) {
	counts, err := deadletter.NewStore(a.Admin, a.cfg.Table.Schema).Count(ctx, a.cfg.Source)
	return counts.Dead, err //nolint:wrapcheck // it says what was counted
}
