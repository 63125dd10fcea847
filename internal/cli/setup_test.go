package cli_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// stand is a database and a nats-server of one test, and the environment that names them.
type stand struct {
	database, nats string
	slot           string
	env            env
}

func newStand(t *testing.T) stand {
	t.Helper()
	s := stand{
		database: testenv.Postgres(t).NewDatabase(t), nats: testenv.NATS(t).URL(), slot: testenv.UniqueName("cli"),
	}
	s.env = env{"DATABASE_URL": s.database, "NATS_URL": s.nats, "OUTBOX_CDC_SLOT": s.slot}
	return s
}

func (s stand) stream(t *testing.T) *jetstream.StreamInfo {
	t.Helper()
	stream, err := testenv.JetStream(t, s.nats).Stream(testenv.Context(t, testenv.Deadline), "OUTBOX")
	if err != nil {
		t.Fatal(err)
	}
	return stream.CachedInfo()
}

func (s stand) count(t *testing.T, sql string, args ...any) string {
	t.Helper()
	return strings.Join(testenv.Query(t, s.database, sql, args...), ",")
}

const (
	slotCount        = "select count(*) from pg_replication_slots where slot_name = $1"
	publicationCount = "select count(*) from pg_publication where pubname = $1"
	tableCount       = "select count(*) from pg_class where relname = $1"

	everything = "select concat((select string_agg(p::text, ',') from pg_publication p), (select string_agg(relname, ',' order by relname) from pg_class where relnamespace = 'public'::regnamespace))"
)

func TestSetupMakesAllPartsAndASecondOneChangesNothing(t *testing.T) {
	s := newStand(t)
	first := s.env.run("setup", "--json").want(t, 0).document(t)
	second := s.env.run("setup", "--json").want(t, 0).document(t)
	for document, result := range map[*map[string]any]string{&first: "created", &second: "exists"} {
		actions, _ := at(t, *document, "actions").([]any)
		if len(actions) != 4 {
			t.Fatalf("got %v", actions)
		}
		for i, part := range []string{"tables", "publication", "stream", "slot"} {
			action, _ := actions[i].(map[string]any)
			if action["part"] != part || action["result"] != result {
				t.Errorf("got %v, want %s %s", action, part, result)
			}
		}
	}
	if got := s.count(t, "select plugin::text from pg_replication_slots where slot_name = $1 and not two_phase and not temporary", s.slot); got != "pgoutput" {
		t.Errorf("plugin %q", got)
	}
	if got := s.count(t, "select concat_ws(' ', pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot) from pg_publication where pubname = $1", s.slot); got != "t f f f t" {
		t.Errorf("publication %q", got)
	}
	config := s.stream(t).Config
	if config.Storage != jetstream.FileStorage || config.Retention != jetstream.LimitsPolicy || config.Replicas != 1 ||
		config.Duplicates != 2*time.Minute || !config.AllowBatchPublish || strings.Join(config.Subjects, ",") != "outbox.>" || config.MaxAge != 0 || config.MaxBytes != -1 {
		t.Errorf("stream %+v", config)
	}
	testenv.Exec(t, s.database,
		"insert into outbox (aggregate_type, aggregate_id, event_type, payload) values ('order', '1', 'created', '{}')",
		"insert into outbox_dead_letter (source, position, reason_code, reason, attempts, first_failed_at, dead_at) values ('s', 'p', 'c', 'r', 1, now(), now())",
		"insert into outbox_request (kind, selection) values ('replay', '{}')",
		"insert into inbox (consumer, event_id) values ('c', 'e')")
}

func TestSetupStatusTellsWhatTheFlagsOfTheStreamAskedFor(t *testing.T) {
	s := newStand(t)
	s.env.run("setup", "--max-age", "168h", "--max-bytes", "1GiB", "--duplicate-window", "10m", "--subject", "shop.{event_type}", "--no-slot").want(t, 0)
	config := s.stream(t).Config
	if config.MaxAge != 168*time.Hour || config.MaxBytes != 1<<30 || config.Duplicates != 10*time.Minute || config.Subjects[0] != "shop.>" {
		t.Errorf("stream %+v", config)
	}
	if got := s.count(t, slotCount, s.slot); got != "0" {
		t.Error("--no-slot made a slot")
	}
	s.env.run("setup", "--no-stream").want(t, 0)
	if got := s.count(t, slotCount, s.slot); got != "1" {
		t.Error("no slot")
	}
}

