package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// Row 22: a migration drops and makes the table anew; nobody publishes it. What was
// inserted meanwhile is in the table alone.
func TestReplayBringsBackWhatWasInsertedWhileTheTableWasNotPublished(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	_, side := o.startHTTPStreaming()
	o.insert("before", 2)
	o.waitStored(2)
	o.exec("ALTER TABLE outbox RENAME TO outbox_model", "CREATE TABLE outbox (LIKE outbox_model INCLUDING ALL)", "DROP TABLE outbox_model")
	o.insert("lost", 3)
	side.waitRedFor("publi")
	o.waitConfirmed() // the slot knows nothing of them
	o.exec("ALTER PUBLICATION " + o.slot + " ADD TABLE outbox")
	side.waitReady()
	o.insert("after", 2)
	o.waitStored(4)
	o.expectReport(0, requestReport{Selected: 3, Stored: 3}, "replay", "--aggregate", "order/lost")
	rows := o.rows()
	o.expectAgain(rows[:3])
	o.expectReport(0, requestReport{Selected: 5, Stored: 5}, "replay", "--since", "1h", "--fresh-ids")
}

// Row 19.
func TestReplayReadsNamesInQuotesAsTheyAre(t *testing.T) {
	t.Parallel()
	o := &outbox{
		tb: t, databaseURL: testenv.Postgres(t).NewDatabase(t), natsURL: testenv.NATS(t).URL(),
		slot: testenv.UniqueName("ob"), stream: testenv.UniqueName("OB"), table: `"Billing-EU"."Order.Outbox"`,
	}
	o.forwarderDatabaseURL, o.forwarderNATSURL = o.databaseURL, o.natsURL
	o.extra = []string{"--publication", "Billing-Pub", "--columns", `event_id=user,aggregate_type=order,aggregate_id="Agg""Id",event_type=Type,payload=Payload,order="No. 1"`}
	const columns = `("No. 1" int GENERATED ALWAYS AS IDENTITY, "user" text, "order" text, "Agg""Id" int, "Type" text, "Payload" text, payload text DEFAULT 'decoy')`
	o.exec(`CREATE SCHEMA "Billing-EU"`, `CREATE SCHEMA billing`, `CREATE TABLE "Billing-EU"."Order.Outbox"`+columns, `CREATE TABLE billing.outbox`+columns)
	setup := o.run("setup")
	setup.WaitExit(0, testenv.Deadline)
	o.startStreaming()
	const insert = ` ("user", "order", "Agg""Id", "Type", "Payload") VALUES ('b', 'order', 7, 'placed', 'one'), ('a,"x''', 'order', 7, 'placed', 'two'), ('c', 'order', 8, 'placed', 'three')`
	o.exec(`INSERT INTO billing.outbox`+insert, `INSERT INTO "Billing-EU"."Order.Outbox"`+insert)
	o.waitStored(3)
	o.waitConfirmed()
	o.expectReport(0, requestReport{Selected: 2, Stored: 2}, "replay", "--aggregate", "order/7", "--fresh-ids")
	o.expectReport(0, requestReport{Selected: 1, Stored: 1}, "replay", "--event-id", `a,"x'`, "--fresh-ids")
	o.expectAgain([]string{"b", `a,"x'`, `a,"x'`})
	first, second := o.stored()[1], again(o.stored())[1]
	if string(first.Data) != string(second.Data) || first.Subject != second.Subject {
		t.Errorf("published again as %s on %s, the first time as %s on %s", second.Data, second.Subject, first.Data, first.Subject)
	}
	p := o.run("replay", "--since", "1h")
	expectStop(t, p, "--since", "occurred_at")
	if got := testenv.Query(t, o.databaseURL, `SELECT count(*)::text FROM "Billing-EU".outbox_request WHERE state = 'done'`); got[0] != "2" {
		t.Errorf("%s requests were done", got[0])
	}
}

func TestReplayReadsAPartitionedTable(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t).NewDatabase(t)
	o := newForeignOutbox(t, database, testenv.NATS(t).URL(), []string{
		`CREATE TABLE outbox(id bigint GENERATED ALWAYS AS IDENTITY, day date NOT NULL,
			event_id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL,
			aggregate_version bigint, event_type text NOT NULL, payload jsonb, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)`,
		`CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM ('2026-01-01') TO ('2026-01-02')`,
		`CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM ('2026-01-02') TO ('2026-01-03')`,
	})
	o.setup("--no-slot", "--no-stream") // the tables of requests and dead letters
	o.startStreaming()
	o.exec(`INSERT INTO outbox (day, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
		SELECT '2026-01-01'::date + i % 2, 'order', 'a', i, 'placed', jsonb_build_object('n', i) FROM generate_series(1, 40) i`)
	o.waitStored(40)
	o.waitConfirmed()
	o.expectReport(0, requestReport{Selected: 40, Stored: 40}, "replay", "--aggregate", "order/a", "--fresh-ids")
	o.expectAgain(o.rows())
}

func TestReplayTakesExactlyOneWayToChooseEvents(t *testing.T) {
	t.Parallel()
	o := &outbox{tb: t, slot: "a", stream: "S", table: "outbox", forwarderDatabaseURL: "postgres://nobody@127.0.0.1:1/x", forwarderNATSURL: "nats://127.0.0.1:1"}
	for _, tc := range []struct {
		args []string
		word string
	}{
		{nil, "replay needs to know which events"},
		{[]string{"--event-id", "a", "--aggregate", "order/1"}, "one of --event-id, --aggregate"},
		{[]string{"--dead", "--since", "1h"}, "one of --since, --dead"},
		{[]string{"--until", "1h"}, "--until belongs to --since"},
		{[]string{"--since", "1h", "--until", "2h"}, "--until is not later than --since"},
		{[]string{"--since", "yesterday"}, "--since \"yesterday\" must be a time"},
		{[]string{"--aggregate", "order"}, "--aggregate \"order\" must be an aggregate's type and id"},
		{[]string{"--event-id", ""}, "--event-id \"\" is empty"},
	} {
		p := o.run(append([]string{"replay"}, tc.args...)...)
		p.WaitExit(2, testenv.Deadline)
		if !strings.Contains(p.Stderr(), tc.word) || !strings.Contains(p.Stderr(), "\nhint: ") {
			t.Errorf("%v: %s", tc.args, p.Stderr())
		}
	}
}

func TestARequestForAnotherTableThanTheForwardersIsRefused(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("a", 1)
	o.startStreaming()
	o.waitStored(1)
	o.waitConfirmed()
	other := *o
	other.stream = testenv.UniqueName("OTHER")
	p := other.run("replay", "--aggregate", "order/a")
	expectStop(t, p, fmt.Sprintf("--stream %s, not %s", o.stream, other.stream))
	o.expectAgain(nil)
}
