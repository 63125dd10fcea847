package e2e

import (
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestPostgresThatIsShortOfSomethingIsWaitedForFromTheStart(t *testing.T) {
	t.Parallel()
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{Settings: map[string]string{"max_wal_senders": "1"}})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	o.exec("CREATE ROLE fwd LOGIN REPLICATION", "GRANT USAGE ON SCHEMA public TO fwd", "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO fwd")
	o.forwarderDatabaseURL = testenv.WithUser(t, o.databaseURL, "fwd", "pw")
	lockCatalog := func(t *testing.T) (release func()) {
		t.Helper()
		conn, ctx := testenv.Connect(t, o.databaseURL), testenv.Context(t, testenv.Deadline)
		if _, err := conn.Exec(ctx, "BEGIN; LOCK TABLE pg_publication IN ACCESS EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		return func() {
			if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, test := range []struct {
		name, state string
		spoil       func(t *testing.T) (mend func())
	}{
		{"WAL senders", "53300", func(t *testing.T) func() {
			t.Helper()
			ctx := testenv.Context(t, testenv.Deadline)
			other, err := pgconn.Connect(ctx, o.databaseURL+"&replication=database")
			if err != nil {
				t.Fatal(err)
			}
			return func() {
				if err := other.Close(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"connections of the role", "53300", func(t *testing.T) func() {
			t.Helper()
			o.exec("ALTER ROLE fwd CONNECTION LIMIT 0")
			return func() { o.exec("ALTER ROLE fwd CONNECTION LIMIT -1") }
		}},
		{"a lock in time", "55P03", func(t *testing.T) func() {
			t.Helper()
			o.exec("ALTER ROLE fwd SET lock_timeout = '200ms'")
			return lockCatalog(t)
		}},
		{"time for a statement", "57014", func(t *testing.T) func() {
			t.Helper()
			o.exec("ALTER ROLE fwd SET statement_timeout = '200ms'")
			return lockCatalog(t)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			mend := test.spoil(t)
			o.insert(test.name, 3)
			p, health := o.startHTTP()
			p.WaitLine(`"msg":"backing off".*PostgreSQL: .*SQLSTATE `+test.state, testenv.Deadline)
			if code, why := health.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(why, test.state) {
				t.Errorf("GET /readyz: %d %s", code, why)
			}
			mend()
			o.exec("ALTER ROLE fwd RESET ALL")
			o.expectAll()
			o.waitConfirmed()
			expectFewLines(t, p)
			p.Signal(syscall.SIGTERM)
			p.WaitExit(0, testenv.Deadline)
		})
	}
}

func TestPostgresThatEndsSessionsIsConnectedToAgain(t *testing.T) {
	t.Parallel()
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	o.insert("before", 3)
	p := o.startStreaming("--takeover-after", "off")
	o.expectAll()

	o.exec("SELECT pg_terminate_backend(" + o.waitHolder("") + ")")
	p.WaitLine(`"msg":"backing off".*SQLSTATE 57P01`, testenv.Deadline)
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.insert("after the end of a session", 3)
	o.expectAll()

	o.exec("SELECT pg_cancel_backend(" + o.waitHolder("") + ")")
	p.WaitLine(`"msg":"backing off".*SQLSTATE 57014`, testenv.Deadline)
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.insert("after a cancellation", 3)
	o.expectAll()

	// The server kills all sessions when one has crashed; walsenders go without a word.
	session := o.connect()
	if err := syscall.Kill(int(session.PgConn().PID()), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.WaitLine(`"msg":"backing off"`, testenv.Deadline)
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.insert("after a crash", 3)
	o.expectAll()

	// A standby is idle between two attempts.
	o.exec("CREATE ROLE idler LOGIN REPLICATION", "ALTER ROLE idler SET idle_session_timeout = '20ms'", "GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO idler",
		"GRANT SELECT, INSERT, UPDATE ON outbox_dead_letter TO idler")
	other := *o
	other.forwarderDatabaseURL = testenv.WithUser(t, o.databaseURL, "idler", "pw")
	standby := other.start("--takeover-after", "off")
	standby.WaitLine(`"msg":"backing off".*SQLSTATE 57P05`, testenv.Deadline)
	p.Kill()
	standby.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.insert("by the standby", 3)
	o.expectAll()
	o.waitConfirmed()

	// A server that shuts down takes no new session; one that is open keeps it from ending.
	o.connect()
	standby.Kill()
	if err := syscall.Kill(cluster.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p = o.start()
	p.WaitLine(`"msg":"backing off".*SQLSTATE 57P03`, testenv.Deadline)
	stopFast(t, cluster)
	startAgain(t, cluster)
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.insert("after a restart", 3)
	o.expectAll()
	o.waitConfirmed()
}
