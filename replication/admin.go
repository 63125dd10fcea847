package replication

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// Admin is one ordinary SQL connection, for looking at slots, publications and tables
// and for making them. It belongs to one goroutine. A role with REPLICATION and CONNECT
// is enough to look at everything and to make, move and drop slots.
type Admin struct {
	conn *pgx.Conn
	idle bool // it waits for notifications
}

// Server is what the catalog tells of the server and of our session.
type Server struct {
	Version          string // as the server names itself, such as "15.18 (Debian)"
	VersionNumber    int    // server_version_num, such as 150018
	SystemIdentifier string
	Database         string
	Role             string
	RoleReplication  bool // the role may stream and make slots
	WALLevel         string
	InRecovery       bool
	SlotsMax         int
	SendersMax       int
}

// Major is the major version, such as 15.
func (s Server) Major() int { return s.VersionNumber / 10000 }

// cancelGrace is how long a cancelled statement may take to say so before the
// connection is cut.
const cancelGrace = 3 * time.Second

// OpenAdmin connects. It blocks until the server has answered, ctx ends or 15 s have
// passed. Several hosts are tried in turn for the one that accepts writes. When ctx of a later call
// ends, the statement is cancelled on the server too, so that nothing goes on there unseen.
func OpenAdmin(ctx context.Context, databaseURL, applicationName string) (*Admin, error) {
	cfg, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("read database URL: %w", maskConnectError(err))
	}
	checked, err := parseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	cfg.ValidateConnect, cfg.DialFunc = checked.ValidateConnect, checked.DialFunc
	maps.Copy(cfg.RuntimeParams, displayParameters)
	cfg.RuntimeParams["application_name"] = applicationName
	// Named statements do not survive a pooler between us and the server.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	admin := &Admin{}
	cfg.BuildContextWatcherHandler = func(pg *pgconn.PgConn) ctxwatch.Handler {
		return &cancelHandler{statement: pgconn.CancelRequestContextWatcherHandler{Conn: pg, DeadlineDelay: cancelGrace}, pg: pg, admin: admin}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", maskConnectError(err))
	}
	admin.conn = conn
	return admin, nil
}

// Close ends the connection. It may be called twice.
func (a *Admin) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = a.conn.Close(ctx) // the connection is gone either way
}

// Server asks who is there.
func (a *Admin) Server(ctx context.Context) (Server, error) {
	var s Server
	err := a.conn.QueryRow(ctx, `
		SELECT current_setting('server_version'), current_setting('server_version_num')::int,
		       (SELECT system_identifier::text FROM pg_control_system()), current_database()::text, current_user::text,
		       coalesce((SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user), false),
		       current_setting('wal_level'), pg_is_in_recovery(),
		       current_setting('max_replication_slots')::int, current_setting('max_wal_senders')::int`).
		Scan(&s.Version, &s.VersionNumber, &s.SystemIdentifier, &s.Database, &s.Role,
			&s.RoleReplication, &s.WALLevel, &s.InRecovery, &s.SlotsMax, &s.SendersMax)
	if err != nil {
		return Server{}, fmt.Errorf("read server settings: %w", err)
	}
	return s, nil
}

// Tx is a transaction of an Admin. It is valid only inside the function it is given to.
type Tx struct {
	tx pgx.Tx
}

// InTransaction runs work in one transaction: committed when work returns nil, else
// rolled back.
func (a *Admin) InTransaction(ctx context.Context, work func(Tx) error) error {
	err := pgx.BeginFunc(ctx, a.conn, func(tx pgx.Tx) error { return work(Tx{tx: tx}) })
	if err != nil {
		return fmt.Errorf("run transaction: %w", err)
	}
	return nil
}

// Exec runs SQL text, which may hold several statements.
func (t Tx) Exec(ctx context.Context, sql string) error {
	if _, err := t.tx.Conn().PgConn().Exec(ctx, sql).ReadAll(); err != nil {
		return err
	}
	return nil
}

// ExecArgs runs one statement with parameters.
func (t Tx) ExecArgs(ctx context.Context, sql string, args ...any) error {
	_, err := t.tx.Exec(ctx, sql, args...)
	return err
}

// Lookup runs a query of one row and scans it into into. It returns false when there is no row.
func (t Tx) Lookup(ctx context.Context, into []any, sql string, args ...any) (bool, error) {
	return lookup(t.tx.QueryRow(ctx, sql, args...), into)
}

// Lookup runs a query of one row and scans it into into. It returns false when there is no row.
func (a *Admin) Lookup(ctx context.Context, into []any, sql string, args ...any) (bool, error) {
	return lookup(a.conn.QueryRow(ctx, sql, args...), into)
}

// Each runs a query and calls each with every row scanned into into, which is written
// to anew for the next row. It ends at the first error of each and returns it.
func (t Tx) Each(ctx context.Context, into []any, each func() error, sql string, args ...any) error {
	rows, err := t.tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, into, each)
	return err
}

// Each does what Tx.Each does, outside of a transaction.
func (a *Admin) Each(ctx context.Context, into []any, each func() error, sql string, args ...any) error {
	rows, err := a.conn.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, into, each)
	return err
}

func lookup(row pgx.Row, into []any) (bool, error) {
	err := row.Scan(into...)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

// QuoteName writes names as a quoted SQL identifier, joined by dots.
func QuoteName(names ...string) string { return pgx.Identifier(names).Sanitize() }

func quoteLiteral(text string) string {
	return "'" + strings.ReplaceAll(text, "'", "''") + "'"
}
