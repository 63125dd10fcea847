package e2e

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// The row of a dead letter is what the forwarder writes in PostgreSQL.
func TestLetterThatPostgresRefusesWaitsOrStopsByTheServersCode(t *testing.T) {
	t.Parallel()
	t.Run("the table is gone", func(t *testing.T) {
		t.Parallel()
		o := newOutbox(t, testenv.NATS(t).URL())
		p := o.startStreaming("--status-interval", fastStatus)
		o.exec("DROP TABLE " + letterTable)
		o.insertEvent("a", "1")
		o.insertEvent("a", "2", "elsewhere."+o.stream)
		p.WaitExit(3, testenv.Deadline)
		expectRefusal(t, p, "dead letter.*SQLSTATE 42P01", "outbox-cdc migrate up")
		if o.unconfirmed() == 0 {
			t.Error("the slot has passed the event without a letter")
		}
	})
	t.Run("the database is read-only", func(t *testing.T) {
		t.Parallel()
		o := newOutbox(t, testenv.NATS(t).URL())
		p, health := o.startHTTPStreaming("--status-interval", fastStatus)
		readOnly := "ALTER DATABASE " + testenv.DatabaseName(t, o.databaseURL) + " SET default_transaction_read_only = "
		writer := o.connect()
		o.exec(readOnly + "'on'")
		ctx := testenv.Context(t, 2*testenv.Deadline)
		bad := testenv.UniqueName("bad")
		if _, err := writer.Exec(ctx, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, topic) VALUES ('order', $1, 'placed', 'elsewhere')", bad); err != nil {
			t.Fatal(err)
		}
		health.waitRedFor("25006")
		told := o.waitStatusMessages(3)
		limit := o.walEndLSN()
		if _, err := writer.Exec(ctx, readOnly+"'off'"); err != nil {
			t.Fatal(err)
		}
		o.waitLetters(o.value("SELECT event_id::text FROM outbox") + " subject-not-in-stream")
		o.waitConfirmed()
		health.waitReady()
		expectNotPast(t, told, limit)
		p.Signal(syscall.SIGTERM)
		p.WaitExit(0, testenv.Deadline)
	})
}

func TestIDsOfTwoSourcesInOneStreamDoNotCollide(t *testing.T) {
	t.Parallel()
	const events = 100
	server := testenv.NATS(t)
	first := newOutbox(t, server.URL())
	second := newOutbox(t, server.URL(), func(o *outbox) { o.setupArgs = []string{"--no-stream"} })
	second.stream, second.extra = first.stream, []string{"--subject", first.stream + ".second.{event_type}"}
	for _, o := range []*outbox{first, second} {
		o.exec("ALTER TABLE outbox DROP COLUMN event_id", "ALTER TABLE outbox ADD COLUMN event_id bigserial")
		o.startStreaming()
		o.insertTx("a", events)
	}
	first.waitStored(2 * events)
	seen := map[string]int{}
	for _, m := range first.stored() {
		seen[m.Header.Get("Outbox-Source")+" "+m.Header.Get("Outbox-Event-Id")]++
	}
	if len(seen) != 2*events {
		t.Errorf("%d events are stored, want %d", len(seen), 2*events)
	}
	for _, o := range []*outbox{first, second} {
		o.waitConfirmed()
		for n := 1; n <= events; n++ {
			if key := fmt.Sprintf("%s %d", o.source(), n); seen[key] != 1 {
				t.Errorf("event %s is stored %d times", key, seen[key])
			}
		}
	}
}

// source is the value of Outbox-Source.
func (o *outbox) source() string {
	o.tb.Helper()
	return o.value("SELECT system_identifier::text FROM pg_control_system()") + "/" + o.slot
}

func TestEmptyEventIDIsADeadLetterAndTheOthersAreDistinct(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.exec("ALTER TABLE outbox ALTER event_id DROP DEFAULT, ALTER event_id TYPE text")
	o.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type)
		SELECT id, 'order', 'a', 'placed' FROM unnest(ARRAY[' a', 'a', '', E'p\nq', 'p q']) WITH ORDINALITY x(id, n) ORDER BY n`)
	o.startStreaming()
	o.waitStored(4)
	o.waitConfirmed()
	o.waitLetters(" event-id-empty")
	if stored := len(o.ours()); stored != 4 {
		t.Errorf("the stream holds %d events, want 4", stored)
	}
}
