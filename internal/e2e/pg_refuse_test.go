package e2e

import (
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// Each case spoils one thing that only a person can mend.
func TestStartRefusesWithExit3AndNamesWhatAPersonMustMend(t *testing.T) {
	cases := []struct {
		claim      string
		statements func(o *outbox) []string
		elsewhere  func(o *outbox) []string // in another database
		args       []string
		what, hint string
	}{
		{
			claim: "slot that does not exist",
			statements: func(o *outbox) []string {
				return []string{"SELECT pg_drop_replication_slot('" + o.slot + "')"}
			},
			what: "slot ob_.* does not exist", hint: "outbox-cdc setup",
		},
		{
			claim: "slot with two_phase",
			statements: func(o *outbox) []string {
				return []string{"SELECT pg_drop_replication_slot('" + o.slot + "')",
					"SELECT pg_create_logical_replication_slot('" + o.slot + "', 'pgoutput', false, true)"}
			},
			what: "slot ob_.* two_phase", hint: "outbox-cdc slot drop",
		},
		{
			claim: "slot of another plugin",
			statements: func(o *outbox) []string {
				return []string{"SELECT pg_drop_replication_slot('" + o.slot + "')",
					"SELECT pg_create_logical_replication_slot('" + o.slot + "', 'test_decoding')"}
			},
			what: "slot ob_.* test_decoding", hint: "--slot",
		},
		{
			claim: "slot of another database",
			statements: func(o *outbox) []string {
				return []string{"SELECT pg_drop_replication_slot('" + o.slot + "')"}
			},
			elsewhere: func(o *outbox) []string {
				return []string{"SELECT pg_create_logical_replication_slot('" + o.slot + "', 'pgoutput')"}
			},
			what: "slot ob_.* database", hint: "--slot|--database-url",
		},
		{
			claim: "physical slot",
			statements: func(o *outbox) []string {
				return []string{"SELECT pg_drop_replication_slot('" + o.slot + "')",
					"SELECT pg_create_physical_replication_slot('" + o.slot + "')"}
			},
			what: "slot ob_.* physical", hint: "--slot",
		},
		{
			claim:      "publication that does not exist",
			statements: func(o *outbox) []string { return []string{"DROP PUBLICATION " + o.slot} },
			what:       "publication ob_.* does not exist", hint: "CREATE PUBLICATION",
		},
		{
			claim:      "publication without the table",
			statements: func(o *outbox) []string { return []string{"ALTER PUBLICATION " + o.slot + " DROP TABLE outbox"} },
			what:       "publication ob_.* table public.outbox", hint: "ALTER PUBLICATION ob_.* ADD TABLE public.outbox",
		},
		{
			claim:      "publication without inserts",
			statements: func(o *outbox) []string { return []string{"ALTER PUBLICATION " + o.slot + " SET (publish = 'update')"} },
			what:       "publication ob_.* insert", hint: "ALTER PUBLICATION",
		},
		{
			claim: "table that does not exist", statements: func(*outbox) []string { return nil },
			args: []string{"--table", "public.outbx"}, what: "table public.outbx does not exist", hint: "outbox-cdc setup|--table",
		},
		{
			claim:      "required column that is missing",
			statements: func(*outbox) []string { return []string{"ALTER TABLE outbox RENAME COLUMN event_id TO uid"} },
			what:       "table public.outbox .*event_id", hint: "--columns event_id=.*uid",
		},
		{
			claim: "mapped column that is missing", statements: func(*outbox) []string { return nil },
			args: []string{"--columns", "payload=bdy"}, what: "table public.outbox .*bdy", hint: "--columns payload=",
		},
		{
			claim: "column of the subject that is missing", statements: func(*outbox) []string { return []string{"ALTER TABLE outbox DROP COLUMN event_type"} },
			what: "table public.outbox .*event_type", hint: "--columns event_type=",
		},
		{
			claim: "column that the publication leaves out",
			statements: func(o *outbox) []string {
				return []string{"ALTER PUBLICATION " + o.slot + " SET TABLE outbox (event_id, event_type, aggregate_type)"}
			},
			what: "publication ob_.* payload", hint: "ALTER PUBLICATION",
		},
	}
	for _, c := range cases {
		t.Run(c.claim, func(t *testing.T) {
			o := newOutbox(t, testenv.NATS(t).URL())
			o.exec(c.statements(o)...)
			if c.elsewhere != nil {
				testenv.Exec(t, testenv.Postgres(t).NewDatabase(t), c.elsewhere(o)...)
			}
			p := o.start(c.args...)
			p.WaitExit(3, testenv.Deadline)
			expectRefusal(t, p, c.what, c.hint)
		})
	}
}

// Up to PostgreSQL 17 the server fails at the first row; 18 only warns, inside the stream.
func TestPublicationDroppedWhileRunningStopsTheForwarderBeforeTheRow(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming("--status-interval", fastStatus)
	o.insert("before", 1)
	o.waitStored(1)
	o.waitConfirmed()
	o.exec("DROP PUBLICATION " + o.slot)
	dropped := o.walEndLSN()
	o.insert("missed", 1)
	inserted := o.walEndLSN()
	p.WaitExit(3, testenv.Deadline)
	expectRefusal(t, p, "publication.*"+o.slot, "outbox-cdc (status|setup)")
	if silentSince := 18; testenv.Postgres(t).Major() < silentSince && !strings.Contains(p.Stderr(), "SQLSTATE 42704") {
		t.Errorf("it was not the server that said so:\n%s", p.Stderr())
	}
	if told := parseLSN(t, o.confirmed()); told >= inserted {
		t.Errorf("the slot was confirmed up to %s; the row that was not published lies between %s and %s", told, dropped, inserted)
	}

	again := o.start()
	again.WaitExit(3, testenv.Deadline)
	expectRefusal(t, again, "publication "+o.slot+" does not exist", "CREATE PUBLICATION.*slot "+o.slot+" anew")

	// A publication that was made again does not mend the slot: 15 to 17 look it up as of the row.
	o.exec("CREATE PUBLICATION " + o.slot + " FOR TABLE outbox WITH (publish = 'insert')")
	third := o.start()
	third.WaitExit(3, testenv.Deadline)
	expectRefusal(t, third, "publication.*"+o.slot, "slot")
	o.expectEvents(o.ours(), o.eventIDs("before"))
}