func TestSetupNamesWhatDiffersAndMakesAndChangesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		sql    []string
		stream *jetstream.StreamConfig
		says   []string
	}{
		"table without an event id": {
			sql: []string{"create table outbox (id int, payload text)"}, says: []string{"no column event_id", "--columns event_id=COLUMN"},
		},
		"publication of another table": {
			sql: []string{"create table other (id int)", "create publication {slot} for table other with (publish = 'insert')"}, says: []string{"ADD TABLE public.outbox"},
		},
		"publication of updates too": {
			sql: []string{"create table other (id int)", "create publication {slot} for table other"}, says: []string{"publishes insert, update, delete, truncate, not insert alone"},
		},
		"slot before its publication": {
			sql: []string{"select pg_create_logical_replication_slot('{slot}', 'pgoutput')"}, says: []string{"made after its slot breaks the slot"},
		},
		"slot of another plugin": {
			sql: []string{"create publication {slot}", "select pg_create_logical_replication_slot('{slot}', 'test_decoding')"}, says: []string{"plugin test_decoding"},
		},
		"dead letters of somebody else": {
			sql: []string{"create table outbox_dead_letter (id int)"}, says: []string{"outbox_dead_letter\" was made by somebody else"},
		},
		"stream with other subjects": {
			stream: &jetstream.StreamConfig{Name: "OUTBOX", Subjects: []string{"orders.>"}}, says: []string{"subjects is orders.>, not outbox.>", "nats stream edit OUTBOX"},
		},
		"stream that takes no batches": {
			stream: &jetstream.StreamConfig{Name: "OUTBOX", Subjects: []string{"outbox.>"}}, says: []string{"allow_batched is false, not true\nhint: nats stream edit OUTBOX --allow-fast\n"},
		},
		"subjects that another stream has": {
			stream: &jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"outbox.a"}}, says: []string{"stream OTHER listens on outbox.> already"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStand(t)
			for _, sql := range tc.sql {
				testenv.Exec(t, s.database, strings.ReplaceAll(sql, "{slot}", s.slot))
			}
			if tc.stream != nil {
				if _, err := testenv.JetStream(t, s.nats).CreateStream(testenv.Context(t, testenv.Deadline), *tc.stream); err != nil {
					t.Fatal(err)
				}
			}
			before := s.count(t, everything)
			s.env.run("setup").want(t, 3).says(t, append(tc.says, "hint: ")...)
			s.env.run("setup", "--dry-run").want(t, 3).says(t, tc.says...)
			if ok := at(t, s.env.run("setup", "--json").want(t, 3).document(t), "ok"); ok != false {
				t.Error("the document says ok")
			}
			after := s.count(t, everything)
			if before != after {
				t.Errorf("something was changed:\n%s\n%s", before, after)
			}
			if tc.stream != nil && tc.stream.Name == "OUTBOX" && s.stream(t).Config.Subjects[0] != tc.stream.Subjects[0] {
				t.Error("the stream was changed")
			}
		})
	}
}

func TestMixedCaseAndReservedNamesAreNeitherFoldedNorSplit(t *testing.T) {
	s := newStand(t)
	s.env["OUTBOX_CDC_TABLE"] = `"Billing-EU"."Order.Outbox"`
	s.env["OUTBOX_CDC_PUBLICATION"] = `"Billing-Pub"`
	s.env["OUTBOX_CDC_COLUMNS"] = "event_id=Id,payload=Payload,aggregate_type=user,event_type=order"
	testenv.Exec(t, s.database, `create schema billing`, `create table billing.outbox (event_id uuid, payload text)`,
		`create schema "Billing-EU"`, `create table "Billing-EU"."Order.Outbox" ("Id" uuid, "Payload" jsonb, "user" text, "order" text)`)
	s.env.run("setup").want(t, 0)
	s.env.run("setup").want(t, 0)
	if got := s.count(t, `select schemaname || '|' || tablename from pg_publication_tables where pubname = 'Billing-Pub'`); got != "Billing-EU|Order.Outbox" {
		t.Errorf("published: %q", got)
	}
	if got := s.count(t, `select string_agg(relname, ',' order by relname) from pg_class c join pg_namespace n on n.oid = relnamespace where nspname = 'Billing-EU' and relkind = 'r'`); got != "Order.Outbox,inbox,outbox_cdc_migration,outbox_dead_letter,outbox_request" {
		t.Errorf("tables: %q", got)
	}
	if got := s.count(t, `select count(*) from pg_class c join pg_namespace n on n.oid = relnamespace where nspname in ('billing', 'public')`); got != "1" {
		t.Errorf("the decoy was touched: %s relations", got)
	}
	document := s.env.run("status", "--json").want(t, 0).document(t)
	if tables, _ := at(t, document, "publication", "tables").([]any); len(tables) != 1 || tables[0] != `"Billing-EU"."Order.Outbox"` {
		t.Errorf("got %v", tables)
	}
	s.env["OUTBOX_CDC_PUBLICATION"] = "Billing-Pub" // without quotes it is taken as it is
	if got := s.env.run("publication", "show").want(t, 0).stdout; !strings.Contains(got, "publication Billing-Pub\n") {
		t.Errorf("got %q", got)
	}
}

