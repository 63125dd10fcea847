package forwarder

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// catalogTimeout bounds one look into the catalog.
const catalogTimeout = 10 * time.Second

// catalog is what the reader asks over an ordinary connection, opened for the
// question and closed again: it asks seldom.
type catalog struct {
	cfg    Config
	log    *slog.Logger
	warned map[string]bool // codes of findings that were logged; the reader's alone
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

// walEnd returns how far the server's WAL goes now.
func (c *catalog) walEnd(ctx context.Context) (pglogrepl.LSN, error) {
	ctx, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	admin, err := c.open(ctx)
	if err != nil {
		return 0, err
	}
	defer admin.Close()
	return admin.WALEnd(ctx) //nolint:wrapcheck // it says what was asked
}

// acceptRelation tells whether rows of a relation with another name than the
// table's are outbox rows, as those of its partitions are. It blocks for one look.
func (c *catalog) acceptRelation(rel decode.Relation) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), catalogTimeout)
	defer cancel()
	admin, err := c.open(ctx)
	if err != nil {
		return false, err
	}
	defer admin.Close()
	var partition, gone, partitioned bool
	_, err = admin.Lookup(ctx, []any{&partition, &gone, &partitioned}, `
		SELECT EXISTS (SELECT FROM pg_partition_ancestors($1::oid::regclass) a(relid)
		               JOIN pg_class c ON c.oid = a.relid JOIN pg_namespace n ON n.oid = c.relnamespace
		               WHERE n.nspname = $2 AND c.relname = $3),
		       NOT EXISTS (SELECT FROM pg_class WHERE oid = $1::oid),
		       EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		               WHERE n.nspname = $2 AND c.relname = $3 AND c.relkind = 'p')`,
		rel.OID, c.cfg.Table.Schema, c.cfg.Table.Name)
	if err != nil {
		return false, fmt.Errorf("look up relation %s: %w", rel.Table(), err)
	}
	switch {
	case partition:
		return true, nil
	case gone && partitioned:
		// A partition that was dropped after these rows were written.
		c.log.Warn("rows of a relation that is gone are taken for those of a dropped partition", "relation", rel.Table().String(), "table", c.cfg.Table.String())
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
