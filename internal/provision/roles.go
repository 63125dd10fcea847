package provision

import (
	"fmt"
	"strings"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/migrations"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// ForwarderRole is the name that the printed statements give to the forwarder's role.
const ForwarderRole = "outbox_cdc"

// RoleSQL returns the statements for a role that has just the rights that the forwarder
// needs. Streaming takes REPLICATION and CONNECT alone; the rest is for what it reads of
// the outbox and writes beside it. Setup prints them and never runs them.
func RoleSQL(names Names, database string) []string {
	schema := decode.QuoteIdentifier(names.Table.Schema)
	table := func(name string) string {
		return decode.TableName{Schema: names.Table.Schema, Name: name}.String()
	}
	return []string{
		fmt.Sprintf("CREATE ROLE %s LOGIN REPLICATION;", ForwarderRole),
		fmt.Sprintf("GRANT CONNECT ON DATABASE %s TO %s;", decode.QuoteIdentifier(database), ForwarderRole),
		fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", schema, ForwarderRole),
		fmt.Sprintf("GRANT SELECT ON %s, %s TO %s;", names.Table, table(migrations.VersionTable), ForwarderRole),
		fmt.Sprintf("GRANT SELECT, INSERT, UPDATE ON %s, %s TO %s;", table("outbox_dead_letter"), table("outbox_request"), ForwarderRole),
		fmt.Sprintf("GRANT pg_read_all_stats TO %s;", ForwarderRole),
	}
}

// roleNotes say what the statements leave to a person.
const roleNotes = `-- Roles with the least rights (setup does not make them). Give the role a password
-- (\password outbox_cdc) or a certificate, and pg_hba.conf a line for the database, such as
--   hostssl DATABASE outbox_cdc 10.0.0.0/8 scram-sha-256
-- REPLICATION can read every publication and drop any slot: keep it off application roles.
-- pg_read_all_stats is for --takeover-after: without it nobody sees when the leader last
-- answered, not even its own role, and a standby never takes over from a frozen leader.
`

// producerNotes say what other roles need.
func producerNotes(names Names) string {
	return fmt.Sprintf("-- Producers need no more than INSERT ON %s and USAGE ON SCHEMA %s.\n-- To prune, outbox_cdc also needs DELETE ON %s.\n",
		names.Table, decode.QuoteIdentifier(names.Table.Schema), names.Table)
}

// natsNotes are the permissions of the forwarder's NATS user.
func natsNotes(spec sink.StreamSpec) string {
	return fmt.Sprintf(`-- The forwarder's NATS user needs to publish to %[1]s,
-- $JS.API.STREAM.INFO.%[2]s and $JS.API.STREAM.MSG.GET.%[2]s, and to subscribe to _INBOX.>
-- verify also publishes to $JS.API.CONSUMER.CREATE.%[2]s.>, $JS.API.CONSUMER.MSG.NEXT.%[2]s.>
-- and $JS.API.CONSUMER.DELETE.%[2]s.>
`, strings.Join(spec.Subjects, ", "), spec.Name)
}

// Script returns the plan as SQL that psql can run, with the stream's configuration in
// comments.
func (p *Plan) Script() string {
	var b strings.Builder
	fmt.Fprintf(&b, "-- outbox-cdc setup: database %s, PostgreSQL %s\n", p.Server.Database, p.Server.Version)
	for _, action := range p.Actions {
		if action.Result == ResultExists {
			fmt.Fprintf(&b, "\n-- %s %s: exists\n", action.Part, action.Name)
			continue
		}
		fmt.Fprintf(&b, "\n-- %s %s: to be created\n%s", action.Part, action.Name, action.SQL)
		if action.Stream != nil {
			b.WriteString("-- " + strings.ReplaceAll(string(action.Stream), "\n", "\n-- ") + "\n")
		}
	}
	b.WriteString("\n" + roleNotes)
	b.WriteString(strings.Join(RoleSQL(p.opts.Names, p.Server.Database), "\n") + "\n")
	b.WriteString(producerNotes(p.opts.Names))
	if !p.opts.NoStream {
		b.WriteString(natsNotes(p.opts.Stream))
	}
	return b.String()
}
