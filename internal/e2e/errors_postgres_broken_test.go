package e2e

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// Nothing is confirmed while the WAL cannot be read: once it is back, all arrives.
func TestWALThatCannotBeReadStopsTheForwarderAndNothingIsPassedOver(t *testing.T) {
	t.Parallel()
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	o.insert("a", 3)
	segment := filepath.Join(cluster.DataDir(), "pg_wal", o.value("SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots"))
	o.exec("SELECT pg_switch_wal()")
	o.insert("b", 3)
	wal, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	const page = 8192
	for _, test := range []struct {
		name, state string
		spoil, mend func() error
	}{
		{
			"a segment is missing", "58P01",
			func() error { return os.Rename(segment, segment+".away") },
			func() error { return os.Rename(segment+".away", segment) },
		},
		{
			"a segment is short", "XX001",
			func() error { return os.Truncate(segment, page) },
			func() error { return os.WriteFile(segment, wal, 0o600) },
		},
		{
			"a segment holds something else", "XX000",
			func() error { return os.WriteFile(segment, bytes.Repeat([]byte("x"), len(wal)), 0o600) },
			func() error { return os.WriteFile(segment, wal, 0o600) },
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := test.spoil(); err != nil {
				t.Fatal(err)
			}
			p := o.start()
			p.WaitExit(3, testenv.Deadline)
			expectRefusal(t, p, "SQLSTATE "+test.state, "server's log")
			if err := test.mend(); err != nil {
				t.Fatal(err)
			}
		})
	}
	o.startStreaming()
	o.expectAll()
	o.waitConfirmed()
}

func TestSlotThatIsLostWhileRunningStopsTheForwarderAndIsNotWorkedOnAgain(t *testing.T) {
	t.Parallel()
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{Settings: map[string]string{
		"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB",
	}})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	o.fillStream(1)
	p := o.startStreaming("--shutdown-timeout", "1s")
	o.insert("a", 3)
	p.WaitLine("error 10077", testenv.Deadline)
	o.exec("CREATE TABLE neighbour(n int)")
	for range 4 {
		o.exec("INSERT INTO neighbour VALUES (1)", "SELECT pg_switch_wal()")
	}
	o.exec("CHECKPOINT")
	p.WaitExit(3, 2*testenv.Deadline)
	expectRefusal(t, p, "slot "+o.slot+" is lost.*wal_status", "outbox-cdc slot drop")
	again := o.start()
	again.WaitExit(3, testenv.Deadline)
	expectRefusal(t, again, "slot "+o.slot+" is lost.*wal_status", "outbox-cdc slot drop")

	// The server's own code is that of a slot that cannot be used.
	advance := o.run("slot", "advance", "--to", o.walEndLSN().String(), "--yes")
	advance.WaitExit(3, testenv.Deadline)
	expectRefusal(t, advance, "SQLSTATE 55000", "outbox-cdc slot")
}

func TestCommandsSayWhyPostgresMakesNothing(t *testing.T) {
	t.Parallel()
	pair := testenv.PostgresPair(t, testenv.PairOptions{Settings: map[string]string{"max_replication_slots": "1"}})
	primary, standby := pair.Primary.NewDatabase(t), pair.Standby.URL("postgres")
	readOnly := pair.Primary.NewDatabase(t)
	testenv.Exec(t, readOnly, "ALTER DATABASE "+testenv.DatabaseName(t, readOnly)+" SET default_transaction_read_only = 'on'")
	testenv.Exec(t, primary, "CREATE PUBLICATION outbox")
	for _, test := range []struct {
		name       string
		url        string
		args       []string
		exit       int
		what, hint string
	}{
		{"all slots are in use", primary, []string{"slot", "create"}, 1, "SQLSTATE 53400", "limit that the server names"},
		{"slot on a standby", standby, []string{"slot", "create"}, 3, "SQLSTATE 0A000", "primary"},
		{"tables in a read-only database", readOnly, []string{"setup", "--no-stream", "--no-slot"}, 1, "SQLSTATE 25006", "default_transaction_read_only"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := testenv.Run(t, testenv.Binary(t), append(test.args, "--database-url", test.url)...)
			p.WaitExit(test.exit, testenv.Deadline)
			expectRefusal(t, p, test.what, test.hint)
		})
	}
}

func TestDeadlockOfTheSetUpBeforeTheStartIsTriedAgain(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.run("migrate", "down", "--to", "4", "--yes").WaitExit(0, testenv.Deadline)
	o.setDatabase("deadlock_timeout", "2s") // for the next sessions: how long until one looks
	other := o.connect()
	ctx := testenv.Context(t, 2*testenv.Deadline)
	if _, err := other.Exec(ctx, "SET deadlock_timeout = '1h'; BEGIN; LOCK TABLE outbox_dead_letter IN ACCESS SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	p := o.start("--setup")
	testenv.Eventually(t, testenv.Deadline, func() error {
		if n := o.value("SELECT count(*)::text FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.datname = current_database() AND l.locktype = 'relation'"); n == "0" {
			return errors.New("setup does not wait for the table yet")
		}
		return nil
	})
	const migrationLock = "0x6f7574626f78"
	if _, err := other.Exec(ctx, "SELECT pg_advisory_xact_lock(x'"+migrationLock[2:]+"'::bigint)"); err != nil {
		t.Fatal(err)
	}
	p.WaitLine(`"msg":"setup waits".*SQLSTATE 40P01`, testenv.Deadline)
	if _, err := other.Exec(ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	o.insert("a", 3)
	o.expectAll()
}

func TestRightThatTheSetUpBeforeTheStartLacksIsAnExit(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.run("migrate", "down", "--to", "4", "--yes").WaitExit(0, testenv.Deadline)
	o.forwarderDatabaseURL = o.printedRole() // it owns no table
	p := o.start("--setup")
	p.WaitExit(3, testenv.Deadline)
	expectRefusal(t, p, "SQLSTATE 42501", "outbox-cdc setup --dry-run")
}

// What stands between us and the server, and is none that carries replication connections.
func TestProtocolThatIsMangledOnTheWayIsTakenForAPooler(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.forwarderDatabaseURL = testenv.WithAddress(t, o.databaseURL, mangler(t, testenv.AddressOf(t, o.databaseURL)))
	p := o.start()
	p.WaitExit(3, testenv.Deadline)
	expectRefusal(t, p, "pooler.*SQLSTATE 08P01", "PostgreSQL itself")
}

// mangler is a way to a server that spoils the letter of each query.
func mangler(tb testing.TB, address string) string {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = listener.Close() })
	pass := func(from, to net.Conn, spoil bool) {
		defer func() { _, _ = from.Close(), to.Close() }()
		buffer := make([]byte, 1<<16)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if spoil && buffer[0] == 'Q' {
				buffer[0] = 'Y'
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", address)
			if err != nil {
				_ = client.Close()
				return
			}
			go pass(client, server, true)
			go pass(server, client, false)
		}
	}()
	return listener.Addr().String()
}
