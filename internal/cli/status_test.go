package cli_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

func TestStatusWorksOnADatabaseThatWasNeverSetUp(t *testing.T) {
	s := newStand(t)
	document := s.env.run("status", "--json").want(t, 0).document(t)
	for _, tc := range []struct {
		keys []string
		want any
	}{
		{[]string{"state"}, "not-set-up"},
		{[]string{"slot", "name"}, s.slot},
		{[]string{"slot", "exists"}, false},
		{[]string{"slot", "active"}, false},
		{[]string{"slot", "confirmed_flush_lsn"}, nil},
		{[]string{"publication", "exists"}, false},
		{[]string{"stream", "name"}, "OUTBOX"},
		{[]string{"stream", "exists"}, false},
		{[]string{"last_event"}, nil},
		{[]string{"oldest_undelivered_seconds"}, nil},
		{[]string{"dead_letters"}, nil},
		{[]string{"held"}, nil},
		{[]string{"requests"}, nil},
	} {
		if got := at(t, document, tc.keys...); got != tc.want {
			t.Errorf("%v: got %v, want %v", tc.keys, got, tc.want)
		}
	}
	if tables, ok := at(t, document, "publication", "tables").([]any); !ok || len(tables) != 0 {
		t.Errorf("tables %v", tables)
	}
	if text := s.env.run("status").want(t, 0).stdout; !strings.HasPrefix(text, "not-set-up; next: outbox-cdc setup") {
		t.Errorf("got %q", text)
	}
}

