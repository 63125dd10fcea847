package provision

import (
	"context"
	"fmt"
	"strings"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// deadLetterRights are what the forwarder needs on the table.
var deadLetterRights = []string{"SELECT", "INSERT", "UPDATE"}

// judgeDeadLetters looks whether an event that can never be published could be stored.
func (fs *Findings) judgeDeadLetters(ctx context.Context, admin *replication.Admin, role string, names Names) error {
	t, err := admin.Table(ctx, names.Table.Schema, deadletter.Table)
	if err != nil {
		return err
	}
	name := names.deadLetters()
	const halt = "; with --on-poison halt it is not needed"
	switch {
	case t == nil:
		fs.fail("dead-letter-table", names.migrateUp()+halt, "table %s does not exist: an event that can never be published could not be stored", name)
		return nil
	case t.Column("event") == nil:
		fs.fail("dead-letter-table", names.migrateUp()+halt, "table %s has no column event: it is of an older version", name)
		return nil
	}
	var usage bool
	if _, err := admin.Lookup(ctx, []any{&usage}, `SELECT has_schema_privilege($1::text, 'USAGE')`, names.Table.Schema); err != nil {
		return fmt.Errorf("look at the rights on schema %s: %w", names.Table.Schema, err)
	}
	if !usage {
		schema := decode.QuoteIdentifier(names.Table.Schema)
		fs.fail("dead-letter-rights", fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", schema, decode.QuoteIdentifier(role)),
			"role %s may not use schema %s: an event that can never be published could not be stored", role, schema)
		return nil
	}
	var missing []string
	for _, right := range deadLetterRights {
		var has bool
		if _, err := admin.Lookup(ctx, []any{&has}, `SELECT has_table_privilege($1::oid, $2::text)`, t.OID, right); err != nil {
			return fmt.Errorf("look at the rights on table %s: %w", name, err)
		}
		if !has {
			missing = append(missing, right)
		}
	}
	if len(missing) > 0 {
		fs.fail("dead-letter-rights", names.grantDeadLetters(decode.QuoteIdentifier(role))+halt,
			"role %s lacks %s on table %s: an event that can never be published could not be stored", role, strings.Join(missing, ", "), name)
	}
	return nil
}

func (n Names) deadLetters() decode.TableName {
	return decode.TableName{Schema: n.Table.Schema, Name: deadletter.Table}
}

func (n Names) migrateUp() string {
	if n.Table.Schema == "public" && n.Table.Name == "outbox" {
		return "outbox-cdc migrate up"
	}
	return fmt.Sprintf("outbox-cdc migrate up --table '%s'", n.Table)
}

func (n Names) grantDeadLetters(role string) string {
	return fmt.Sprintf("GRANT %s ON %s TO %s", strings.Join(deadLetterRights, ", "), n.deadLetters(), role)
}

// DeadLetterFix is the command or statement after which letters can be read and stored again,
// where a SQLSTATE says that the table is not there, is of an older version, or is not ours
// to use; else empty.
func DeadLetterFix(names Names, sqlState string) string {
	switch sqlState {
	case "42P01", "42703", "3F000":
		return names.migrateUp()
	case "42501":
		return names.grantDeadLetters("the role of --database-url")
	default:
		return ""
	}
}
