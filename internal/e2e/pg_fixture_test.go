package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// newForeignOutbox is an outbox over a table that was made by others: statements make
// the table that options name. Publication and slot are made by hand, unless the
// statements made them.
func newForeignOutbox(tb testing.TB, databaseURL, natsURL string, statements []string, options ...func(*outbox)) *outbox {
	tb.Helper()
	o := &outbox{
		tb: tb, databaseURL: databaseURL, natsURL: natsURL, forwarderDatabaseURL: databaseURL, forwarderNATSURL: natsURL,
		slot: testenv.UniqueName("ob"), stream: testenv.UniqueName("OB"), table: "public.outbox",
	}
	for _, option := range options {
		option(o)
	}
	o.exec(statements...)
	o.migrate()
	o.exec("CREATE PUBLICATION " + o.slot + " FOR TABLE " + o.table + " WITH (publish = 'insert', publish_via_partition_root = true)")
	o.exec("SELECT pg_create_logical_replication_slot('" + o.slot + "', 'pgoutput')")
	o.makeStream()
	return o
}

// makeStream makes the stream for commands that do not.
func (o *outbox) makeStream() {
	o.tb.Helper()
	js := testenv.JetStream(o.tb, o.natsURL)
	_, err := js.CreateStream(testenv.Context(o.tb, testenv.Deadline), jetstream.StreamConfig{
		Name: o.stream, Subjects: []string{o.stream + ".>"}, AllowBatchPublish: true,
	})
	if err != nil {
		o.tb.Fatal(err)
	}
}

// fillStream makes the stream take room more messages and refuse the rest until
// widenStream.
func (o *outbox) fillStream(room int64) {
	o.tb.Helper()
	held := int64(len(o.stored()))
	o.updateStream(func(cfg *jetstream.StreamConfig) {
		cfg.Discard, cfg.MaxMsgs = jetstream.DiscardNew, held+room
	})
}

func (o *outbox) widenStream() {
	o.tb.Helper()
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgs = -1 })
}

// shortenDuplicateWindow makes the stream forget message ids soon, so that an event
// that is published again is stored again.
func (o *outbox) shortenDuplicateWindow(window time.Duration) {
	o.tb.Helper()
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.Duplicates = window })
}

// setDatabase changes a setting for new sessions of this outbox's database.
func (o *outbox) setDatabase(name, value string) {
	o.tb.Helper()
	o.exec(fmt.Sprintf("ALTER DATABASE %s SET %s = '%s'", testenv.DatabaseName(o.tb, o.databaseURL), name, value))
}

// eventIDs returns the event ids of one aggregate in the order of its versions.
func (o *outbox) eventIDs(aggregate string) []string {
	o.tb.Helper()
	return testenv.Query(o.tb, o.databaseURL, "SELECT event_id::text FROM "+o.table+" WHERE aggregate_id = $1 ORDER BY aggregate_version", aggregate)
}

// value returns the only value of a query.
func (o *outbox) value(sql string, args ...any) string {
	o.tb.Helper()
	values := testenv.Query(o.tb, o.databaseURL, sql, args...)
	if len(values) != 1 {
		o.tb.Fatalf("%s: %d rows, want 1", sql, len(values))
	}
	return values[0]
}

func parseLSN(tb testing.TB, text string) pglogrepl.LSN {
	tb.Helper()
	lsn, err := pglogrepl.ParseLSN(text)
	if err != nil {
		tb.Fatalf("position %q: %v", text, err)
	}
	return lsn
}

// walEndLSN is how far the server has written.
func (o *outbox) walEndLSN() pglogrepl.LSN {
	o.tb.Helper()
	return parseLSN(o.tb, o.value("SELECT pg_current_wal_lsn()::text"))
}

// toldLSNs returns every position that the server believes of this outbox: the slot's,
// and the three that the last status message named.
func (o *outbox) toldLSNs() []pglogrepl.LSN {
	o.tb.Helper()
	var lsns []pglogrepl.LSN
	for _, text := range testenv.Query(o.tb, o.databaseURL, `
		SELECT p::text FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid,
			unnest(ARRAY[s.confirmed_flush_lsn, r.write_lsn, r.flush_lsn, r.replay_lsn]) p
		WHERE s.slot_name = $1 AND p IS NOT NULL`, o.slot) {
		lsns = append(lsns, parseLSN(o.tb, text))
	}
	return lsns
}

