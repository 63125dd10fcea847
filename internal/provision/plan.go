package provision

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/migrations"
	"github.com/outbox-cdc/outbox-cdc/replication"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// Options say what setup is to make.
type Options struct {
	Names
	Stream   sink.StreamSpec
	NoStream bool
	NoSlot   bool
	// Failover asks for a slot that standbys mirror, on PostgreSQL 17 and newer.
	Failover bool
	// SlotTimeout is how long the creation of the slot may wait for open transactions.
	SlotTimeout time.Duration
}

// Part is a thing that setup makes.
type Part string

// The parts, in the order in which they are made.
const (
	PartTables      Part = "tables"
	PartPublication Part = "publication"
	PartStream      Part = "stream"
	PartSlot        Part = "slot"
)

// Action is what setup does, would do or did about a part.
type Action struct {
	Part   Part   `json:"part"`
	Name   string `json:"name"`
	Result string `json:"result"` // one of the Results
	// SQL is what makes it; empty for the stream and for what exists.
	SQL string `json:"sql,omitempty"`
	// Stream is the configuration of the stream that is to be made.
	Stream json.RawMessage `json:"stream,omitempty"`

	apply func(ctx context.Context) error
}

// The results of an Action.
const (
	ResultExists  = "exists"
	ResultMissing = "missing" // and would be created
	ResultCreated = "created"
)

// Plan is what is missing and what differs. It belongs to the connections it was made with.
type Plan struct {
	Server  replication.Server
	Actions []Action
	// Differences keep setup from doing anything: they are for a person to mend.
	Differences Findings
	// Warnings stop nothing.
	Warnings Findings

	admin *replication.Admin
	nats  *sink.Client
	opts  Options
}

// MakePlan looks at both servers and changes nothing. nats may be nil with NoStream.
func MakePlan(ctx context.Context, admin *replication.Admin, nats *sink.Client, opts Options) (*Plan, error) {
	pg, err := Inspect(ctx, admin, opts.Names)
	if err != nil {
		return nil, err
	}
	if pg.Server.InRecovery {
		return nil, fault.NewTransient("the server is a standby (in recovery): nothing can be made there", "give --database-url the primary", nil)
	}
	p := &Plan{Server: pg.Server, admin: admin, nats: nats, opts: opts}
	if err := p.planTables(ctx, pg); err != nil {
		return nil, err
	}
	p.planPublication(pg)
	if !opts.NoStream {
		if err := p.planStream(ctx); err != nil {
			return nil, err
		}
	}
	if !opts.NoSlot {
		p.planSlot(pg)
	}
	return p, nil
}

// Target is the outbox that migrations are for.
func (n Names) Target() migrations.Target {
	return migrations.Target{Schema: n.Table.Schema, Table: n.Table.Name}
}

func (p *Plan) planTables(ctx context.Context, pg Postgres) error {
	migrator, err := NewMigrator(p.admin, p.opts.Target())
	if err != nil {
		return err
	}
	steps, err := migrator.Status(ctx)
	if err != nil {
		return err
	}
	if pg.Table != nil {
		p.Differences.judgeTable(pg, p.opts.Names, "")
	}
	if err := p.judgeSharedTables(ctx); err != nil {
		return err
	}
	if pg.Table == nil && steps[0].Applied {
		if pg.Table, err = p.admin.Table(ctx, p.opts.Table.Schema, p.opts.Table.Name); err != nil {
			return err
		}
	}
	if pg.Table == nil && steps[0].Applied { // not merely made by another setup since we looked
		p.Differences.fail("table-missing", "restore the table, or outbox-cdc migrate down --to 0 --yes, then setup",
			"table %s is gone, although a migration made it", p.opts.Table)
	}
	action := Action{Part: PartTables, Name: p.opts.Table.String(), Result: ResultExists}
	target := p.opts.Target()
	for i, step := range steps {
		if step.Applied {
			continue
		}
		action.Result = ResultMissing
		adopted := step.Version == migrations.OutboxStep && pg.Table != nil
		if !adopted { // a table of somebody else stays as it is
			action.SQL += migrator.steps[i].Up(target)
		}
		action.SQL += migrator.steps[i].RecordSQL(target, adopted)
	}
	if action.Result == ResultMissing {
		exists, err := p.admin.SchemaExists(ctx, target.Schema)
		if err != nil {
			return err
		}
		action.SQL = target.VersionTableSQL() + action.SQL
		if !exists {
			action.SQL = target.SchemaSQL() + action.SQL
		}
	}
	action.apply = func(ctx context.Context) error {
		_, err := migrator.Up(ctx, 0)
		return err
	}
	p.Actions = append(p.Actions, action)
	return nil
}

