package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestRolledBackSavepointsOfASpilledTransactionAreLeftOut(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.setDatabase("logical_decoding_work_mem", "64kB")
	p := o.startStreaming()
	const rows = `INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
		SELECT 'order', '%s', i, 'placed', jsonb_build_object('text', repeat('x', 300)) FROM generate_series(1, %d) i;`
	o.exec("BEGIN;" + fmt.Sprintf(rows, "kept", 500) + "SAVEPOINT s;" + fmt.Sprintf(rows, "rolled back", 500) +
		"ROLLBACK TO SAVEPOINT s;" + fmt.Sprintf(rows, "behind", 5) + "COMMIT")
	o.exec(`DO $$ BEGIN FOR i IN 1..300 LOOP
		BEGIN
			INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
			VALUES ('order', 'block', i, 'placed', jsonb_build_object('text', repeat('y', 300)));
			IF i % 3 = 0 THEN RAISE division_by_zero; END IF;
		EXCEPTION WHEN division_by_zero THEN NULL;
		END;
	END LOOP; END $$`)
	if got := len(o.rows()); got != 505+200 {
		t.Fatalf("the table holds %d rows", got)
	}
	o.expectAll()
	o.waitConfirmed()
	p.Signal(syscall.SIGTERM)
	p.WaitExit(0, testenv.Deadline)
	spilled := o.value("SELECT (spill_txns > 0)::text FROM pg_stat_replication_slots WHERE slot_name = $1", o.slot)
	if spilled != "true" {
		t.Error("the server did not spill: this is not the case that was meant")
	}
}

