package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// Names say which outbox is meant.
type Names struct {
	Slot        string
	Publication string
	Table       decode.TableName
	Columns     decode.Mapping
	Subject     string // template
	// Messages says that logical messages are forwarded: then an outbox without a table is whole.
	Messages bool
	// DeadLetters says that what can never be published is to be stored.
	DeadLetters bool
}

// Postgres is what the database holds under the Names. Pointers are nil for what is missing.
type Postgres struct {
	Server      replication.Server
	Table       *replication.TableInfo
	Publication *replication.PublicationInfo
	Slot        *replication.SlotInfo
}

// Inspect looks everything up.
func Inspect(ctx context.Context, admin *replication.Admin, names Names) (Postgres, error) {
	var pg Postgres
	var err error
	if pg.Server, err = admin.Server(ctx); err != nil {
		return Postgres{}, err
	}
	if pg.Table, err = admin.Table(ctx, names.Table.Schema, names.Table.Name); err != nil {
		return Postgres{}, err
	}
	if pg.Publication, err = admin.Publication(ctx, names.Publication); err != nil {
		return Postgres{}, err
	}
	if pg.Slot, err = admin.Slot(ctx, names.Slot); err != nil {
		return Postgres{}, err
	}
	return pg, nil
}

// Preflight judges, before anything streams, what would stop or lose events on the
// PostgreSQL side: only what a person must mend fails. An error says that it could not
// look, or, as a transient fault, that the server is a standby and nothing can be said.
func Preflight(ctx context.Context, admin *replication.Admin, names Names) (Findings, error) {
	pg, err := Inspect(ctx, admin, names)
	if err != nil {
		return nil, err
	}
	if pg.Server.InRecovery {
		return nil, fault.NewTransient("the server is a standby (in recovery)",
			"give --database-url the primary, or all hosts separated by commas", nil)
	}
	similar := ""
	if pg.Table == nil {
		if similar, err = similarTable(ctx, admin, names.Table); err != nil {
			return nil, err
		}
	}
	var fs Findings
	fs.judgeServer(pg.Server)
	fs.judgeTable(pg, names, similar)
	fs.judgePublication(pg, names)
	fs.judgeSlot(pg, names)
	if names.DeadLetters {
		if err := fs.judgeDeadLetters(ctx, admin, pg.Server.Role, names); err != nil {
			return nil, err
		}
	}
	return fs, nil
}

func similarTable(ctx context.Context, admin *replication.Admin, table decode.TableName) (string, error) {
	list, err := admin.SimilarTables(ctx, table.Name)
	if err != nil || len(list) == 0 {
		return "", err
	}
	return decode.TableName{Schema: list[0].Schema, Name: list[0].Name}.String(), nil
}

func (fs *Findings) judgeServer(server replication.Server) {
	if server.WALLevel != "logical" {
		fs.fail("wal-level", "ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL",
			"wal_level is %s: the server writes no WAL that could be decoded", server.WALLevel)
	}
}

func (fs *Findings) judgeTable(pg Postgres, names Names, similar string) {
	t := pg.Table
	if t == nil {
		if names.Messages && pg.Publication != nil && len(pg.Publication.Tables) == 0 {
			fs.warn("table-missing", "", "table %s does not exist: only logical messages are forwarded", names.Table)
			return
		}
		fix := "outbox-cdc setup creates it"
		if similar != "" {
			fix = fmt.Sprintf("did you mean --table '%s'? Otherwise %s", similar, fix)
		}
		fs.fail("table-missing", fix, "table %s does not exist in database %s", names.Table, pg.Server.Database)
		return
	}
	if t.Kind != replication.KindTable && t.Kind != replication.KindPartitioned {
		fs.fail("table-kind", "give --table a table", "%s is a %s: only tables can be published", names.Table, t.Kind)
		return
	}
	if t.Unlogged {
		fs.fail("table-unlogged", fmt.Sprintf("ALTER TABLE %s SET LOGGED", names.Table),
			"table %s is unlogged: its rows are not in the WAL", names.Table)
	}
	for _, need := range NeededColumns(names.Columns, names.Subject) {
		fs.judgeColumn(t, names, need)
	}
}

