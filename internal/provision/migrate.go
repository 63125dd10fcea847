package provision

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/migrations"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// migrationLock is the key of the advisory lock under which each step runs, so that two
// at once do each step once. It is "outbox" in ASCII.
const migrationLock = 0x6f7574626f78

// Migration is a step and whether it is done.
type Migration struct {
	Version   int        `json:"version"`
	Name      string     `json:"name"`
	Applied   bool       `json:"applied"`
	AppliedAt *time.Time `json:"applied_at"`
	// Adopted says that the table was there before and is not ours: down leaves it.
	Adopted bool `json:"adopted"`
	// SQL is set by Pending and Undoable alone.
	SQL string `json:"sql,omitempty"`
}

// Migrator does and undoes the steps for one outbox. It belongs to one goroutine.
type Migrator struct {
	admin  *replication.Admin
	target migrations.Target
	steps  []migrations.Step
}

// NewMigrator prepares the steps of the outbox table.
func NewMigrator(admin *replication.Admin, target migrations.Target) (*Migrator, error) {
	steps, err := migrations.Steps()
	if err != nil {
		return nil, err
	}
	return &Migrator{admin: admin, target: target, steps: steps}, nil
}

// Status lists all steps.
func (m *Migrator) Status(ctx context.Context) ([]Migration, error) {
	list := make([]Migration, len(m.steps))
	known, err := m.hasVersionTable(ctx)
	if err != nil {
		return nil, err
	}
	for i, step := range m.steps {
		list[i] = Migration{Version: step.Version, Name: step.Name}
		if !known {
			continue
		}
		var at time.Time
		found, err := m.admin.Lookup(ctx, []any{&at, &list[i].Adopted},
			"SELECT applied_at, adopted FROM "+m.target.VersionTableName()+" WHERE outbox = $1 AND version = $2", m.target.Table, step.Version)
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", m.target.VersionTableName(), err)
		}
		if found {
			list[i].Applied, list[i].AppliedAt = true, &at
		}
	}
	return list, nil
}

func (m *Migrator) hasVersionTable(ctx context.Context) (bool, error) {
	t, err := m.admin.Table(ctx, m.target.Schema, migrations.VersionTable)
	return t != nil, err
}

// Up does the steps that are not done, up to and including a version (0 for all), each
// in a transaction of its own, and returns them. A table that stands where the outbox should be is left alone.
func (m *Migrator) Up(ctx context.Context, to int) ([]Migration, error) {
	if err := m.checkVersion(to); err != nil {
		return nil, err
	}
	if err := m.prepare(ctx); err != nil {
		return nil, err
	}
	var done []Migration
	for _, step := range m.steps {
		if to > 0 && step.Version > to {
			break
		}
		applied, adopted := false, false
		err := m.admin.InTransaction(ctx, func(tx replication.Tx) error {
			var err error
			applied, adopted, err = m.upStep(ctx, tx, step)
			return err
		})
		if err != nil {
			return done, fmt.Errorf("apply migration %d (%s): %w", step.Version, step.Name, err)
		}
		if applied {
			done = append(done, Migration{Version: step.Version, Name: step.Name, Applied: true, Adopted: adopted})
		}
	}
	return done, nil
}

// Pending lists the steps that Up would do, with their SQL.
func (m *Migrator) Pending(ctx context.Context, to int) ([]Migration, error) {
	if err := m.checkVersion(to); err != nil {
		return nil, err
	}
	list, err := m.Status(ctx)
	if err != nil {
		return nil, err
	}
	outbox, err := m.admin.Table(ctx, m.target.Schema, m.target.Table)
	if err != nil {
		return nil, err
	}
	var pending []Migration
	for i, step := range list {
		if step.Applied || to > 0 && step.Version > to {
			continue
		}
		step.Adopted = step.Version == migrations.OutboxStep && outbox != nil
		if !step.Adopted {
			step.SQL = m.steps[i].Up(m.target)
		}
		pending = append(pending, step)
	}
	return pending, nil
}

// Undoable lists the steps that Down would undo, newest first, with their SQL.
func (m *Migrator) Undoable(ctx context.Context, to int) ([]Migration, error) {
	if err := m.checkVersion(to); err != nil {
		return nil, err
	}
	list, err := m.Status(ctx)
	if err != nil {
		return nil, err
	}
	var undoable []Migration
	for i, step := range slices.Backward(list) {
		if !step.Applied || step.Version <= to {
			continue
		}
		if !step.Adopted {
			step.SQL = m.steps[i].Down(m.target)
		}
		undoable = append(undoable, step)
	}
	return undoable, nil
}

