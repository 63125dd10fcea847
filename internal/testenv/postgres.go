package testenv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
)

// BinDirEnv names the folder with the server binaries of the PostgreSQL to test
// against; without it the machine's own is used.
const BinDirEnv = "OUTBOX_CDC_TEST_PG_BINDIR"

// Cluster is a running PostgreSQL server with any number of test databases.
type Cluster struct {
	*devstack.Postgres
	throwAway bool // belongs to one test: databases need not be dropped
}

// Postgres returns the server that all tests of the package share. It is started by the
// first one, takes a second, and stops in Main. Slot names are common to the whole
// server: take them from UniqueName. A test that stops or configures the server needs NewPostgres.
func Postgres(tb testing.TB) *Cluster {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	needMain(tb)
	if shared.cluster != nil {
		return shared.cluster
	}
	server, err := devstack.StartPostgres(context.Background(), postgresOptions(devstack.PostgresOptions{}))
	if err != nil {
		tb.Fatal(err)
	}
	shared.closings = append(shared.closings, server.Close)
	shared.cluster = &Cluster{Postgres: server}
	return shared.cluster
}

// NewPostgres starts a server for this test alone.
func NewPostgres(tb testing.TB, opts devstack.PostgresOptions) *Cluster {
	tb.Helper()
	server, err := devstack.StartPostgres(Context(tb, 2*Deadline), postgresOptions(opts))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("end of the PostgreSQL log:\n%s", fileEnd(server.LogFile()))
		}
		if err := server.Close(); err != nil {
			tb.Errorf("close PostgreSQL: %v", err)
		}
	})
	return &Cluster{Postgres: server, throwAway: true}
}

func postgresOptions(opts devstack.PostgresOptions) devstack.PostgresOptions {
	if opts.BinDir == "" {
		opts.BinDir = os.Getenv(BinDirEnv)
	}
	return opts
}

// NewDatabase makes an empty database and returns its URL for the superuser. It is
// dropped after the test with its slots. options are those of CREATE DATABASE.
func (c *Cluster) NewDatabase(tb testing.TB, options ...string) string {
	tb.Helper()
	name := UniqueName("db")
	Exec(tb, c.URL("postgres"), "create database "+name+" "+strings.Join(options, " "))
	if !c.throwAway {
		tb.Cleanup(func() {
			if err := c.dropDatabase(name); err != nil {
				tb.Errorf("drop database %s: %v", name, err)
			}
		})
	}
	return c.URL(name)
}

func (c *Cluster) dropDatabase(name string) error {
	ctx, cancel := cleanupContext()
	defer cancel()
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing was left to send
	err = poll(Deadline, func() error {
		const inUse = `select pg_terminate_backend(active_pid) from pg_replication_slots where database = $1 and active_pid is not null`
		const drop = `select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = $1 and active_pid is null`
		const left = `select count(*) from pg_replication_slots where database = $1`
		if _, err := conn.Exec(ctx, inUse, name); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, drop, name); err != nil {
			return err
		}
		var slots int
		if err := conn.QueryRow(ctx, left, name).Scan(&slots); err != nil {
			return err
		}
		if slots > 0 {
			return fmt.Errorf("%d slots are in use", slots)
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "drop database "+name+" with (force)")
	return err
}

var names atomic.Int64

// UniqueName returns prefix and a number that this test process has not used. It is a
// plain name for a slot, publication, database or (in capitals) a stream. Any goroutine may call it.
func UniqueName(prefix string) string {
	return fmt.Sprintf("%s_%d", prefix, names.Add(1))
}

// Connect opens a connection that is closed after the test.
func Connect(tb testing.TB, databaseURL string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(Context(tb, Deadline), databaseURL)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		_ = conn.Close(ctx) // the server may be gone by now
	})
	return conn
}

// Exec runs one or more statements on a connection of its own, each text in its own
// implicit transaction.
func Exec(tb testing.TB, databaseURL string, statements ...string) {
	tb.Helper()
	ctx := Context(tb, Deadline)
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close(ctx) //nolint:errcheck // all statements were answered
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			tb.Fatalf("%s: %v", sql, err)
		}
	}
}

// Query runs one query on a connection of its own and returns the single value of each
// row as text; NULL is an empty string.
func Query(tb testing.TB, databaseURL, sql string, args ...any) []string {
	tb.Helper()
	values, err := TryQuery(Context(tb, Deadline), databaseURL, sql, args...)
	if err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return values
}

// TryQuery is Query for places that handle the error themselves, such as Eventually.
// Any goroutine may call it.
func TryQuery(ctx context.Context, databaseURL, sql string, args ...any) ([]string, error) {
	cfg, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec // text results
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx) //nolint:errcheck // the result was read
	rows, err := conn.Query(ctx, sql, append([]any{pgx.QueryResultFormats{pgx.TextFormatCode}}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var values []string
	for rows.Next() {
		raw := rows.RawValues()
		if len(raw) != 1 {
			return nil, errors.New("the query returns more than one column")
		}
		values = append(values, string(raw[0]))
	}
	return values, rows.Err()
}

// WithUser returns the URL with another user and password.
func WithUser(tb testing.TB, databaseURL, name, password string) string {
	tb.Helper()
	u := parseURL(tb, databaseURL)
	u.User = url.UserPassword(name, password)
	return u.String()
}

// WithAddress returns the URL with another host:port, such as that of a Proxy.
func WithAddress(tb testing.TB, serverURL, address string) string {
	tb.Helper()
	u := parseURL(tb, serverURL)
	u.Host = address
	return u.String()
}

// AddressOf returns the host:port of a URL.
func AddressOf(tb testing.TB, serverURL string) string {
	tb.Helper()
	return parseURL(tb, serverURL).Host
}

// DatabaseName returns the database of a URL.
func DatabaseName(tb testing.TB, databaseURL string) string {
	tb.Helper()
	return strings.TrimPrefix(parseURL(tb, databaseURL).Path, "/")
}

func parseURL(tb testing.TB, text string) *url.URL {
	tb.Helper()
	u, err := url.Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	return u
}

func fileEnd(path string) string {
	const bytesMax = 4096
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(raw[max(0, len(raw)-bytesMax):])
}