// Need is a column that must arrive, and what for.
type Need struct {
	Name   string // the field or extra column that is read from it
	Column string
}

// NeededColumns lists the columns without which the forwarder refuses the table: event
// id and payload, what the subject template uses, and what the user mapped by name.
func NeededColumns(mapping decode.Mapping, subject string) []Need {
	var needs []Need
	for i := range decode.NumFields {
		field := decode.Field(i)
		required := field == decode.FieldEventID || field == decode.FieldPayload || strings.Contains(subject, "{"+field.String()+"}")
		if required || mapping.Explicit(field) {
			needs = append(needs, Need{Name: field.String(), Column: mapping.Column(field)})
		}
	}
	for _, extra := range mapping.Extra() {
		needs = append(needs, Need{Name: extra.Name, Column: extra.Column})
	}
	return needs
}

func (fs *Findings) judgeColumn(t *replication.TableInfo, names Names, need Need) {
	if need.Column == "" {
		fs.fail("column-unmapped", fmt.Sprintf("--columns %s=COLUMN", need.Name),
			"table %s: no column is mapped to %s, which is required", names.Table, need.Name)
		return
	}
	column := t.Column(need.Column)
	switch {
	case column == nil:
		fs.fail("column-missing", fmt.Sprintf("--columns %s=COLUMN with one of: %s", need.Name, columnNames(t)),
			"table %s has no column %s (mapped to %s)", names.Table, decode.QuoteIdentifier(need.Column), need.Name)
	case column.Generated:
		fs.fail("column-generated", fmt.Sprintf("ALTER TABLE %s ALTER COLUMN %s DROP EXPRESSION", names.Table, decode.QuoteIdentifier(need.Column)),
			"table %s: column %s (mapped to %s) is generated, and generated columns are not streamed", names.Table, decode.QuoteIdentifier(need.Column), need.Name)
	}
}

func columnNames(t *replication.TableInfo) string {
	var list []string
	for _, c := range t.Columns {
		list = append(list, decode.QuoteIdentifier(c.Name))
	}
	return strings.Join(list, ", ")
}

func (fs *Findings) judgePublication(pg Postgres, names Names) {
	p := pg.Publication
	if p == nil {
		fix := replication.CreatePublicationSQL(names.Publication, names.Table.Schema, names.Table.Name)
		if pg.Slot != nil {
			fix += fmt.Sprintf("; then make slot %s anew: it is older than the publication", names.Slot)
		}
		fs.fail("publication-missing", fix, "publication %s does not exist in database %s", quoted(names.Publication), pg.Server.Database)
		return
	}
	if !p.Insert {
		fs.fail("publication-insert", fmt.Sprintf("ALTER PUBLICATION %s SET (publish = 'insert')", quoted(p.Name)),
			"publication %s does not publish inserts (it publishes: %s)", quoted(p.Name), orNothing(p.Publishes()))
	}
	if pg.Table == nil {
		return
	}
	entry := p.Find(pg.Table.Schema, pg.Table.Name)
	if entry == nil && !p.ViaPartitionRoot {
		entry = firstLeaf(p, pg.Table)
	}
	if entry == nil {
		if pg.Table.Kind == replication.KindPartitioned && len(pg.Table.Leaves) == 0 && !p.ViaPartitionRoot {
			fs.warn("publication-partitions", fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = true)", quoted(p.Name)),
				"table %s has no partition yet, so it cannot be seen whether publication %s holds it", names.Table, quoted(p.Name))
			return
		}
		fs.fail("publication-table", fmt.Sprintf("ALTER PUBLICATION %s ADD TABLE %s", quoted(p.Name), names.Table),
			"publication %s does not hold table %s", quoted(p.Name), names.Table)
		return
	}
	fs.judgePublishedColumns(p, entry, names)
}