func TestHugeTransactionKeepsStatusMessagesFlowingAndMemoryBounded(t *testing.T) {
	const (
		rows        = 100_000
		memoryMaxKB = 150 << 10 // of a binary that may carry the race detector; the queue takes 1 MiB, all rows 100
	)
	server := testenv.NATSProcess(t)
	network := testenv.NewProxy(t, testenv.AddressOf(t, server.URL()))
	o := newOutbox(t, server.URL())
	o.forwarderNATSURL = network.URL(server.URL())
	p := o.startStreaming("--status-interval", fastStatus, "--ack-timeout", "60s", "--max-in-flight", "512", "--max-in-flight-bytes", "1MiB")
	network.After(testenv.ToServer, 2<<20, network.Pause) // some thousand rows, then no answers
	o.exec(fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
		SELECT 'order', 'huge', i, 'placed', jsonb_build_object('text', repeat('x', 1000)) FROM generate_series(1, %d) i`, rows))
	o.waitStored(500)
	told := o.waitStatusMessages(10)
	if stored := o.storedState().Msgs; stored >= rows/2 {
		t.Fatalf("%d rows were stored while the network was paused", stored)
	}
	network.Resume()
	o.waitStored(rows)
	o.waitConfirmed()
	if state := o.storedState(); state.Msgs != rows || state.LastSeq != rows {
		t.Fatalf("the stream holds %d messages up to sequence %d, want %d", state.Msgs, state.LastSeq, rows)
	}
	// Ids differ, or the server would have left some out; so the place tells the order.
	const sample = 997
	stored := o.reader()
	for sequence := uint64(1); sequence <= rows; sequence += sample {
		m := stored(sequence)
		expectNotPast(t, told, commitLSN(t, m))
		if got := position(t, m).Ordinal; got != sequence-1 {
			t.Fatalf("message %d is row %d of the transaction", sequence, got)
		}
	}
	if peak := peakMemoryKB(t, p.PID()); peak > memoryMaxKB {
		t.Errorf("the forwarder's memory grew to %d KiB, at most %d were meant", peak, memoryMaxKB)
	}
}

// peakMemoryKB is the most memory that a process has held, in KiB.
func peakMemoryKB(tb testing.TB, pid int) int {
	tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	found := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	if found == nil {
		tb.Fatalf("no VmHWM in %s", status)
	}
	peak, err := strconv.Atoi(string(found[1]))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Logf("peak memory: %d KiB", peak)
	return peak
}

func (o *outbox) storedState() jetstream.StreamState {
	o.tb.Helper()
	s, err := testenv.JetStream(o.tb, o.natsURL).Stream(testenv.Context(o.tb, testenv.Deadline), o.stream)
	if err != nil {
		o.tb.Fatal(err)
	}
	return s.CachedInfo().State
}

// reader returns a function that reads one message of the stream.
func (o *outbox) reader() func(sequence uint64) testenv.Message {
	o.tb.Helper()
	ctx := testenv.Context(o.tb, 2*testenv.Deadline)
	s, err := testenv.JetStream(o.tb, o.natsURL).Stream(ctx, o.stream)
	if err != nil {
		o.tb.Fatal(err)
	}
	return func(sequence uint64) testenv.Message {
		o.tb.Helper()
		m, err := s.GetMsg(ctx, sequence)
		if err != nil {
			o.tb.Fatalf("read message %d: %v", sequence, err)
		}
		return testenv.Message{Subject: m.Subject, Header: m.Header, Data: m.Data, Sequence: m.Sequence}
	}
}

func TestRowsOfPartitionsArriveHoweverThePublicationIsSet(t *testing.T) {
	for _, root := range []bool{true, false} {
		t.Run(fmt.Sprintf("publish_via_partition_root %t", root), func(t *testing.T) { partitionsArrive(t, root) })
	}
}

func partitionsArrive(t *testing.T, root bool) {
	database := testenv.Postgres(t).NewDatabase(t)
	o := newForeignOutbox(t, database, testenv.NATS(t).URL(), []string{
		`CREATE TABLE outbox(id bigint GENERATED ALWAYS AS IDENTITY, day date NOT NULL,
			event_id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL, aggregate_id text NOT NULL,
			aggregate_version bigint, event_type text NOT NULL, payload jsonb, PRIMARY KEY (id, day)) PARTITION BY RANGE (day)`,
		`CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM ('2026-01-01') TO ('2026-01-02')`,
		`CREATE TABLE unrelated(id bigint, payload jsonb, event_type text, aggregate_id text, aggregate_type text, aggregate_version bigint, day date, event_id uuid)`,
	})
	o.exec(fmt.Sprintf("ALTER PUBLICATION %s SET (publish_via_partition_root = %t)", o.slot, root), "ALTER PUBLICATION "+o.slot+" ADD TABLE unrelated")
	insert := func(table string, day, n int) []string {
		t.Helper()
		return testenv.Query(t, database, fmt.Sprintf(`WITH new AS (
			INSERT INTO %s (%s day, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
			SELECT %s '2026-01-%02d', 'order', 'day %d', i, 'placed', jsonb_build_object('n', i) FROM generate_series(1, %d) i RETURNING event_id)
			SELECT event_id::text FROM new`, table, map[bool]string{true: "id, event_id,"}[table == "unrelated"],
			map[bool]string{true: "i, gen_random_uuid(),"}[table == "unrelated"], day, day, n))
	}
	p := o.startStreaming()
	want := insert("outbox", 1, 3)
	insert("unrelated", 1, 2)
	want = append(want, insert("outbox", 1, 2)...) // of the same layout as before, not of the newest one
	o.exec("CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM ('2026-01-02') TO ('2026-01-03')")
	want = append(want, insert("outbox", 2, 3)...)
	want = append(want, insert("outbox", 1, 1)...)
	o.waitStored(len(want))
	o.exec("ALTER TABLE outbox DETACH PARTITION outbox_1", "DROP TABLE outbox_1")
	want = append(want, insert("outbox", 2, 2)...)
	o.waitStored(len(want))
	o.waitConfirmed()
	p.Kill()

	// Rows of a partition that is gone by the time when they are read.
	want = append(want, insert("outbox", 2, 2)...)
	o.exec("CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES FROM ('2026-01-03') TO ('2026-01-04')", "DROP TABLE outbox_2")
	want = append(want, insert("outbox", 3, 2)...)
	o.startStreaming()
	o.waitStored(len(want))
	o.waitConfirmed()
	o.expectEvents(o.ours(), want)
	for i, m := range o.ours() {
		var envelope map[string]any
		if err := json.Unmarshal(m.Data, &envelope); err != nil || envelope["eventId"] != want[i] || envelope["payload"] == nil {
			t.Fatalf("message %d: %s, want event %s with a payload (%v)", m.Sequence, m.Data, want[i], err)
		}
	}
}

func TestEachRowIsReadWithTheLayoutOfItsOwnTime(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	row := func(n int) string {
		return fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
			VALUES ('order', 'id %[1]d', %[1]d, 'type%[1]d', '{"n": %[1]d}');`, n)
	}
	o.exec(row(1),
		"BEGIN;"+row(2)+"ALTER TABLE outbox ADD COLUMN note text NOT NULL DEFAULT 'shift';"+row(3)+"COMMIT",
		"ALTER TABLE outbox DROP COLUMN topic", row(4),
		"ALTER TABLE outbox DROP COLUMN aggregate_id", "ALTER TABLE outbox ADD COLUMN aggregate_id text", row(5),
		"ALTER TABLE outbox ALTER COLUMN aggregate_version TYPE text", row(6),
		"ALTER TABLE outbox RENAME TO outbox_old", "ALTER TABLE outbox_old RENAME TO outbox", row(7))
	o.startStreaming()
	o.expectAll()
	o.waitConfirmed()
	for i, m := range o.ours() {
		n := i + 1
		version := strconv.Itoa(n)
		if n >= 6 {
			version = `"` + version + `"`
		}
		want := fmt.Sprintf(`^\{"eventId":"[^"]+","eventType":"type%[1]d","eventVersion":1,"aggregateType":"order",`+
			`"aggregateId":"id %[1]d","aggregateVersion":%[2]s,"occurredAt":"[^"]+","payload":\{"n": %[1]d\}\}$`, n, version)
		if !regexp.MustCompile(want).Match(m.Data) {
			t.Errorf("event %d: %s, want %s", n, m.Data, want)
		}
		if subject := fmt.Sprintf("%s.order.type%d", o.stream, n); m.Subject != subject {
			t.Errorf("event %d: subject %s, want %s", n, m.Subject, subject)
		}
	}
}

func TestRenamedColumnStopsTheForwarderBeforeTheFirstRowWithoutIt(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming()
	o.insert("before", 3)
	o.waitStored(3)
	o.exec("ALTER TABLE outbox RENAME COLUMN payload TO body")
	ids := testenv.Query(t, o.databaseURL, `INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type, body)
		VALUES ('order', 'after', 1, 'placed', '{}') RETURNING event_id::text`)
	p.WaitExit(3, testenv.Deadline)
	expectRefusal(t, p, `payload`, `--columns|RENAME`)
	o.expectEvents(o.ours(), o.eventIDs("before"))

	o.startStreaming("--columns", "payload=body") // what the hint says
	o.waitStored(4)
	o.expectEvents(o.ours(), slices.Concat(o.eventIDs("before"), ids))
	o.waitConfirmed()
}