// waitStatusMessages waits until the server has read n more status messages, and returns all
// positions that it was told by them.
func (o *outbox) waitStatusMessages(n int) []pglogrepl.LSN {
	o.tb.Helper()
	var told []pglogrepl.LSN
	last := o.replyTime()
	for range n {
		testenv.Eventually(o.tb, testenv.Deadline, func() error {
			now := o.replyTime()
			if now == "" || now == last {
				return fmt.Errorf("the last status message of slot %s is of %q", o.slot, now)
			}
			last = now
			return nil
		})
		told = append(told, o.toldLSNs()...)
	}
	return told
}

// replyTime changes with each status message that the server has read; empty without a walsender.
func (o *outbox) replyTime() string {
	o.tb.Helper()
	values := testenv.Query(o.tb, o.databaseURL, `SELECT r.reply_time::text FROM pg_replication_slots s
		JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE s.slot_name = $1`, o.slot)
	return strings.Join(values, "")
}

// holder returns the process id of the walsender that holds the slot, "" when nobody does.
func (o *outbox) holder() string {
	o.tb.Helper()
	return strings.Join(testenv.Query(o.tb, o.databaseURL,
		"SELECT active_pid::text FROM pg_replication_slots WHERE slot_name = $1 AND active_pid IS NOT NULL", o.slot), "")
}

// position is the position that a message carries.
func position(tb testing.TB, m testenv.Message) decode.Position {
	tb.Helper()
	p, err := decode.ParsePosition(m.Header.Get("Outbox-Position"))
	if err != nil {
		tb.Fatalf("message %d: %v", m.Sequence, err)
	}
	return p
}

func commitLSN(tb testing.TB, m testenv.Message) pglogrepl.LSN {
	tb.Helper()
	return position(tb, m).CommitLSN
}

// expectNotPast checks that none of the positions passes a transaction. The server
// leaves out a transaction whose commit record starts before the confirmed position.
func expectNotPast(tb testing.TB, told []pglogrepl.LSN, limit pglogrepl.LSN) {
	tb.Helper()
	if len(told) == 0 {
		tb.Fatal("no position was seen")
	}
	for _, lsn := range told {
		if lsn > limit {
			tb.Fatalf("PostgreSQL was told %s, past the commit at %s that is not acknowledged", lsn, limit)
		}
	}
}

// neighbours write into other tables until the returned function is called, or the
// test ends. They keep the WAL moving; nothing depends on how fast.
func neighbours(tb testing.TB, databaseURLs ...string) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, url := range databaseURLs {
		testenv.Exec(tb, url, "CREATE TABLE IF NOT EXISTS neighbour(n bigint, text text)")
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			tb.Fatal(err)
		}
		group.Go(func() {
			defer conn.Close(context.WithoutCancel(ctx))
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := conn.Exec(ctx, "INSERT INTO neighbour VALUES ($1, repeat('x', 500))", n); err != nil && ctx.Err() == nil {
					tb.Errorf("neighbour: %v", err)
					return
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		group.Wait()
	})
	tb.Cleanup(stop)
	return stop
}

// expectRefusal checks the last two lines of a failed command: the error line that
// names thing and cause, and the line that says what to do next.
func expectRefusal(tb testing.TB, p *testenv.Program, what, hint string) {
	tb.Helper()
	lines := strings.Split(strings.TrimSpace(p.Stderr()), "\n")
	if len(lines) < 2 {
		tb.Fatalf("only %d lines on standard error: %q", len(lines), lines)
	}
	failure, next := lines[len(lines)-2], lines[len(lines)-1]
	if !regexp.MustCompile(what).MatchString(failure) {
		tb.Errorf("the error is %q, want one that matches %q", failure, what)
	}
	if !strings.HasPrefix(next, "hint: ") || !regexp.MustCompile(hint).MatchString(next) {
		tb.Errorf("the last line is %q, want a hint that matches %q", next, hint)
	}
}