// judgeSharedTables finds tables with our names that somebody else made.
func (p *Plan) judgeSharedTables(ctx context.Context) error {
	for _, shared := range migrations.SharedTables() {
		t, err := p.admin.Table(ctx, p.opts.Table.Schema, shared.Name)
		if err != nil {
			return err
		}
		if t == nil {
			continue
		}
		wrong := wrongColumn(t, shared)
		if wrong == "" {
			continue
		}
		judge := p.Differences.fail
		if shared.Name == "inbox" { // for consumers alone; forwarding does without
			judge = p.Warnings.warn
		}
		judge("table-differs", "rename that table, or put the outbox into a schema of its own with --table SCHEMA.outbox",
			"table %s was made by somebody else: %s", replication.QuoteName(t.Schema, t.Name), wrong)
	}
	return nil
}

// wrongColumn says which column of a table is not as a migration makes it; empty when none is.
func wrongColumn(t *replication.TableInfo, shared migrations.SharedTable) string {
	for name, typ := range shared.Columns {
		switch column := t.Column(name); {
		case column == nil:
			return fmt.Sprintf("column %s should be %s, found no such column", name, typ)
		case column.Type != typ:
			return fmt.Sprintf("column %s should be %s, found type %s", name, typ, column.Type)
		}
	}
	for name, typ := range shared.Added {
		if column := t.Column(name); column != nil && column.Type != typ {
			return fmt.Sprintf("column %s should be %s, found type %s", name, typ, column.Type)
		}
	}
	return ""
}

func (p *Plan) planPublication(pg Postgres) {
	name := p.opts.Publication
	sql := replication.CreatePublicationSQL(name, p.opts.Table.Schema, p.opts.Table.Name)
	if pg.Publication != nil {
		p.Differences.judgePublication(pg, p.opts.Names)
		if pg.Table == nil && !pg.Publication.AllTables {
			p.Differences.fail("publication-table", fmt.Sprintf("outbox-cdc migrate up, then ALTER PUBLICATION %s ADD TABLE %s, then setup", quoted(name), p.opts.Table),
				"publication %s does not hold table %s, which does not exist yet", quoted(name), p.opts.Table)
		}
		p.Differences.judgePublicationShape(pg, p.opts.Names)
		p.Actions = append(p.Actions, Action{Part: PartPublication, Name: name, Result: ResultExists})
		return
	}
	if pg.Slot != nil && !pg.Slot.Lost() {
		p.Differences.fail("publication-missing",
			fmt.Sprintf("outbox-cdc slot drop --slot %s --yes, then outbox-cdc setup (what was committed before is not streamed)", p.opts.Slot),
			"publication %s does not exist, but slot %s does: a publication that is made after its slot breaks the slot", quoted(name), p.opts.Slot)
	}
	p.Actions = append(p.Actions, Action{
		Part: PartPublication, Name: name, Result: ResultMissing, SQL: sql + ";\n",
		apply: func(ctx context.Context) error {
			return p.admin.CreatePublication(ctx, name, p.opts.Table.Schema, p.opts.Table.Name)
		},
	})
}

// judgePublicationShape reports what works and yet is not what setup makes.
func (fs *Findings) judgePublicationShape(pg Postgres, names Names) {
	p := pg.Publication
	if p.Insert && p.Publishes() != "insert" {
		fs.fail("publication-publish", fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert')", quoted(p.Name)),
			"publication %s publishes %s, not insert alone", quoted(p.Name), p.Publishes())
	}
	partitioned := pg.Table != nil && pg.Table.Kind == replication.KindPartitioned
	if partitioned && !p.ViaPartitionRoot {
		fs.fail("publication-root", fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true)", quoted(p.Name)),
			"publication %s publishes the partitions of %s, not the table itself", quoted(p.Name), names.Table)
	}
}

