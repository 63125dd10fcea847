package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// Ids are compared in the form that headers have, where control characters and blanks at
// the ends are encoded; a table may have neither a time nor an order, and names that need quotes.
func TestVerifyComparesIdsOfAnyTextInTablesOfOthers(t *testing.T) {
	const ids = ` a|a|p\nq|p q|tab\t|Ünï|100%|quote"''\\`
	o := newForeignOutbox(t, testenv.Postgres(t).NewDatabase(t), testenv.NATS(t).URL(), []string{
		`CREATE SCHEMA "Billing-EU"`,
		`CREATE TABLE "Billing-EU"."Order.Outbox" ("Id" text, "Type" text, "user" text, "Pay""load" jsonb)`,
		`CREATE SCHEMA billing`,
		`CREATE TABLE billing.outbox ("Id" text, "Type" text, "user" text, "Pay""load" jsonb)`,
		`INSERT INTO billing.outbox VALUES ('decoy')`,
	}, func(o *outbox) {
		o.table = `"Billing-EU"."Order.Outbox"`
		o.extra = []string{"--columns", `event_id=Id,aggregate_type=Type,event_type=Type,aggregate_id=user,payload="Pay""load"`}
	})
	insert := `INSERT INTO "Billing-EU"."Order.Outbox" SELECT x, 'order', 'u', '{}' FROM unnest(string_to_array(E'%s', '|')) x`
	o.exec(fmt.Sprintf(insert, ids))
	o.deliver()
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 8, in stream 8")
	o.deleteMessage(3)
	o.deleteMessage(5)
	o.exec(fmt.Sprintf(insert, `b\nc`))
	d, _ = o.verify(3)
	o.expectVerified(d, "checked 9, in stream 6, missing 2, pending 1")
	if !slices.Equal(d.missing(), []string{"p\nq", "tab\t"}) {
		t.Errorf("missing %q", d.missing())
	}
	if p := o.run("verify", "--since", "1h"); p.Wait(testenv.Deadline) != 2 || !strings.Contains(p.Stderr(), "no time by which rows could be selected") {
		t.Errorf("--since on a table without a time: %s", p.Stderr())
	}
	o.deleteMessage(1)
	if d, p := o.verify(3); d.MissingCount != 3 || !strings.Contains(p.Stderr(), "has neither an order column nor a time") {
		t.Errorf("got %+v and %s", d, p.Stderr())
	}
}

// A database without an encoding takes ids of any bytes, and headers carry them as they are.
func TestVerifyComparesIdsThatAreNoUTF8(t *testing.T) {
	o := newForeignOutbox(t, newEncodedDatabase(t, "SQL_ASCII"), testenv.NATS(t).URL(), []string{
		"CREATE TABLE outbox(event_id text, aggregate_type text, aggregate_id text, event_type text, payload text)",
	})
	o.exec(`INSERT INTO outbox SELECT convert_from(id, 'SQL_ASCII'), 'order', 'a', 'placed', '' FROM (VALUES ('\x61'::bytea), ('\x61ff'), ('\xfffe')) v(id)`)
	o.deliver("--format", "payload", "--headers", "minimal")
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 3, in stream 3")
}

// The database does not keep ids of a partitioned table unique: verify does.
func TestVerifyReadsAllPartitionsAndShowsIdsThatWereGivenTwice(t *testing.T) {
	o := newForeignOutbox(t, testenv.Postgres(t).NewDatabase(t), testenv.NATS(t).URL(), []string{
		`CREATE TABLE outbox (event_id bigint, aggregate_type text, aggregate_id text, event_type text, payload text, occurred_at timestamp) PARTITION BY RANGE (occurred_at)`,
		`CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')`,
		`CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM ('2026-02-01') TO ('infinity')`,
	})
	// Before any id is stored: those of a longer window are forgotten late.
	o.shortenDuplicateWindow(100 * time.Millisecond)
	insert := `INSERT INTO outbox SELECT i, 'order', 'a' || i, 'placed', '{}', timestamp '2026-01-01' + i * interval '10 days' FROM generate_series(%d, %d) i`
	o.exec(fmt.Sprintf(insert, 1, 6))
	o.deliver()
	o.exec("ALTER PUBLICATION " + o.slot + " SET (publish_via_partition_root = false)")
	o.exec(fmt.Sprintf(insert, 7, 9))
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 9, in stream 6, pending 3")
	beyondTheWindow()
	o.exec("INSERT INTO outbox VALUES (2, 'order', 'a2', 'placed', '{}', '2026-02-02')")
	o.deliver()
	d, _ = o.verify(3)
	o.expectVerified(d, "checked 10, in stream 10, duplicates 1")
	if e := d.Duplicates[0]; e.EventID != "2" || len(e.Sequences) != 2 {
		t.Errorf("duplicate %+v", e)
	}
	d, _ = o.verify(0, "--since", "2026-02-15")
	o.expectVerified(d, "checked 5, in stream 5")
}

