package replication

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	connectTimeout = 15 * time.Second
	tcpKeepAlive   = 15 * time.Second
	closeTimeout   = 2 * time.Second
	// readBufferSize lets a reader that fell behind take many messages per system call.
	readBufferSize = 128 << 10
)

// displayParameters pins in the startup packet the text form of values, which would
// otherwise depend on the role, the database or the server. Startup values win over
// ALTER DATABASE and ALTER ROLE.
var displayParameters = map[string]string{
	"client_encoding":     "UTF8",
	"datestyle":           "ISO, YMD",
	"intervalstyle":       "postgres",
	"timezone":            "UTC",
	"bytea_output":        "hex",
	"extra_float_digits":  "1",
	"client_min_messages": "warning",
}

// sessionParameters are pinned for replication connections besides: how long the server
// waits for us.
var sessionParameters = map[string]string{
	"replication": "database",
	// The server reads no replies while it decodes one huge unrelated transaction.
	"wal_sender_timeout": "5min",
	// A peer that is gone without a word is noticed by TCP long before that.
	"tcp_keepalives_idle":     "15",
	"tcp_keepalives_interval": "5",
	"tcp_keepalives_count":    "4",
	"tcp_user_timeout":        "60000",
}

// Conn is a connection in replication mode that does not stream yet. It belongs
// to one goroutine.
type Conn struct {
	pg     *pgconn.PgConn
	buffer *bufio.Reader
}

