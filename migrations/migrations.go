package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

//go:embed sql/*.sql
var files embed.FS

// Step is one numbered change of the tables.
type Step struct {
	Version int
	Name    string
	up      string
	down    string
}

// Target is the outbox table that the steps are for, by its exact name.
type Target struct {
	Schema, Table string
}

// VersionTable is the name, in the outbox's schema, of the table of steps done.
const VersionTable = "outbox_cdc_migration"

// OutboxStep is the version of the step that makes the outbox table itself. All others
// make tables that the outboxes of one schema share.
const OutboxStep = 1

// Steps returns all steps in order.
func Steps() ([]Step, error) {
	names, err := fs.Glob(files, "sql/*.up.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	steps := make([]Step, 0, len(names))
	for _, name := range names {
		base := strings.TrimSuffix(strings.TrimPrefix(name, "sql/"), ".up.sql")
		number, title, _ := strings.Cut(base, "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("read number of migration %s: %w", name, err)
		}
		up, err := files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		down, err := files.ReadFile("sql/" + base + ".down.sql")
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		steps = append(steps, Step{Version: version, Name: title, up: string(up), down: string(down)})
	}
	slices.SortFunc(steps, func(a, b Step) int { return a.Version - b.Version })
	return steps, nil
}

// Up returns the SQL that does the step.
func (s Step) Up(t Target) string { return t.fill(s.up) }

// Down returns the SQL that undoes the step, with the data in its tables.
func (s Step) Down(t Target) string { return t.fill(s.down) }

// SchemaSQL returns the statement that makes the schema where it is missing.
func (t Target) SchemaSQL() string {
	return "CREATE SCHEMA " + quote(t.Schema) + ";\n"
}

// VersionTableSQL returns the statement that makes the table of steps done. Its rows
// belong to one outbox each; adopted says that the table of the first step was there before, and is
// therefore not ours to drop.
func (t Target) VersionTableSQL() string {
	return t.fill(`CREATE TABLE IF NOT EXISTS {schema}.` + VersionTable + ` (
  outbox     text        NOT NULL,
  version    integer     NOT NULL,
  name       text        NOT NULL,
  adopted    boolean     NOT NULL DEFAULT false,
  applied_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (outbox, version)
);
`)
}

// VersionTableName returns the quoted name of the table of steps done.
func (t Target) VersionTableName() string { return quote(t.Schema) + "." + quote(VersionTable) }

// RecordSQL returns the statement that remembers the step.
func (s Step) RecordSQL(t Target, adopted bool) string {
	return fmt.Sprintf("INSERT INTO %s (outbox, version, name, adopted) VALUES (%s, %d, %s, %t);\n",
		t.VersionTableName(), literal(t.Table), s.Version, literal(s.Name), adopted)
}

// ForgetSQL returns the statement that forgets the step.
func (s Step) ForgetSQL(t Target) string {
	return fmt.Sprintf("DELETE FROM %s WHERE outbox = %s AND version = %d;\n", t.VersionTableName(), literal(t.Table), s.Version)
}

func (t Target) fill(sql string) string {
	schema := quote(t.Schema)
	return strings.NewReplacer("{schema}", schema, "{table}", schema+"."+quote(t.Table)).Replace(sql)
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