func TestSlotCreationThatWaitsEndsInTimeNamesTheTransactionAndLeavesNothing(t *testing.T) {
	s := newStand(t)
	s.env.run("setup", "--no-slot").want(t, 0)
	ctx := testenv.Context(t, testenv.Deadline)
	conn := testenv.Connect(t, s.database)
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // ended below on the good path
	var pid string
	if err := tx.QueryRow(ctx, "select pg_backend_pid()::text where txid_current() > 0").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"setup", "--timeout", "300ms"}, {"slot", "create", "--timeout", "300ms"}} {
		s.env.run(command...).want(t, 1).says(t, "creating it waits for an open transaction, pid "+pid+", open for ", "hint: end that transaction (SELECT pg_terminate_backend("+pid+"))")
		if got := s.count(t, slotCount, s.slot); got != "0" {
			t.Error("a half-made slot is left")
		}
		if got := s.count(t, "select count(*) from pg_stat_activity where query like '%pg_create_logical%' and pid <> pg_backend_pid()"); got != "0" {
			t.Error("a hidden backend is left")
		}
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	s.env.run("setup", "--timeout", "20s").want(t, 0)
}

// TestTheRolePrintedByADryRunIsEnough runs the printed script with psql, where there is one, else
// statement by statement, and then works as that role.
func TestTheRolePrintedByADryRunIsEnough(t *testing.T) {
	server := testenv.Postgres(t)
	s := newStand(t)
	s.env["OUTBOX_CDC_TABLE"] = "shop.outbox" // in public everybody has USAGE
	script := s.env.run("setup", "--dry-run").want(t, 0).stdout
	if got := s.count(t, tableCount, "outbox"); got != "0" {
		t.Fatal("the dry run made something")
	}
	role := testenv.UniqueName("cli_role")
	script = strings.ReplaceAll(script, "outbox_cdc LOGIN", role+" LOGIN PASSWORD 'pw'")
	script = strings.ReplaceAll(script, " TO outbox_cdc;", " TO "+role+";")
	t.Cleanup(func() { dropRole(t, server.URL("postgres"), s.database, role) })
	// pg_create_logical_replication_slot must not share a transaction with the writes before it
	for _, part := range strings.SplitAfter(script, ";\n") {
		testenv.Exec(t, s.database, part)
	}
	s.env.run("setup").want(t, 0) // the stream is left
	as := env{"DATABASE_URL": testenv.WithUser(t, s.database, role, "pw"), "NATS_URL": s.nats, "OUTBOX_CDC_SLOT": s.slot, "OUTBOX_CDC_TABLE": "shop.outbox"}
	document := as.run("status", "--json").want(t, 0).document(t)
	if got := at(t, document, "state"); got != "stopped" {
		t.Errorf("state %v", got)
	}
	if got := at(t, document, "dead_letters"); got != 0.0 {
		t.Errorf("dead letters %v", got)
	}
	as.run("setup").want(t, 0)
	as.run("slot", "show").want(t, 0)
	as.run("slot", "drop", "--yes").want(t, 0)
	as.run("slot", "create").want(t, 0)
	as.run("migrate", "status").want(t, 0)
	as.run("migrate", "down", "--to", "0", "--yes").want(t, 3).says(t, "the role lacks a right")
}