// Connect opens a replication connection (a walsender bound to a database). It
// blocks until the server has answered, ctx ends or 15 s have passed. Several
// hosts are tried in turn for the one that accepts writes.
func Connect(ctx context.Context, databaseURL, applicationName string) (*Conn, error) {
	cfg, err := parseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	maps.Copy(cfg.RuntimeParams, displayParameters)
	maps.Copy(cfg.RuntimeParams, sessionParameters)
	cfg.RuntimeParams["application_name"] = applicationName
	var buffer *bufio.Reader // of the attempt that succeeded, since attempts are made one after the other
	cfg.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		buffer = bufio.NewReaderSize(r, readBufferSize)
		return pgproto3.NewFrontend(buffer, w)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	pg, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open replication connection: %w", maskConnectError(err))
	}
	c := &Conn{pg: pg, buffer: buffer}
	if err := c.takeBytesAsTheyAre(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// takeBytesAsTheyAre turns off the check for valid UTF-8 where the database has no encoding:
// there the server would end the stream at the first byte that is none, without a word on
// whose it is.
func (c *Conn) takeBytesAsTheyAre(ctx context.Context) error {
	const none = "SQL_ASCII"
	if c.pg.ParameterStatus("server_encoding") != none {
		return nil
	}
	if _, err := c.pg.Exec(ctx, "SET client_encoding = '"+none+"'").ReadAll(); err != nil {
		return fmt.Errorf("set client_encoding: %w", err)
	}
	return nil
}

// parseConfig reads a URL or keyword string; what it returns as an error never
// repeats that string.
func parseConfig(databaseURL string) (*pgconn.Config, error) {
	cfg, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("read database URL: %w", maskConnectError(err))
	}
	if len(cfg.Fallbacks) > 0 && cfg.ValidateConnect == nil && severalHosts(cfg) {
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	dialer := &net.Dialer{KeepAlive: tcpKeepAlive, Timeout: connectTimeout}
	cfg.DialFunc = dialer.DialContext
	return cfg, nil
}

func severalHosts(cfg *pgconn.Config) bool {
	for _, f := range cfg.Fallbacks {
		if f.Host != cfg.Host || f.Port != cfg.Port {
			return true
		}
	}
	return false
}

// System is the answer to IDENTIFY_SYSTEM.
type System struct {
	Identifier string
	Timeline   uint32
	WALEndLSN  pglogrepl.LSN
	Database   string
}

// IdentifySystem asks the server who it is and how far its WAL goes.
func (c *Conn) IdentifySystem(ctx context.Context) (System, error) {
	res, err := pglogrepl.IdentifySystem(ctx, c.pg)
	if err != nil {
		return System{}, fmt.Errorf("identify system: %w", err)
	}
	return System{
		Identifier: res.SystemID,
		Timeline:   uint32(res.Timeline),
		WALEndLSN:  res.XLogPos,
		Database:   res.DBName,
	}, nil
}

// TimelineHistory returns the history file of a timeline; timeline 1 has none.
func (c *Conn) TimelineHistory(ctx context.Context, timeline uint32) ([]byte, error) {
	if timeline <= 1 {
		return nil, nil
	}
	res, err := pglogrepl.TimelineHistory(ctx, c.pg, int32(timeline))
	if err != nil {
		return nil, fmt.Errorf("read history of timeline %d: %w", timeline, err)
	}
	return res.Content, nil
}

// SlotState is what a reader must know of its slot before it streams.
type SlotState struct {
	Exists       bool
	Plugin       string
	Database     string
	Active       bool
	ActivePID    uint32
	TwoPhase     bool
	WALStatus    string
	ConfirmedLSN pglogrepl.LSN
	// InRecovery says that the server is a standby: a slot that is missing there
	// proves nothing.
	InRecovery bool
}

// SlotState reads the slot over the replication connection itself, so that it is
// the state on the very server that will stream.
func (c *Conn) SlotState(ctx context.Context, slot string) (SlotState, error) {
	row, err := c.queryRow(ctx, `SELECT pg_is_in_recovery(), s.slot_name IS NOT NULL, coalesce(s.plugin, ''),
		coalesce(s.database, ''), coalesce(s.active, false), coalesce(s.active_pid, 0), coalesce(s.two_phase, false),
		coalesce(s.wal_status, ''), coalesce(s.confirmed_flush_lsn, '0/0')
		FROM (SELECT 1) one LEFT JOIN pg_replication_slots s ON s.slot_name = '`+strings.ReplaceAll(slot, "'", "''")+`'`)
	if err != nil {
		return SlotState{}, fmt.Errorf("read slot %q: %w", slot, err)
	}
	st := SlotState{
		InRecovery: row[0] == "t", Exists: row[1] == "t", Plugin: row[2], Database: row[3],
		Active: row[4] == "t", TwoPhase: row[6] == "t", WALStatus: row[7],
	}
	pid, err := strconv.ParseUint(row[5], 10, 32)
	if err != nil {
		return SlotState{}, fmt.Errorf("read pid of slot %q: %w", slot, err)
	}
	st.ActivePID = uint32(pid)
	if st.ConfirmedLSN, err = pglogrepl.ParseLSN(row[8]); err != nil {
		return SlotState{}, fmt.Errorf("read position of slot %q: %w", slot, err)
	}
	return st, nil
}

func (c *Conn) queryRow(ctx context.Context, sql string) ([]string, error) {
	results, err := c.pg.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 {
		return nil, fmt.Errorf("expected one row, got %d results", len(results))
	}
	row := make([]string, len(results[0].Rows[0]))
	for i, v := range results[0].Rows[0] {
		row[i] = string(v)
	}
	return row, nil
}

// StartOptions name what START_REPLICATION streams.
type StartOptions struct {
	Slot        string
	Publication string
	// StartLSN is where to start; below the slot's confirmed position the server
	// takes that one. Above the server's WAL end it would skip rows without a word:
	// the caller compares with System.WALEndLSN first.
	StartLSN pglogrepl.LSN
	// Messages also asks for logical messages.
	Messages bool
}

// Start begins to stream and turns the connection into a Stream; the Conn must
// not be used afterwards, except that Close is harmless. After a refusal by the
// server (an error with a SQLSTATE) the Conn is as before.
func (c *Conn) Start(ctx context.Context, opts StartOptions) (*Stream, error) {
	args := []string{"proto_version '1'", "publication_names '" + quotePublication(opts.Publication) + "'"}
	if opts.Messages {
		args = append(args, "messages 'true'")
	}
	err := pglogrepl.StartReplication(ctx, c.pg, opts.Slot, opts.StartLSN, pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication, PluginArgs: args,
	})
	if err != nil {
		err = fmt.Errorf("start replication on slot %q: %w", opts.Slot, err)
		if SQLState(err) != "" {
			err = errors.Join(err, c.skipToReady(ctx))
		}
		return nil, err
	}
	pid := c.pg.PID()
	hijacked, err := c.pg.Hijack()
	if err != nil {
		return nil, fmt.Errorf("take over replication connection: %w", err)
	}
	return newStream(hijacked.Conn, hijacked.Frontend, c.buffer, pid), nil
}

// skipToReady reads what the server sends behind an error, which pglogrepl leaves
// unread: the next question would take it for its answer.
func (c *Conn) skipToReady(ctx context.Context) error {
	for {
		msg, err := c.pg.ReceiveMessage(ctx)
		if err != nil {
			return fmt.Errorf("read to the end of a refusal: %w", err)
		}
		if _, ready := msg.(*pgproto3.ReadyForQuery); ready {
			return nil
		}
	}
}

// quotePublication writes a name as an item of the identifier list inside the
// option's string: always quoted, or the server folds capitals.
func quotePublication(name string) string {
	ident := `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
	return strings.ReplaceAll(ident, "'", "''")
}

// ServerVersion returns the server's version as it names itself, such as "15.18".
func (c *Conn) ServerVersion() string { return c.pg.ParameterStatus("server_version") }

// Close ends the connection; after Start it does nothing.
func (c *Conn) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = c.pg.Close(ctx) // the connection is gone either way
}
