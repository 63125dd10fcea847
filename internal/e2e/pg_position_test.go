package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

const fastStatus = "100ms"

func TestEventsOfABrokerOutageSurviveSIGKILLOfTheForwarder(t *testing.T) {
	server := testenv.NATSProcess(t)
	o := newOutbox(t, server.URL())
	o.setDatabase("wal_sender_timeout", "4s")
	p := o.startStreaming("--status-interval", fastStatus)
	o.insert("before", 3)
	o.expectAll()
	o.waitConfirmed()

	server.Kill()
	o.insert("during", 100)
	told := o.waitStatusMessages(3)
	p.Kill()
	server.Start()
	o.start()
	o.expectAll()
	o.waitConfirmed()
	expectNotPast(t, told, commitLSN(t, o.ours()[3]))
}

func TestSlotFollowsTheWALOfBusyNeighboursWhileTheOutboxIsQuiet(t *testing.T) {
	for _, timeout := range []string{"60s", "0"} {
		for _, where := range []string{"in the same database", "in another database"} {
			t.Run("wal_sender_timeout "+timeout+", neighbours "+where, func(t *testing.T) {
				o := newOutbox(t, testenv.NATS(t).URL())
				o.setDatabase("wal_sender_timeout", timeout)
				o.startStreaming("--status-interval", fastStatus)
				busy := o.databaseURL
				if where != "in the same database" {
					busy = testenv.Postgres(t).NewDatabase(t)
				}
				defer neighbours(t, busy)()
				for range 3 {
					o.waitConfirmed()
				}
			})
		}
	}
}

func TestSlotStandsStillWhileOneEventIsUnacked(t *testing.T) {
	nats := testenv.NATS(t)
	network := testenv.NewProxy(t, testenv.AddressOf(t, nats.URL()))
	o := newOutbox(t, nats.URL())
	o.setDatabase("wal_sender_timeout", "0")
	o.forwarderNATSURL = network.URL(nats.URL())
	o.startStreaming("--status-interval", fastStatus, "--ack-timeout", "60s")
	o.insert("acked", 2)
	o.expectAll()
	o.waitConfirmed()

	network.Pause() // the event goes out, and no answer comes back
	o.insert("unacked", 1)
	stop := neighbours(t, o.databaseURL, testenv.Postgres(t).NewDatabase(t))
	before := o.walEndLSN()
	told := o.waitStatusMessages(10)
	passed := o.walEndLSN()
	stop()
	if passed == before {
		t.Fatal("the neighbours wrote nothing")
	}
	network.Resume()
	o.expectAll()
	o.waitConfirmed()
	expectNotPast(t, told, commitLSN(t, o.ours()[2]))
}

func TestRowsOfOneCOPYAreDistinctMessagesAlsoAcrossSIGKILL(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.fillStream(2)
	p := o.startStreaming()
	copied, err := o.connect().CopyFrom(testenv.Context(t, testenv.Deadline), pgx.Identifier{"public", "outbox"},
		[]string{"aggregate_type", "aggregate_id", "aggregate_version", "event_type"},
		pgx.CopyFromRows([][]any{{"order", "c", 1, "placed"}, {"order", "c", 2, "placed"}, {"order", "c", 3, "placed"}, {"order", "c", 4, "placed"}}))
	if err != nil || copied != 4 {
		t.Fatalf("copied %d rows: %v", copied, err)
	}
	p.WaitLine(`"msg":"backing off"`, testenv.Deadline)
	o.waitStored(2)
	p.Kill()

	o.widenStream()
	o.startStreaming()
	o.insertTx("selected", 1000)
	o.expectAll()
	o.waitConfirmed()
}

func TestInterleavedTransactionsArriveInCommitOrderAlsoAcrossSIGKILL(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming("--status-interval", fastStatus)
	a := o.connect()
	exec := func(sql string) {
		t.Helper()
		if _, err := a.Exec(testenv.Context(t, testenv.Deadline), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("BEGIN")
	exec("INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type) VALUES ('order', 'a', 1, 'placed')")
	o.insert("b", 1)
	o.waitStored(1)
	o.waitConfirmed() // the slot now stands behind a's first row
	p.Kill()
	exec("INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type) VALUES ('order', 'a', 2, 'placed')")
	exec("COMMIT")
	o.startStreaming()
	o.waitStored(3)
	o.waitConfirmed()
	o.expectEvents(o.ours(), slices.Concat(o.eventIDs("b"), o.eventIDs("a")))
}

func TestPreparedTransactionIsPublishedOnceAfterItsCommitAndNeverAfterARollback(t *testing.T) {
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "5"}})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	p := o.startStreaming("--status-interval", fastStatus)
	prepare := func(aggregate, name string) {
		t.Helper()
		o.exec("BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type) VALUES ('order', '" +
			aggregate + "', 1, 'placed'); PREPARE TRANSACTION '" + name + "'")
	}
	prepare("prepared", "x")
	prepare("rolled back", "y")
	o.insert("plain", 1)
	o.waitStored(1)
	o.waitConfirmed() // past the rows of both
	p.Kill()
	o.startStreaming("--status-interval", fastStatus)
	o.exec("ROLLBACK PREPARED 'y'")
	o.insert("later", 1)
	o.waitStored(2)
	o.expectEvents(o.ours(), slices.Concat(o.eventIDs("plain"), o.eventIDs("later")))
	o.exec("COMMIT PREPARED 'x'")
	o.waitStored(3)
	o.waitConfirmed()
	o.expectEvents(o.ours(), slices.Concat(o.eventIDs("plain"), o.eventIDs("later"), o.eventIDs("prepared")))
}

func TestEventsOfTheTimeWithoutForwarderArrive(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming()
	o.insert("before", 2)
	o.expectAll()
	p.Kill()
	o.insert("down", 50)
	o.startStreaming()
	o.expectAll()
	o.waitConfirmed()
}

// PostgreSQL 14 to 16 forget confirmations at a crash, and send again what was acknowledged.
func TestForwarderDoesNotPublishAgainWhatItConfirmedBeforePostgresCrashed(t *testing.T) {
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	network := testenv.NewProxy(t, testenv.AddressOf(t, cluster.URL("postgres")))
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	o.forwarderDatabaseURL = network.URL(o.databaseURL)
	// Without the server's own recognition of message ids a second copy would be stored.
	o.shortenDuplicateWindow(100 * time.Millisecond)
	p := o.startStreaming("--status-interval", fastStatus)
	o.insert("before", 200)
	o.expectAll()
	o.waitConfirmed()
	confirmed := parseLSN(t, o.confirmed())

	network.Cut()
	ctx := testenv.Context(t, testenv.Deadline)
	if err := cluster.Stop(ctx, devstack.StopImmediate); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if after := parseLSN(t, o.confirmed()); after >= confirmed && cluster.Major() < 17 {
		t.Fatalf("the slot kept its position %s (before %s): this server does not show the case", after, confirmed)
	}
	network.Heal()
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.insert("after", 5)
	o.expectAll()
	o.waitConfirmed()
}