// prepare makes the schema and the table of steps done, where they are missing.
func (m *Migrator) prepare(ctx context.Context) error {
	known, err := m.hasVersionTable(ctx)
	if err != nil || known {
		return err
	}
	err = m.admin.InTransaction(ctx, func(tx replication.Tx) error {
		if err := lockMigrations(ctx, tx); err != nil {
			return err
		}
		exists, err := tx.Lookup(ctx, []any{new(int)}, "SELECT 1 FROM pg_namespace WHERE nspname = $1", m.target.Schema)
		if err != nil {
			return err
		}
		sql := m.target.VersionTableSQL()
		if !exists {
			sql = m.target.SchemaSQL() + sql
		}
		return tx.Exec(ctx, sql)
	})
	if err != nil {
		return fmt.Errorf("create table %s: %w", m.target.VersionTableName(), err)
	}
	return nil
}

func lockMigrations(ctx context.Context, tx replication.Tx) error {
	return tx.Exec(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", migrationLock))
}

func (m *Migrator) upStep(ctx context.Context, tx replication.Tx, step migrations.Step) (applied, adopted bool, err error) {
	if err := lockMigrations(ctx, tx); err != nil {
		return false, false, err
	}
	done, err := tx.Lookup(ctx, []any{new(int)}, "SELECT version FROM "+m.target.VersionTableName()+" WHERE outbox = $1 AND version = $2", m.target.Table, step.Version)
	if err != nil || done {
		return false, false, err
	}
	if step.Version == migrations.OutboxStep {
		adopted, err = tx.Lookup(ctx, []any{new(int)},
			"SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2", m.target.Schema, m.target.Table)
		if err != nil {
			return false, false, err
		}
	}
	sql := step.RecordSQL(m.target, adopted)
	if !adopted {
		sql = step.Up(m.target) + sql
	}
	return true, adopted, tx.Exec(ctx, sql)
}

// Down undoes the steps above a version, newest first, and returns them. The rows of
// their tables are gone with them. Tables that another outbox of the schema uses stay, and so does an adopted one.
func (m *Migrator) Down(ctx context.Context, to int) ([]Migration, error) {
	if err := m.checkVersion(to); err != nil {
		return nil, err
	}
	known, err := m.hasVersionTable(ctx)
	if err != nil || !known {
		return nil, err
	}
	var done []Migration
	for _, step := range slices.Backward(m.steps) {
		if step.Version <= to {
			break
		}
		undone, adopted := false, false
		err := m.admin.InTransaction(ctx, func(tx replication.Tx) error {
			var err error
			undone, adopted, err = m.downStep(ctx, tx, step)
			return err
		})
		if err != nil {
			return done, fmt.Errorf("undo migration %d (%s): %w", step.Version, step.Name, err)
		}
		if undone {
			done = append(done, Migration{Version: step.Version, Name: step.Name, Adopted: adopted})
		}
	}
	return done, nil
}

func (m *Migrator) downStep(ctx context.Context, tx replication.Tx, step migrations.Step) (undone, adopted bool, err error) {
	if err := lockMigrations(ctx, tx); err != nil {
		return false, false, err
	}
	var others int
	found, err := tx.Lookup(ctx, []any{&adopted, &others}, "SELECT v.adopted, (SELECT count(*) FROM "+m.target.VersionTableName()+
		" o WHERE o.version = v.version AND o.outbox <> v.outbox)::int FROM "+m.target.VersionTableName()+" v WHERE v.outbox = $1 AND v.version = $2",
		m.target.Table, step.Version)
	if err != nil || !found {
		return false, false, err
	}
	sql := step.ForgetSQL(m.target)
	shared := step.Version != migrations.OutboxStep && others > 0
	if !adopted && !shared {
		sql = step.Down(m.target) + sql
	}
	return true, adopted || shared, tx.Exec(ctx, sql)
}

// MigrationSQL returns the script of all steps, for a person to run: up from nothing, or
// down to nothing. It needs no connection.
func MigrationSQL(target migrations.Target, down bool) (string, error) {
	steps, err := migrations.Steps()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("BEGIN;\n")
	if down {
		for _, step := range slices.Backward(steps) {
			b.WriteString(step.Down(target) + step.ForgetSQL(target))
		}
	} else {
		if target.Schema != "public" {
			b.WriteString(strings.Replace(target.SchemaSQL(), "CREATE SCHEMA", "CREATE SCHEMA IF NOT EXISTS", 1))
		}
		b.WriteString(target.VersionTableSQL())
		for _, step := range steps {
			b.WriteString(step.Up(target) + step.RecordSQL(target, false))
		}
	}
	b.WriteString("COMMIT;\n")
	return b.String(), nil
}

// checkVersion makes sure that a version to stop at exists.
func (m *Migrator) checkVersion(to int) error {
	if last := m.steps[len(m.steps)-1].Version; to < 0 || to > last {
		return fault.NewUsage(fmt.Sprintf("--to %d is not a migration", to), fmt.Sprintf("the newest is %d; outbox-cdc migrate status lists them", last))
	}
	return nil
}
