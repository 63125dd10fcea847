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
)

// catalogTimeout bounds one look into the catalog.
const catalogTimeout = 10 * time.Second

// catalog is what the reader asks over an ordinary connection, opened for the
// question and closed again: it asks seldom.
type catalog struct {
	cfg    Config
	log    *slog.Logger
	server Server
	// The reader's alone:
	warned   map[string]bool // codes of findings that were logged
	tableOID uint32          // the outbox when the session began; 0 without a table
}

// preflight returns the first thing that a person has to mend before this outbox
// can be streamed.
func (c *catalog) preflight(ctx context.Context) error {
	admin, err := c.server.Open(ctx)
	if err != nil {
		return err
	}
	defer admin.Close()
	findings, err := admin.Preflight(ctx)
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
	admin, err := c.server.Open(ctx)
	if err != nil {
		return 0, err
	}
	defer admin.Close()
	if c.tableOID, err = admin.TableOID(ctx); err != nil {
		return 0, err //nolint:wrapcheck // it names the table
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
	admin, err := c.server.Open(ctx)
	if err != nil {
		return false, err
	}
	defer admin.Close()
	kin, err := admin.Kinship(ctx, rel)
	if err != nil {
		return false, err //nolint:wrapcheck // it names the relation
	}
	switch {
	case kin.Same, kin.Partition:
		return true, nil // it had another name for a while, or it is a partition
	case rel.OID == c.tableOID:
		return false, fault.NewOperator("table-renamed", fmt.Sprintf("table %s was renamed to %s, and rows were inserted since", c.cfg.Table, rel.Table()),
			fmt.Sprintf("ALTER TABLE %s RENAME TO %s, and start again: no event is passed over; or start with --table '%s'",
				rel.Table(), decode.QuoteIdentifier(c.cfg.Table.Name), rel.Table()), nil)
	case kin.Partitioned && !kin.Named:
		c.log.Warn("rows of a former partition of the outbox arrive", "relation", rel.Table().String(), "table", c.cfg.Table.String())
		return true, nil
	}
	c.log.Warn("the publication holds a table that is not the outbox: its rows are not forwarded",
		"relation", rel.Table().String(), "table", c.cfg.Table.String(), "publication", c.cfg.Publication)
	return false, nil
}

// names are what preflight looks up.
func (c Config) names() provision.Names {
	return provision.Names{
		Slot: c.Slot, Publication: c.Publication, Table: c.Table, Columns: c.Columns,
		Subject: c.Subject, Messages: c.Messages, DeadLetters: c.OnPoison.stores(),
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