func TestVerifyChecksOnlyWhatThePublicationLetsThrough(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.exec("ALTER PUBLICATION " + o.slot + " SET TABLE " + o.table + " WHERE (aggregate_id <> 'other shard')")
	o.insert("this shard", 5)
	o.insert("other shard", 5)
	o.deliver()
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 5, in stream 5")
}

func TestVerifySaysWhatKeepsItFromComparing(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.exec("CREATE ROLE " + o.slot + "_nobody LOGIN PASSWORD 'pw'")
	for _, tc := range []struct {
		name       string
		arrange    func(*outbox)
		args       []string
		code       int
		what, hint string
	}{
		{"no table", func(o *outbox) { o.table = "public.nothing" }, nil, 3, "table public.nothing does not exist", "--table"},
		{"no right to read", func(o *outbox) {
			o.forwarderDatabaseURL = testenv.WithUser(t, o.databaseURL, o.slot+"_nobody", "pw")
		}, nil, 3, "may not read table public.outbox", "GRANT SELECT ON public.outbox TO"},
		{"no stream", func(o *outbox) { o.stream = "NOTHING" }, nil, 3, "stream NOTHING does not exist", "stream create"},
		{"work queue", func(o *outbox) {
			o.stream = testenv.UniqueName("WQ")
			o.createStream(testenv.JetStream(t, o.natsURL), jetstream.StreamConfig{Name: o.stream, Subjects: []string{o.stream + ".>"}, Retention: jetstream.WorkQueuePolicy})
		}, nil, 3, "has workqueue retention: it forgets what was consumed", "limits retention"},
		{"physical slot", func(o *outbox) {
			o.slot = testenv.UniqueName("physical")
			o.exec("SELECT pg_create_physical_replication_slot('" + o.slot + "', true)")
		}, nil, 3, "is a physical slot", "another name"},
		{"not a time", nil, []string{"--since", "yesterday"}, 2, `--since "yesterday" must be a time such as 2026-11-30`, "verify --help"},
		{"not an aggregate", nil, []string{"--aggregate", "42"}, 2, `--aggregate "42" must be an aggregate's type and id`, "verify --help"},
		{"nothing between", nil, []string{"--since", "1h", "--until", "2h"}, 2, "--since is not before --until", "ago"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			changed := *o
			changed.tb = t
			if tc.arrange != nil {
				tc.arrange(&changed)
			}
			p := changed.run(append([]string{"verify"}, tc.args...)...)
			p.WaitExit(tc.code, testenv.Deadline)
			expectRefusal(t, p, tc.what, tc.hint)
			if p.Stdout() != "" {
				t.Errorf("standard output: %s", p.Stdout())
			}
		})
	}
	o.exec("DROP ROLE "+o.slot+"_nobody", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE 'physical%'")
}

func TestVerifyNeedsTheRightToMakeAConsumerAndSaysSo(t *testing.T) {
	t.Parallel()
	server := testenv.NATSProcess(t, natsUsers("{user: fwd, password: fwd}"))
	o := newOutbox(t, testenv.WithUser(t, server.URL(), "admin", "admin"))
	o.insert("a", 3)
	o.deliver()
	allow := func(subjects ...string) {
		subjects = append(subjects, o.stream+".>", "$JS.API.STREAM.INFO."+o.stream, "$JS.API.STREAM.MSG.GET."+o.stream)
		server.Reload(natsUsers(fmt.Sprintf(`{user: fwd, password: fwd, permissions: {publish: {allow: ["%s"]}, subscribe: {allow: ["_INBOX.>"]}}}`, strings.Join(subjects, `", "`))))
	}
	o.forwarderNATSURL = testenv.WithUser(t, server.URL(), "fwd", "fwd")
	allow()
	p := o.run("verify")
	p.WaitExit(3, testenv.Deadline)
	expectRefusal(t, p, "read the headers of stream \""+o.stream+"\": NATS refuses", `\$JS.API.CONSUMER.CREATE.`+o.stream)
	allow("$JS.API.CONSUMER.CREATE."+o.stream+".>", "$JS.API.CONSUMER.MSG.NEXT."+o.stream+".>", "$JS.API.CONSUMER.DELETE."+o.stream+".>")
	d, p := o.verify(0)
	o.expectVerified(d, "checked 3, in stream 3")
	if p.Stderr() != "" {
		t.Errorf("standard error: %s", p.Stderr())
	}
}