func dropRole(t *testing.T, admin, database, role string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Deadline)
	defer cancel()
	for url, sql := range map[string]string{database: "drop owned by " + role} {
		if _, err := testenv.TryQuery(ctx, url, sql); err != nil {
			t.Error(err)
		}
	}
	if _, err := testenv.TryQuery(ctx, admin, "drop role "+role); err != nil {
		t.Error(err)
	}
}

func TestMigrationsGoUpAndDownAndLeaveTablesOfOthersAlone(t *testing.T) {
	s := newStand(t)
	testenv.Exec(t, s.database, "create table theirs (event_id text, payload text)")
	s.env.run("migrate", "up", "--table", "theirs").want(t, 0)
	s.env.run("migrate", "up").want(t, 0)
	s.env.run("migrate", "down", "--table", "theirs", "--to", "0", "--yes").want(t, 0)
	if got := s.count(t, tableCount, "theirs") + s.count(t, tableCount, "outbox_dead_letter"); got != "11" {
		t.Errorf("got %q: a table of others, or one still in use, was dropped", got)
	}
	if got := s.env.run("migrate", "down", "--to", "1", "--dry-run").want(t, 0).stdout; !strings.Contains(got, "DROP TABLE \"public\".inbox") {
		t.Errorf("got %q", got)
	}
	s.env.run("migrate", "down", "--to", "1", "--yes").want(t, 0)
	if got := s.count(t, tableCount, "outbox_dead_letter") + s.count(t, tableCount, "outbox"); got != "01" {
		t.Errorf("got %q", got)
	}
	s.env.run("migrate", "down", "--to", "0", "--yes").want(t, 0)
	if got := s.env.run("migrate", "up").want(t, 0).stdout; strings.Count(got, "done") != 5 {
		t.Errorf("got %q", got)
	}
	if got := s.env.run("migrate", "up").want(t, 0).stdout; got != "nothing to do\n" {
		t.Errorf("got %q", got)
	}
	for _, sql := range []string{s.env.run("migrate", "sql", "--down").want(t, 0).stdout, s.env.run("migrate", "sql").want(t, 0).stdout} {
		testenv.Exec(t, s.database, sql)
	}
	if steps, _ := at(t, s.env.run("migrate", "status", "--json").want(t, 0).document(t), "migrations").([]any); len(steps) != 5 || steps[4].(map[string]any)["applied"] != true {
		t.Errorf("got %v", steps)
	}
	s.env.run("migrate", "up", "--to", "99").want(t, 2).says(t, "--to 99 is not a migration")
}

func TestTwoSetupsAtOnceBothEndWell(t *testing.T) {
	s := newStand(t)
	binary := testenv.Binary(t)
	var programs []*testenv.Program
	for range 3 {
		programs = append(programs, testenv.RunCommand(t, testenv.Command{
			Path: binary, Args: []string{"setup"}, Env: []string{"DATABASE_URL=" + s.database, "NATS_URL=" + s.nats, "OUTBOX_CDC_SLOT=" + s.slot},
		}))
	}
	for _, p := range programs {
		p.WaitExit(0, testenv.Deadline)
	}
}

func TestCompletionScriptOffersCommandsFlagsAndValues(t *testing.T) {
	script := filepath.Join(t.TempDir(), "completion.bash")
	if err := os.WriteFile(script, []byte(env{}.run("completion", "bash").want(t, 0).stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	complete := func(words ...string) string {
		t.Helper()
		line := `source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _outbox_cdc; echo "${COMPREPLY[*]}"`
		out, err := exec.Command("bash", append([]string{"-c", line, "bash", script, "outbox-cdc"}, words...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	for _, tc := range []struct {
		words []string
		want  string
	}{
		{[]string{"pub"}, "publication"},
		{[]string{"slot", "ad"}, "advance"},
		{[]string{"--slot", "drop", "slot", "cr"}, "create"},
		{[]string{"slot", "drop", "--y"}, "--yes"},
		{[]string{"setup", "--dry-run", "--max-a"}, "--max-age"},
		{[]string{"status", "--log-level", "de"}, "debug"},
		{[]string{"dev", "--stre"}, "--stream"},
		{[]string{"dev", "--nats"}, ""},
		{[]string{"version", "--j"}, "--json"},
		{[]string{"version", "--slo"}, ""},
	} {
		if got := complete(tc.words...); got != tc.want {
			t.Errorf("%v: got %q, want %q", tc.words, got, tc.want)
		}
	}
}