func (p *Plan) planStream(ctx context.Context) error {
	spec := p.opts.Stream
	if spec.AllowBatched && !p.nats.SupportsBatched() {
		spec.AllowBatched = false
		p.Warnings.warn("stream-batched", "upgrade to nats-server 2.14 or newer", "nats-server %s has no batches: order is kept only while nobody else publishes into the stream", p.nats.ServerVersion())
	}
	status, err := p.nats.StreamStatus(ctx, spec.Name)
	if err != nil {
		return err
	}
	if status.Exists {
		for _, d := range sink.Diff(spec, status) {
			p.Differences.fail("stream-differs", StreamEdit(spec, d), "stream %s: %s", spec.Name, d)
		}
		p.Actions = append(p.Actions, Action{Part: PartStream, Name: spec.Name, Result: ResultExists})
		return nil
	}
	others, err := p.otherStreams(ctx, spec)
	if err != nil {
		return err
	}
	for _, other := range others {
		p.Differences.fail("stream-overlap", "give --stream "+other+", or another --subject, or take the subjects out of that stream",
			"stream %s listens on %s already, and one subject can belong to one stream only", other, spec.Subjects[0])
	}
	config, err := spec.JSON()
	if err != nil {
		return err
	}
	p.Actions = append(p.Actions, Action{
		Part: PartStream, Name: spec.Name, Result: ResultMissing, Stream: config,
		apply: func(ctx context.Context) error { return p.nats.CreateStream(ctx, spec) },
	})
	return nil
}

func (p *Plan) otherStreams(ctx context.Context, spec sink.StreamSpec) ([]string, error) {
	var others []string
	for _, subject := range spec.Subjects {
		names, err := p.nats.StreamsCovering(ctx, subject)
		if err != nil {
			return nil, err
		}
		others = append(others, names...)
	}
	return others, nil
}

// StreamEdit is the nats command that mends a difference.
func StreamEdit(spec sink.StreamSpec, d sink.Difference) string {
	switch d.Setting {
	case "subjects":
		return fmt.Sprintf("nats stream edit %s --subjects '%s' (and the ones it has)", spec.Name, d.Want)
	case "num_replicas":
		return fmt.Sprintf("nats stream edit %s --replicas %s, or setup with --replicas %s", spec.Name, d.Want, d.Have)
	case "duplicate_window":
		return fmt.Sprintf("nats stream edit %s --dupe-window %s, or setup with --duplicate-window %s", spec.Name, d.Want, d.Have)
	case "max_age":
		return fmt.Sprintf("nats stream edit %s --max-age %s, or setup with --max-age %s", spec.Name, d.Want, limitFlag(d.Have))
	case "max_bytes":
		return fmt.Sprintf("nats stream edit %s --max-bytes %s, or setup with --max-bytes %s", spec.Name, d.Want, limitFlag(d.Have))
	case "allow_batched":
		return fmt.Sprintf("nats stream edit %s --allow-fast", spec.Name)
	default:
		return fmt.Sprintf("this cannot be changed later: make stream %s anew, or give --stream another name", spec.Name)
	}
}

// limitFlag returns a limit that the server has as our flags take it.
func limitFlag(have string) string {
	switch have {
	case "0", "0s", "-1": // the server's words for no limit
		return "none"
	default:
		return have
	}
}

func (p *Plan) planSlot(pg Postgres) {
	name := p.opts.Slot
	if pg.Slot != nil {
		p.Differences.judgeSlot(pg, p.opts.Names)
		if p.opts.Failover && pg.Slot.Failover != nil && !*pg.Slot.Failover {
			p.Warnings.warn("slot-failover", fmt.Sprintf("on a replication connection: ALTER_REPLICATION_SLOT %s (FAILOVER true)", name),
				"slot %s has no failover: standbys do not mirror it", name)
		}
		p.Actions = append(p.Actions, Action{Part: PartSlot, Name: name, Result: ResultExists})
		return
	}
	p.Differences.judgeServer(pg.Server)
	p.Actions = append(p.Actions, Action{
		Part: PartSlot, Name: name, Result: ResultMissing,
		SQL: replication.CreateSlotSQL(name, p.opts.Failover, pg.Server.VersionNumber) + ";\n",
		apply: func(ctx context.Context) error {
			return CreateSlot(ctx, p.admin, name, p.opts.Failover, p.opts.SlotTimeout)
		},
	})
}
