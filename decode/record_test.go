package decode_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// step is one statement of a scenario. Sessions are connections, made when first named.
type step struct {
	session string
	sql     string
	copy    string // the data, if sql is COPY ... FROM STDIN
}

// in returns the statements as steps of one session.
func in(session string, statements ...string) []step {
	var steps []step
	for _, sql := range statements {
		steps = append(steps, step{session: session, sql: sql})
	}
	return steps
}

func steps(groups ...[]step) []step {
	var all []step
	for _, g := range groups {
		all = append(all, g...)
	}
	return all
}

// server is a throw-away PostgreSQL, for recording only.
type server struct {
	dir  string
	port int
}

// startServer makes a cluster with the initdb and pg_ctl on PATH, as the user postgres
// when the test runs as root.
func startServer(t *testing.T) *server {
	t.Helper()
	dir, err := os.MkdirTemp("", "decode-record")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &server{dir: dir, port: freePort(t)}
	if os.Getuid() == 0 {
		uid, gid := postgresUser(t)
		if err := os.Chown(dir, int(uid), int(gid)); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	s.run(t, "initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
	conf := fmt.Sprintf("port=%d\nlisten_addresses='127.0.0.1'\nunix_socket_directories='%s'\nwal_level=logical\n"+
		"max_prepared_transactions=10\nfsync=off\nlogical_decoding_work_mem='64kB'\nautovacuum=off\n", s.port, dir)
	f, err := os.OpenFile(filepath.Join(data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(conf); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	s.run(t, "pg_ctl", "-D", data, "-l", filepath.Join(dir, "log"), "-w", "start")
	t.Cleanup(func() { s.run(t, "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop") })
	return s
}

func (s *server) run(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = s.dir
	if os.Getuid() == 0 {
		uid, gid := postgresUser(t)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	}
	// A file, not a pipe: the server inherits it and would keep a pipe open.
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
}

func postgresUser(t *testing.T) (uid, gid uint32) {
	t.Helper()
	u, err := user.Lookup("postgres")
	if err != nil {
		t.Fatal(err)
	}
	id, _ := strconv.ParseUint(u.Uid, 10, 32)
	group, _ := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(id), uint32(group)
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (s *server) connect(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=%s", s.port, database))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// ran is a statement with the WAL that it wrote.
type ran struct {
	sql        string
	start, end string
}

// record runs the scenario in a database of its own and returns the file: each message
// of the slot in hex, under a comment with its kind and the statement that wrote it.
func (s *server) record(t *testing.T, sc scenario) string {
	t.Helper()
	ctx := t.Context()
	database := "rec_" + sc.name
	admin := s.connect(t, "postgres")
	mustExec(t, admin, "CREATE DATABASE "+database)
	conn := s.connect(t, database)
	for _, sql := range sc.setup {
		mustExec(t, conn, sql)
	}
	mustExec(t, conn, fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput', false, %t)", database, sc.twoPhase))

	sessions := map[string]*pgx.Conn{}
	var history []ran
	for _, st := range sc.steps {
		c := sessions[st.session]
		if c == nil {
			c = s.connect(t, database)
			sessions[st.session] = c
		}
		r := ran{sql: st.sql, start: walLSN(t, conn)}
		if st.copy != "" {
			if _, err := c.PgConn().CopyFrom(ctx, strings.NewReader(st.copy), st.sql); err != nil {
				t.Fatalf("%s: %v", st.sql, err)
			}
			r.sql += "\n" + strings.TrimSuffix(st.copy, "\n") + "\n\\."
		} else {
			mustExec(t, c, st.sql)
		}
		r.end = walLSN(t, conn)
		history = append(history, r)
	}
	return s.read(t, conn, sc, database, history)
}

func (s *server) read(t *testing.T, conn *pgx.Conn, sc scenario, slot string, history []ran) string {
	t.Helper()
	version, options := "1", ""
	if sc.streaming {
		version, options = "2", ", 'streaming', 'on'"
	}
	rows, err := conn.Query(t.Context(), fmt.Sprintf(
		"SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes('%s', NULL, NULL, 'proto_version', '%s', 'publication_names', 'p', 'messages', 'true'%s)",
		slot, version, options), pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n# PostgreSQL 15, pgoutput, proto_version %s%s\n", sc.story, version, options)
	for _, sql := range sc.setup {
		writeComment(&b, "setup", sql)
	}
	streamed := 0
	for rows.Next() {
		var lsn string
		var data []byte
		if err := rows.Scan(&lsn, &data); err != nil {
			t.Fatal(err)
		}
		// A streamed transaction must be large; a few of its rows are enough here.
		if data[0] == 'S' || data[0] == 'E' {
			streamed = 0
		}
		if streamed++; sc.streaming && streamed > 3 {
			continue
		}
		at := lsnNumber(lsn)
		if data[0] == 'C' || data[0] == 'M' && data[1] == 0 {
			at-- // the end of the record
		}
		writeComment(&b, kindNames[data[0]], statementAt(at, history))
		fmt.Fprintln(&b, hex.EncodeToString(data))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	mustExec(t, conn, fmt.Sprintf("SELECT pg_drop_replication_slot('%s')", slot))
	return b.String()
}

var kindNames = map[byte]string{
	'B': "Begin", 'C': "Commit", 'R': "Relation", 'Y': "Type", 'I': "Insert", 'U': "Update", 'D': "Delete", 'T': "Truncate",
	'O': "Origin", 'M': "Message", 'S': "Stream Start", 'E': "Stream Stop", 'c': "Stream Commit", 'A': "Stream Abort",
	'b': "Begin Prepare", 'P': "Prepare", 'K': "Commit Prepared", 'r': "Rollback Prepared",
}

func writeComment(b *strings.Builder, kind, sql string) {
	if len(sql) > 2000 {
		sql = sql[:2000] + " ..."
	}
	fmt.Fprintf(b, "# %s: %s\n", kind, strings.ReplaceAll(sql, "\n", "\n#   "))
}

func statementAt(at uint64, history []ran) string {
	for _, r := range history {
		if at >= lsnNumber(r.start) && at < lsnNumber(r.end) {
			return r.sql
		}
	}
	return ""
}

func lsnNumber(s string) uint64 {
	p, err := decode.ParsePosition("0:" + s + ":0")
	if err != nil {
		panic(err)
	}
	return uint64(p.CommitLSN)
}

// quoted returns lines of name, tab, quote_ident(name) for all keywords and odd names.
func (s *server) quoted(t *testing.T) string {
	t.Helper()
	conn := s.connect(t, "postgres")
	rows, err := conn.Query(t.Context(), `SELECT w, quote_ident(w) FROM (SELECT word FROM pg_get_keywords() UNION ALL
		VALUES ('outbox'), ('Outbox'), ('Order.Outbox'), ('Billing-EU'), ('a"b'), ('"'), ('1a'), ('a1'), ('a$'), ('_'), ('é'), ('a b'), ('ORDER')) AS t(w) ORDER BY w`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var b strings.Builder
	for rows.Next() {
		var name, quoted string
		if err := rows.Scan(&name, &quoted); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s\t%s\n", name, quoted)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func walLSN(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	var lsn string
	if err := conn.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&lsn); err != nil {
		t.Fatal(err)
	}
	return lsn
}

func mustExec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(errors.Join(errors.New(sql), err))
	}
}