func TestStatusHasTheKeysOfTheContractAndNamesEachState(t *testing.T) {
	s := newStand(t)
	s.env.run("setup").want(t, 0)
	document := s.env.run("status", "--json").want(t, 0).document(t)
	for path, want := range map[string]string{
		"":            "dead_letters held last_event oldest_undelivered_seconds publication requests slot state stream",
		"slot":        "active active_pid confirmed_flush_lsn exists failover invalidation_reason lag_bytes name restart_lsn retained_bytes safe_wal_size synced wal_status",
		"publication": "exists name tables",
		"stream":      "bytes duplicate_window_seconds exists last_sequence messages name",
	} {
		object := document
		if path != "" {
			object, _ = at(t, document, path).(map[string]any)
		}
		var keys []string
		for key := range object {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		if got := strings.Join(keys, " "); got != want {
			t.Errorf("%q has %s, want %s", path, got, want)
		}
	}
	if at(t, document, "state") != "stopped" || at(t, document, "dead_letters") != 0.0 || at(t, document, "stream", "duplicate_window_seconds") != 120.0 {
		t.Errorf("got %v", document)
	}
	testenv.Exec(t, s.database, "select pg_drop_replication_slot('"+s.slot+"')")
	if got := at(t, s.env.run("status", "--json").want(t, 0).document(t), "state"); got != "slot-missing" {
		t.Errorf("got %v", got)
	}
}

func TestStatusFindsTheOldestRowThatIsNotInTheStreamWithoutAForwarder(t *testing.T) {
	s := newStand(t)
	s.env.run("setup").want(t, 0)
	oldest := func() any {
		return at(t, s.env.run("status", "--json").want(t, 0).document(t), "oldest_undelivered_seconds")
	}
	if got := oldest(); got != nil {
		t.Errorf("empty table: got %v", got)
	}
	const insert = `insert into outbox (event_id, aggregate_type, aggregate_id, event_type, occurred_at) values ($1, 'order', $2, 'created', now() - $3::interval)`
	conn := testenv.Connect(t, s.database)
	ctx := testenv.Context(t, testenv.Deadline)
	for i, age := range []string{"3 hours", "2 hours", "1 hour"} {
		if _, err := conn.Exec(ctx, insert, uuid(i), fmt.Sprint(i), age); err != nil {
			t.Fatal(err)
		}
	}
	assertHours := func(want float64) {
		t.Helper()
		if got, ok := oldest().(float64); !ok || got < want*3600 || got > want*3600+600 {
			t.Errorf("got %v seconds, want %v hours", got, want)
		}
	}
	assertHours(3)
	system := s.count(t, "select system_identifier::text from pg_control_system()")
	s.publish(t, system+"/"+s.slot, uuid(0))
	assertHours(2)
	document := s.env.run("status", "--json").want(t, 0).document(t)
	if at(t, document, "last_event", "event_id") != uuid(0) || at(t, document, "last_event", "sequence") != 1.0 {
		t.Errorf("got %v", at(t, document, "last_event"))
	}
	testenv.Exec(t, s.database, `insert into outbox_dead_letter (source, position, event_id, reason_code, reason, attempts, first_failed_at, dead_at) values ('`+system+"/"+s.slot+`', 'p', '`+uuid(1)+`', 'c', 'r', 1, now(), now()),
		('of another outbox', 'p', null, 'c', 'r', 1, now(), now())`)
	assertHours(1)
	s.publish(t, system+"/"+s.slot, uuid(2))
	if got := oldest(); got != nil {
		t.Errorf("all delivered: got %v", got)
	}
	if text := s.env.run("status").want(t, 0).stdout; !strings.Contains(text, "1 open, 0 held behind them") || !strings.Contains(text, uuid(2)) {
		t.Errorf("got %s", text)
	}
}

func uuid(i int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", i) }

func (s stand) publish(t *testing.T, source, eventID string) {
	t.Helper()
	m := nats.NewMsg("outbox.order.created")
	m.Header.Set(sink.HeaderSource, source)
	m.Header.Set(sink.HeaderEventID, eventID)
	m.Header.Set(sink.HeaderPosition, "1:0/1:0")
	if _, err := testenv.JetStream(t, s.nats).PublishMsg(testenv.Context(t, testenv.Deadline), m); err != nil {
		t.Fatal(err)
	}
}

func TestStatusTellsWhatPostgresKnowsWhileNATSIsAway(t *testing.T) {
	s := newStand(t)
	s.env.run("setup").want(t, 0)
	s.env["NATS_URL"] = "nats://127.0.0.1:1"
	r := s.env.run("status", "--json").want(t, 1).says(t, "connect to NATS", "hint: check that nats-server runs")
	document := r.document(t)
	if at(t, document, "state") != "stopped" || at(t, document, "stream", "exists") != nil {
		t.Errorf("got %v", document)
	}
	if text := s.env.run("status").want(t, 1).stdout; !strings.Contains(text, "  last event   unknown\n") {
		t.Errorf("got %s", text)
	}
}

func TestWatchingPrintsADocumentALineUntilASignal(t *testing.T) {
	s := newStand(t)
	p := testenv.RunCommand(t, testenv.Command{
		Path: testenv.Binary(t), Args: []string{"status", "--watch", "--json", "--interval", "50ms"},
		Env: []string{"DATABASE_URL=" + s.database, "NATS_URL=" + s.nats},
	})
	for range 3 {
		line := p.WaitLine(`^\{.*\}$`, testenv.Deadline)
		if err := json.Unmarshal([]byte(line), &map[string]any{}); err != nil {
			t.Errorf("%v in %q", err, line)
		}
	}
	p.Signal(syscall.SIGTERM)
	p.WaitExit(0, testenv.Deadline)
}

func TestDroppingAndAdvancingASlotWorksOnceItIsAskedForTwice(t *testing.T) {
	s := newStand(t)
	s.env.run("setup").want(t, 0)
	testenv.Exec(t, s.database, "insert into outbox (aggregate_type, aggregate_id, event_type) values ('a', 'b', 'c')")
	s.env.run("slot", "advance", "--to", "FFFFFFFF/0", "--yes").want(t, 2).says(t, "beyond the end of the WAL")
	s.env.run("slot", "advance", "--to", "0/1", "--yes").want(t, 2).says(t, "a slot cannot be moved back")
	before := s.env.run("slot", "show", "--json").want(t, 0).document(t)
	s.env.run("slot", "advance", "--to", "end", "--dry-run").want(t, 0)
	if after := s.env.run("slot", "show", "--json").want(t, 0).document(t); after["confirmed_flush_lsn"] != before["confirmed_flush_lsn"] {
		t.Error("a dry run moved the slot")
	}
	s.env.run("slot", "advance", "--to", "end", "--yes").want(t, 0)
	if after := s.env.run("slot", "show", "--json").want(t, 0).document(t); after["confirmed_flush_lsn"] == before["confirmed_flush_lsn"] {
		t.Error("the slot was not moved")
	}
	s.env.run("slot", "drop", "--dry-run").want(t, 0)
	s.env.run("slot", "drop", "--yes").want(t, 0)
	s.env.run("slot", "drop", "--yes").want(t, 3).says(t, "slot "+s.slot+" does not exist")
	s.env.run("publication", "drop", "--yes").want(t, 0)
	s.env.run("publication", "create").want(t, 0)
	s.env.run("slot", "create").want(t, 0)
	s.env.run("slot", "create").want(t, 0)
	s.env.run("stream", "create").want(t, 0)
	if at(t, s.env.run("stream", "show", "--json").want(t, 0).document(t), "allow_batched") != true {
		t.Error("no batches")
	}
	s.env.run("stream", "create", "--duplicate-window", "1h").want(t, 3).says(t, "duplicate_window is 2m0s, not 1h0m0s")
	s.env.run("stream", "show", "--stream", "NONE").want(t, 3).says(t, "stream NONE does not exist")
}

// TestNoSecretShowsWholeOrInPart is row 52 of the collected trouble.
func TestNoSecretShowsWholeOrInPart(t *testing.T) {
	postgres := testenv.Postgres(t)
	port := testenv.AddressOf(t, postgres.URL("postgres"))
	port = port[strings.LastIndexByte(port, ':')+1:]
	server := testenv.NATS(t, `authorization { user: bob, password: "other" }`)
	words := []string{"Hush", "Secr3t", "Tail0"} // no piece of the password may show
	var runs [][]string
	for _, separator := range []string{"@", "#", "%", "/", "?", ":", "%40", "&", "%zz"} {
		password := strings.Join(words, separator)
		for _, tail := range []string{"@127.0.0.1:" + port + "/postgres", "@127.0.0.1:bad/postgres", "@127.0.0.1:1/postgres?sslmode=bogus", "@127.0.0.1:1/postgres", "@/postgres?host=/nowhere", "@127.0.0.1:1/x?target_session_attrs=some"} {
			runs = append(runs, []string{"--database-url", "postgres://bob:" + password + tail})
		}
		for _, rest := range []string{"port=1", "port=bad", "port=1 sslmode=bogus", "port=" + port, "port=1 connect_timeout=x", "port=1 oops"} {
			runs = append(runs,
				[]string{"--database-url", "host=127.0.0.1 user=bob password='" + password + "' " + rest},
				[]string{"--database-url", "host=127.0.0.1 user=bob password=" + password + " " + rest})
		}
		runs = append(runs, []string{"--database-url", "host=127.0.0.1 user=bob password='" + password})
		for _, tail := range []string{"@127.0.0.1:1", "@127.0.0.1:bad", "@" + testenv.AddressOf(t, server.URL()), "@[::1", ",x@127.0.0.1"} {
			runs = append(runs,
				[]string{"--database-url", postgres.URL("postgres"), "--nats-url", "nats://bob:" + password + tail},
				[]string{"--database-url", postgres.URL("postgres"), "--nats-url", "nats://" + password + tail})
		}
	}
	runs = append(runs,
		[]string{"--databse-url=postgres://bob:Hush@Secr3t@127.0.0.1/x"},
		[]string{"postgres://bob:Hush@Secr3t#Tail0@127.0.0.1/x"},
		[]string{"--database-url", "host=127.0.0.1 password=Hush", "Secr3t", "Tail0"},
		[]string{"--json=postgres://bob:Hush@127.0.0.1"},
		[]string{"--config", writeFile(t, "database-url: postgres://bob:Hush#Secr3t%Tail0@127.0.0.1:x/y\n")},
		[]string{"--config", writeFile(t, "database-url: 'host=127.0.0.1 password=Hush@Secr3t#Tail0 port=1'\n")},
		[]string{"--config", writeFile(t, "database-url: \"postgres://bob:Hush@Secr3t#Tail0\n")},
	)
	for _, args := range runs {
		r := env{}.run(append([]string{"status", "--log-level", "debug"}, args...)...)
		if r.code == 0 {
			t.Errorf("%v: exit code 0", args)
		}
		for _, word := range words {
			if strings.Contains(r.stdout+r.stderr, word) {
				t.Errorf("%v shows %q:\n%s%s", args, word, r.stdout, r.stderr)
			}
		}
	}
}

func TestTheSecretOfTheEnvironmentDoesNotShowEither(t *testing.T) {
	cmd := exec.Command(testenv.Binary(t), "status", "--log-level", "debug")
	cmd.Env = []string{"PGHOST=127.0.0.1", "PGPORT=1", "PGUSER=bob", "PGPASSWORD=Hush@Secr3t", "PGDATABASE=x"}
	out, err := cmd.CombinedOutput()
	if err == nil || strings.Contains(string(out), "Hush") || strings.Contains(string(out), "Secr3t") {
		t.Errorf("%v: %s", err, out)
	}
}
