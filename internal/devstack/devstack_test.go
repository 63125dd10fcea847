package devstack_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

const orphanEnv = "DEVSTACK_TEST_ORPHAN"

func TestMain(m *testing.M) {
	if os.Getenv(orphanEnv) != "" {
		runOrphanMaker()
		return
	}
	goleak.VerifyTestMain(m)
}

// runOrphanMaker starts a server, prints its process id and waits to be killed.
func runOrphanMaker() {
	p, err := devstack.StartPostgres(context.Background(), options())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.PID(), filepath.Dir(p.DataDir()))
	<-p.Exited()
}

func options() devstack.PostgresOptions {
	return devstack.PostgresOptions{BinDir: os.Getenv("OUTBOX_CDC_TEST_PG_BINDIR")}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func startPostgres(t *testing.T, opts devstack.PostgresOptions) *devstack.Postgres {
	t.Helper()
	p, err := devstack.StartPostgres(testContext(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func query(t *testing.T, url, sql string) string {
	t.Helper()
	ctx := testContext(t)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	rows, err := conn.Query(ctx, sql)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(values, " ")
}

func TestPostgresTakesLogicalSlotsOverTCPAndSocket(t *testing.T) {
	opts := options()
	opts.Settings = map[string]string{"wal_sender_timeout": "7s", "application_name": "it's"}
	p := startPostgres(t, opts)
	for _, url := range []string{p.URL("postgres"), p.SocketURL("postgres")} {
		if got := query(t, url, "show wal_level"); got != "logical" {
			t.Errorf("wal_level = %q, want logical", got)
		}
	}
	if got := query(t, p.URL("postgres"), "show wal_sender_timeout"); got != "7s" {
		t.Errorf("own setting = %q, want 7s", got)
	}
	if got := query(t, p.URL("postgres"), "select current_setting('server_version_num')::int / 10000 || ''"); got != strconv.Itoa(p.Major()) {
		t.Errorf("major = %s, want %d", got, p.Major())
	}
}

func TestCommittedRowsSurviveEveryKindOfStop(t *testing.T) {
	p := startPostgres(t, options())
	url := p.URL("postgres")
	query(t, url, "create table t(a text)")
	stops := map[string]func() error{
		"smart":     func() error { return p.Stop(testContext(t), devstack.StopSmart) },
		"fast":      func() error { return p.Stop(testContext(t), devstack.StopFast) },
		"immediate": func() error { return p.Stop(testContext(t), devstack.StopImmediate) },
		"kill":      p.Kill,
	}
	for name, stop := range stops {
		t.Run(name, func(t *testing.T) {
			query(t, url, "insert into t values ('"+name+"')")
			exited := p.Exited()
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			<-exited
			if conn, err := net.Dial("tcp", devstack.Address(p.Port())); err == nil {
				_ = conn.Close()
				t.Fatal("the port still answers")
			}
			if err := p.Start(testContext(t)); err != nil {
				t.Fatal(err)
			}
			if got := query(t, url, "select a from t where a = '"+name+"'"); got != name {
				t.Errorf("row after restart = %q, want %q", got, name)
			}
		})
	}
}

func TestKeptDataFolderIsUsedAgain(t *testing.T) {
	opts := options()
	opts.Dir = filepath.Join(testenv.ReachableDir(t), "state")
	first := startPostgres(t, opts)
	query(t, first.URL("postgres"), "create table kept as select 'yes' as a")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := startPostgres(t, opts)
	if got := query(t, second.URL("postgres"), "select a from kept"); got != "yes" {
		t.Errorf("row = %q, want yes", got)
	}
	if _, err := devstack.StartPostgres(testContext(t), opts); err == nil || !strings.Contains(err.Error(), "postmaster.pid") {
		t.Errorf("a second server on the same data: %v, want the server's own words", err)
	}
	if got := query(t, second.URL("postgres"), "select a from kept"); got != "yes" {
		t.Errorf("row after the refused second server = %q, want yes", got)
	}
}

func TestCloseLeavesNeitherProcessNorFolder(t *testing.T) {
	p := startPostgres(t, options())
	pid, home := p.PID(), filepath.Dir(p.DataDir())
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v, want it gone", pid, err)
	}
	if _, err := os.Stat(home); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder %s: %v, want it gone", home, err)
	}
}

func TestMissingBinariesAreATypedError(t *testing.T) {
	opts := devstack.PostgresOptions{BinDir: t.TempDir()}
	_, err := devstack.StartPostgres(testContext(t), opts)
	if !errors.Is(err, devstack.ErrNoPostgres) {
		t.Fatalf("error = %v, want ErrNoPostgres", err)
	}
	var missing *devstack.NoPostgresError
	if !errors.As(err, &missing) || len(missing.Searched) != 1 || missing.Searched[0] != opts.BinDir {
		t.Errorf("error = %#v, want the folder that was searched", err)
	}
}

func TestWrongSettingIsNamedInTheError(t *testing.T) {
	opts := options()
	opts.Settings = map[string]string{"no_such_setting": "1"}
	_, err := devstack.StartPostgres(testContext(t), opts)
	if err == nil || !strings.Contains(err.Error(), "no_such_setting") {
		t.Fatalf("error = %v, want the setting named", err)
	}
}

func TestPostgresDiesWithTheProcessThatStartedIt(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), orphanEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	killErr := cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if err != nil || killErr != nil {
		t.Fatalf("read %q: %v, kill: %v", line, err, killErr)
	}
	pidText, home, _ := strings.Cut(strings.TrimSpace(line), " ")
	pid, err := strconv.Atoi(pidText)
	if err != nil {
		t.Fatal(line)
	}
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for running(pid) {
		select {
		case <-poll.C:
		case <-deadline.C:
			t.Fatalf("postmaster %d outlives its parent", pid)
		}
	}

	// Its folder goes when the next server starts, once it is no longer young.
	lock := filepath.Join(home, "lock")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(lock, old, old); err != nil {
		t.Fatal(err)
	}
	living := startPostgres(t, options())
	if err := os.Chtimes(filepath.Join(filepath.Dir(living.DataDir()), "lock"), old, old); err != nil {
		t.Fatal(err)
	}
	startNATS(t, devstack.NATSOptions{})
	if _, err := os.Stat(home); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("folder %s: %v, want it gone", home, err)
	}
	if got := query(t, living.URL("postgres"), "select 'lives'"); got != "lives" {
		t.Errorf("the server in an old folder = %q", got)
	}
}

