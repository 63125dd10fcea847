package forwarder

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// catalogTimeout bounds one look into the catalog.
const catalogTimeout = 10 * time.Second

// catalog is what the reader asks over an ordinary connection, opened for the
// question and closed again: it asks seldom.
type catalog struct {
	cfg Config
	log *slog.Logger
	// The reader's alone:
	warned   map[string]bool // codes of findings that were logged
	tableOID uint32          // the outbox when the session began; 0 without a table
}

func (c *catalog) open(ctx context.Context) (*replication.Admin, error) {
	admin, err := replication.OpenAdmin(ctx, c.cfg.DatabaseURL, c.cfg.applicationName())
	if err != nil {
		return nil, fmt.Errorf("open SQL connection: %w", err)
	}
	return admin, nil
}

// preflight returns the first thing that a person has to mend before this outbox
// can be streamed.
func (c *catalog) preflight(ctx context.Context) error {
	admin, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer admin.Close()
	findings, err := provision.Preflight(ctx, admin, c.cfg.names())
	if err != nil {
		return fmt.Errorf("look at slot %s: %w", c.cfg.Slot, err)
	}
	for _, f := range findings.Warnings() {
		if !c.warned[f.Code] {
			c.warned[f.Code] = true
			c.log.Warn("look at this", "code", f.Code, "what", f.Message, "fix", f.Fix)
		}
	}
	return findings.Fault() //nolint:wrapcheck // it is the user's sentence already
}

// walEnd returns how far the server's WAL goes now, and notes which table the name
// stands for.
func (c *catalog) walEnd(ctx context.Context) (pglogrepl.LSN, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	admin, err := c.open(ctx)
	if err != nil {
		return 0, err
	}
	defer admin.Close()
	var oid int64
	found, err := admin.Lookup(ctx, []any{&oid}, `SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`, c.cfg.Table.Schema, c.cfg.Table.Name)
	if err != nil {
		return 0, fmt.Errorf("look up table %s: %w", c.cfg.Table, err)
	}
	c.tableOID = 0
	if found {
		c.tableOID = uint32(oid)
	}
	return admin.WALEnd(ctx) //nolint:wrapcheck // it says what was asked
}

// acceptRelation tells whether rows of a relation with another name than the table's
// are outbox rows nevertheless. The catalog tells of today, the rows are of the past:
// what the publication does not name itself can have come through the partitioned
// outbox only, also when it is detached or dropped by now. It blocks for one look.
func (c *catalog) acceptRelation(rel decode.Relation) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), catalogTimeout)
	defer cancel()
	admin, err := c.open(ctx)
	if err != nil {
		return false, err
	}
	defer admin.Close()
	var same, partition, named, partitioned bool
	_, err = admin.Lookup(ctx, []any{&same, &partition, &named, &partitioned}, `
		SELECT coalesce(t.oid = $1::oid, false),
		       EXISTS (SELECT FROM pg_partition_ancestors($1::oid::regclass) a(relid) WHERE a.relid = t.oid),
		       EXISTS (SELECT FROM pg_publication p WHERE p.pubname = $4 AND (p.puballtables
		               OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = $1::oid)
		               OR EXISTS (SELECT FROM pg_publication_tables s WHERE s.pubname = p.pubname AND s.schemaname = $5 AND s.tablename = $6
		                          AND t.relkind IS DISTINCT FROM 'p'))),
		       coalesce(t.relkind = 'p', false)
		FROM (SELECT 1) one LEFT JOIN (SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		                               WHERE n.nspname = $2 AND c.relname = $3) t ON true`,
		rel.OID, c.cfg.Table.Schema, c.cfg.Table.Name, c.cfg.Publication, rel.Schema, rel.Name)
	if err != nil {
		return false, fmt.Errorf("look up relation %s: %w", rel.Table(), err)
	}
	switch {
	case same, partition:
		return true, nil // it had another name for a while, or it is a partition
	case rel.OID == c.tableOID:
		return false, fault.NewOperator("table-renamed", fmt.Sprintf("table %s was renamed to %s, and rows were inserted since", c.cfg.Table, rel.Table()),
			fmt.Sprintf("ALTER TABLE %s RENAME TO %s, and start again: no event is passed over; or start with --table '%s'",
				rel.Table(), decode.QuoteIdentifier(c.cfg.Table.Name), rel.Table()), nil)
	case partitioned && !named:
		c.log.Warn("rows of a former partition of the outbox arrive", "relation", rel.Table().String(), "table", c.cfg.Table.String())
		return true, nil
	}
	c.log.Warn("the publication holds a table that is not the outbox: its rows are not forwarded",
		"relation", rel.Table().String(), "table", c.cfg.Table.String(), "publication", c.cfg.Publication)
	return false, nil
}

// holder describes who holds the slot.
type holder struct {
	pid         uint32
	application string
	address     string
	replyTime   string // changes with each status that the server has read from it
	waiting     bool   // the walsender waits for its client, so that it would read a status
}

func (h holder) String() string {
	return fmt.Sprintf("pid %d (%s, %s)", h.pid, h.application, h.address)
}

// slotHolder looks who holds the slot; false when nobody does.
func slotHolder(ctx context.Context, admin *replication.Admin, slot string) (holder, bool, error) {
	var h holder
	var pid int64
	found, err := admin.Lookup(ctx, []any{&pid, &h.application, &h.address, &h.replyTime, &h.waiting}, `
		SELECT s.active_pid::bigint, coalesce(a.application_name, '?'), coalesce(host(a.client_addr), 'local'),
		       coalesce(r.reply_time::text, ''), coalesce(a.wait_event_type IN ('Activity', 'Client'), false)
		FROM pg_replication_slots s
		LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
		LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
		WHERE s.slot_name = $1 AND s.active_pid IS NOT NULL`, slot)
	if err != nil {
		return holder{}, false, fmt.Errorf("look who holds slot %s: %w", slot, err)
	}
	h.pid = uint32(pid)
	return h, found, nil
}

// endWalsender ends the walsender of our own slot, if that process still holds it.
func endWalsender(ctx context.Context, admin *replication.Admin, slot string, pid uint32) (bool, error) {
	var ended bool
	found, err := admin.Lookup(ctx, []any{&ended}, `
		SELECT pg_terminate_backend(s.active_pid) FROM pg_replication_slots s
		WHERE s.slot_name = $1 AND s.active_pid = $2::int
		  AND EXISTS (SELECT FROM pg_stat_replication r WHERE r.pid = s.active_pid)`, slot, int32(pid))
	if err != nil {
		return false, fmt.Errorf("end walsender %d of slot %s: %w", pid, slot, err)
	}
	return found && ended, nil
}

// names are what preflight looks up.
func (c Config) names() provision.Names {
	return provision.Names{
		Slot: c.Slot, Publication: c.Publication, Table: c.Table, Columns: c.Columns,
		Subject: c.Subject, Messages: c.Messages,
	}
}

func (c Config) applicationName() string { return "outbox-cdc " + c.Slot }

// messagePrefix marks the logical messages that are events.
const messagePrefix = "outbox"

// requiredFields are those without which a row cannot become a message.
func (c Config) requiredFields() []decode.Field {
	fields := []decode.Field{decode.FieldEventID, decode.FieldPayload}
	return append(fields, c.template.Fields()...)
}
