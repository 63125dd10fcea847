package cli

import (
	"context"
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
)

func migrateCommand() command {
	to := setting{name: "to", value: "N", def: "none", usage: "stop at this migration", check: orWord("none", integerBetween(0, 9999)), group: groupCommand}
	return command{
		name: "migrate", usage: "up, down, status, sql: the tables",
		long: "The tables are made by numbered migrations, in the schema of --table. A table that stands\n" +
			"at --table already is left as it is. setup does \"migrate up\" too.",
		example: "outbox-cdc migrate status",
		commands: []command{
			{
				name: "up", usage: "make the tables that are missing",
				example:  "outbox-cdc migrate up --table public.outbox",
				settings: []setting{to, dryRunSetting("print the SQL, change nothing"), jsonSetting()},
				run:      runMigrateUp,
			},
			{
				name: "down", usage: "drop the tables, newest first, with all rows in them",
				long: "Drops the tables of all migrations above --to (0: of all), and with them every event, dead\n" +
					"letter and inbox row that they hold. Events that were not yet delivered are lost, unless the\n" +
					"slot has them in its WAL already. Tables that were there before, and those that another outbox\n" +
					"of the schema uses, stay.",
				example:  "outbox-cdc migrate down --to 0 --dry-run",
				settings: []setting{to, yesSetting(), dryRunSetting("print what would be undone, change nothing"), jsonSetting()},
				run:      runMigrateDown,
			},
			{
				name: "status", usage: "list the migrations and which are done",
				example:  "outbox-cdc migrate status --json",
				settings: []setting{jsonSetting()},
				run:      runMigrateStatus,
			},
			{
				name: "sql", usage: "print the SQL of all tables, without a connection",
				example:  "outbox-cdc migrate sql | psql \"$DATABASE_URL\"",
				settings: []setting{{name: "down", usage: "print what drops them again", group: groupCommand}},
				run: func(_ context.Context, in *invocation) error {
					sql, err := provision.MigrationSQL(provision.Names{Table: in.table()}.Target(), in.on("down"))
					if err != nil {
						return err
					}
					return printf(in.stdout, "%s", sql)
				},
			},
		},
	}
}

// migrateTo is the version to stop at; 0 where none is given.
func (in *invocation) migrateTo() int {
	if in.isWord("to") {
		return 0
	}
	return in.integer("to")
}

// withMigrator connects and runs work.
func (in *invocation) withMigrator(ctx context.Context, work func(*provision.Migrator) error) error {
	admin, err := in.openAdmin(ctx)
	if err != nil {
		return err
	}
	defer admin.Close()
	migrator, err := provision.NewMigrator(admin, provision.Names{Table: in.table()}.Target())
	if err != nil {
		return err
	}
	return work(migrator)
}

func runMigrateUp(ctx context.Context, in *invocation) error {
	return in.withMigrator(ctx, func(m *provision.Migrator) error {
		if in.on("dry-run") {
			list, err := m.Pending(ctx, in.migrateTo())
			if err != nil {
				return err
			}
			return in.reportMigrations(list, "would be done")
		}
		done, err := m.Up(ctx, in.migrateTo())
		if reportErr := in.reportMigrations(done, "done"); reportErr != nil {
			return reportErr
		}
		return err
	})
}

func runMigrateDown(ctx context.Context, in *invocation) error {
	if in.isWord("to") {
		return fault.NewUsage("migrate down needs --to: the migration that stays last (0 undoes all)", "outbox-cdc migrate status lists them")
	}
	if !in.on("dry-run") {
		if err := in.confirm("the tables are dropped with every row in them"); err != nil {
			return err
		}
	}
	return in.withMigrator(ctx, func(m *provision.Migrator) error {
		if in.on("dry-run") {
			list, err := m.Undoable(ctx, in.migrateTo())
			if err != nil {
				return err
			}
			return in.reportMigrations(list, "would be undone")
		}
		undone, err := m.Down(ctx, in.migrateTo())
		if reportErr := in.reportMigrations(undone, "undone"); reportErr != nil {
			return reportErr
		}
		return err
	})
}

func runMigrateStatus(ctx context.Context, in *invocation) error {
	return in.withMigrator(ctx, func(m *provision.Migrator) error {
		list, err := m.Status(ctx)
		if err != nil {
			return err
		}
		if in.on("json") {
			return printJSON(in.stdout, map[string]any{"migrations": list})
		}
		for _, step := range list {
			state := "not done"
			if step.Applied {
				state = fmt.Sprintf("done %s", step.AppliedAt.Format("2006-01-02 15:04:05"))
				if step.Adopted {
					state += ", the table was there before"
				}
			}
			if err := printf(in.stdout, "%04d %-12s %s\n", step.Version, step.Name, state); err != nil {
				return err
			}
		}
		return nil
	})
}

// reportMigrations prints the steps of which something is said; SQL where they carry it.
func (in *invocation) reportMigrations(list []provision.Migration, what string) error {
	if in.on("json") {
		if list == nil {
			list = []provision.Migration{}
		}
		return printJSON(in.stdout, map[string]any{"migrations": list})
	}
	if len(list) == 0 {
		return printf(in.stdout, "nothing to do\n")
	}
	for _, step := range list {
		note := ""
		if step.Adopted {
			note = " (the table stays as it is)"
		}
		if err := printf(in.stdout, "-- %04d %s: %s%s\n%s", step.Version, step.Name, what, note, step.SQL); err != nil {
			return err
		}
	}
	return nil
}