func TestKillLeavesNoBusyBackendBehind(t *testing.T) {
	p := startPostgres(t, options())
	ctx := testContext(t)
	conn, err := pgx.Connect(ctx, p.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	backend := int(conn.PgConn().PID())
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(ctx, "do $$ begin loop end loop; end $$") // never looks at its postmaster
		ended <- err
	}()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for query(t, p.URL("postgres"), "select count(*) || '' from pg_stat_activity where query like 'do %' and state = 'active'") != "1" {
		<-poll.C
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if running(backend) {
		t.Errorf("backend %d still runs", backend)
	}
	if err := <-ended; err == nil {
		t.Error("the endless statement ended well")
	}
}

// running says whether a process exists and is not a zombie that its new parent has yet to collect.
func running(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(raw), ") Z ")
}

func TestPortsAreNeverHandedOutTwice(t *testing.T) {
	seen := map[int]bool{}
	for range 200 {
		port, err := devstack.FreePort(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] {
			t.Fatalf("port %d twice", port)
		}
		seen[port] = true
	}
}

func TestTemporaryFolderThatPostgresCannotEnterIsNotUsed(t *testing.T) {
	dir := testenv.ReachableDir(t)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	p := startPostgres(t, options())
	if got := query(t, p.SocketURL("postgres"), "select 'there'"); got != "there" {
		t.Errorf("answer = %q", got)
	}
}

func TestLongPathOfAKeptFolderLeavesRoomForTheSocket(t *testing.T) {
	opts := options()
	opts.Dir = filepath.Join(testenv.ReachableDir(t), strings.Repeat("long", 30))
	p := startPostgres(t, opts)
	if got := query(t, p.SocketURL("postgres"), "select 'there'"); got != "there" {
		t.Errorf("answer = %q", got)
	}
}