// judgePublishedColumns looks whether a column list leaves out what is needed.
func (fs *Findings) judgePublishedColumns(p *replication.PublicationInfo, entry *replication.PublishedTable, names Names) {
	if entry.Columns == nil {
		return
	}
	for _, need := range NeededColumns(names.Columns, names.Subject) {
		if need.Column != "" && !slices.Contains(entry.Columns, need.Column) {
			fs.fail("publication-columns", fmt.Sprintf("ALTER PUBLICATION %s SET TABLE %s", quoted(p.Name), names.Table),
				"publication %s leaves out column %s of table %s (mapped to %s)", quoted(p.Name), decode.QuoteIdentifier(need.Column), names.Table, need.Name)
			return
		}
	}
}

func firstLeaf(p *replication.PublicationInfo, t *replication.TableInfo) *replication.PublishedTable {
	for _, leaf := range t.Leaves {
		if entry := p.Find(leaf.Schema, leaf.Name); entry != nil {
			return entry
		}
	}
	return nil
}

func (fs *Findings) judgeSlot(pg Postgres, names Names) {
	s := pg.Slot
	anew := fmt.Sprintf("outbox-cdc slot drop --slot %s --yes, then outbox-cdc slot create --slot %s (what was committed in between is not streamed)", names.Slot, names.Slot)
	switch {
	case s == nil:
		fs.fail("slot-missing", fmt.Sprintf("outbox-cdc setup --slot %s creates it; what was committed before is not streamed", names.Slot),
			"slot %s does not exist on this server", names.Slot)
	case s.Type != "logical" || s.Plugin == nil:
		fs.fail("slot-plugin", "give --slot another name", "slot %s is a %s slot, not a logical one", names.Slot, s.Type)
	case *s.Plugin != replication.Plugin:
		fs.fail("slot-plugin", "give --slot another name, or "+anew, "slot %s has the plugin %s, not %s", names.Slot, *s.Plugin, replication.Plugin)
	case s.Database != nil && *s.Database != pg.Server.Database:
		fs.fail("slot-database", "give --slot another name, or --database-url that database",
			"slot %s belongs to database %s, not to %s", names.Slot, *s.Database, pg.Server.Database)
	case s.TwoPhase:
		fs.fail("slot-two-phase", anew, "slot %s has two_phase, which sends other messages", names.Slot)
	case s.Lost():
		fs.fail("slot-lost", anew, "slot %s is lost (%s): the server has removed WAL that it needs", names.Slot, lostReason(s))
	case s.Temporary:
		fs.fail("slot-temporary", "give --slot another name", "slot %s is temporary: it ends with the session that made it", names.Slot)
	}
}

func lostReason(s *replication.SlotInfo) string {
	switch {
	case s.InvalidationReason != nil:
		return *s.InvalidationReason
	case s.WALStatus != nil:
		return "wal_status " + *s.WALStatus
	default:
		return "no restart_lsn"
	}
}

func orNothing(text string) string {
	if text == "" {
		return "nothing"
	}
	return text
}

func quoted(name string) string { return decode.QuoteIdentifier(name) }

// SlotFault returns what a person must mend about the slot alone, or nil.
func SlotFault(pg Postgres, names Names) error {
	var fs Findings
	fs.judgeSlot(pg, names)
	return fs.Fault()
}

// PublicationFault returns what a person must mend about the publication alone, or nil.
func PublicationFault(pg Postgres, names Names) error {
	var fs Findings
	fs.judgePublication(pg, names)
	return fs.Fault()
}

// ServerFault returns what a person must mend about the server's settings, or nil.
func ServerFault(pg Postgres) error {
	var fs Findings
	fs.judgeServer(pg.Server)
	return fs.Fault()
}
