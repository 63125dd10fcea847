package testenv_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// As a program under test, this binary echoes what a test asks of it.
const echoEnv = "TESTENV_TEST_ECHO"

func TestMain(m *testing.M) {
	if os.Getenv(echoEnv) != "" {
		echo()
		return
	}
	os.Exit(testenv.Main(m))
}

// echo prints its arguments, one line each, those with a ! on standard error; "wait"
// waits for standard input to end or a signal, "exit" ends with status 3.
func echo() {
	for _, arg := range os.Args[1:] {
		switch {
		case arg == "wait":
			r, _, err := os.Pipe()
			if err == nil {
				_, _ = bufio.NewReader(r).ReadByte()
			}
		case arg == "exit":
			os.Exit(3)
		case strings.HasPrefix(arg, "!"):
			fmt.Fprintln(os.Stderr, arg)
		default:
			fmt.Println(arg)
		}
	}
}

func runEcho(t *testing.T, args ...string) *testenv.Program {
	t.Helper()
	return testenv.RunCommand(t, testenv.Command{Path: os.Args[0], Args: args, Env: []string{echoEnv + "=1"}})
}

func TestEachDatabaseIsEmptyAndLeavesNoSlotBehind(t *testing.T) {
	cluster := testenv.Postgres(t)
	slot := testenv.UniqueName("slot")
	t.Run("first", func(t *testing.T) {
		url := cluster.NewDatabase(t)
		testenv.Exec(t, url, "create table t(a int)", "select pg_create_logical_replication_slot('"+slot+"', 'pgoutput')")
	})
	t.Run("second", func(t *testing.T) {
		url := cluster.NewDatabase(t)
		if got := testenv.Query(t, url, "select count(*) from pg_class where relname = 't'"); got[0] != "0" {
			t.Errorf("tables = %s, want 0", got)
		}
	})
	left := testenv.Query(t, cluster.URL("postgres"), "select slot_name from pg_replication_slots where slot_name = $1", slot)
	if len(left) != 0 {
		t.Errorf("slots left = %v", left)
	}
	if left := testenv.Query(t, cluster.URL("postgres"), "select datname from pg_database where datname like 'db\\_%'"); len(left) != 0 {
		t.Errorf("databases left = %v", left)
	}
}

func TestServerOfOneTestCanBeConfigured(t *testing.T) {
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{Settings: map[string]string{"max_slot_wal_keep_size": "1MB"}})
	if got := testenv.Query(t, cluster.NewDatabase(t), "show max_slot_wal_keep_size"); got[0] != "1MB" {
		t.Errorf("setting = %s, want 1MB", got)
	}
}

func makeStream(t *testing.T, js jetstream.JetStream, name string, replicas int) {
	t.Helper()
	ctx := testenv.Context(t, testenv.Deadline)
	_, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}, Replicas: replicas})
	if err != nil {
		t.Fatal(err)
	}
}

func publish(t *testing.T, js jetstream.JetStream, subject, id, body string) {
	t.Helper()
	ctx := testenv.Context(t, testenv.Deadline)
	if _, err := js.Publish(ctx, subject, []byte(body), jetstream.WithMsgID(id)); err != nil {
		t.Fatal(err)
	}
}

func TestDumpHoldsEveryMessageInOrder(t *testing.T) {
	server := testenv.NATS(t)
	js := testenv.JetStream(t, server.URL())
	makeStream(t, js, "S", 1)
	if got := testenv.DumpStream(t, server.URL(), "S"); len(got) != 0 {
		t.Errorf("empty stream = %v", got)
	}
	const count = 1200
	for i := range count {
		publish(t, js, "S.a", fmt.Sprint("id", i), fmt.Sprint(i))
	}
	messages := testenv.DumpStream(t, server.URL(), "S")
	if len(messages) != count {
		t.Fatalf("%d messages, want %d", len(messages), count)
	}
	for i, id := range testenv.MessageIDs(messages) {
		m := messages[i]
		if id != fmt.Sprint("id", i) || string(m.Data) != fmt.Sprint(i) || m.Subject != "S.a" || m.Sequence != uint64(i+1) {
			t.Fatalf("message %d = %+v", i, m)
		}
	}
}

func TestKilledNATSProcessKeepsItsPortAndStream(t *testing.T) {
	server := testenv.NATSProcess(t)
	js := testenv.JetStream(t, server.URL())
	makeStream(t, js, "S", 1)
	publish(t, js, "S.a", "1", "before")
	pid := server.PID()
	server.Kill()
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v, want it gone", pid, err)
	}
	server.Start()
	if got := testenv.DumpStream(t, server.URL(), "S"); len(got) != 1 || string(got[0].Data) != "before" {
		t.Errorf("stream = %v, want the one message", got)
	}
	server.Stop()
	server.Start()
	if got := testenv.DumpStream(t, server.URL(), "S"); len(got) != 1 {
		t.Errorf("stream = %v, want the one message", got)
	}
}

func TestFrozenNATSProcessAnswersAfterThaw(t *testing.T) {
	server := testenv.NATSProcess(t)
	nc := testenv.ConnectNATS(t, server.URL())
	server.Freeze()
	if err := nc.FlushTimeout(20 * time.Millisecond); !errors.Is(err, nats.ErrTimeout) {
		t.Errorf("ping of a frozen server: %v, want no answer", err)
	}
	server.Thaw()
	if err := nc.FlushTimeout(testenv.Deadline); err != nil {
		t.Error(err)
	}
}

func TestClusterPlacesReplicatedStreamsAndSurvivesOneServer(t *testing.T) {
	cluster := testenv.NATSCluster(t, 3)
	js := testenv.JetStream(t, cluster.URL())
	makeStream(t, js, "S", 3)
	publish(t, js, "S.a", "1", "before")
	cluster.Servers[0].Stop()
	testenv.Eventually(t, testenv.Deadline, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // without a leader nobody answers
		defer cancel()
		_, err := js.Publish(ctx, "S.a", []byte("after"), jetstream.WithMsgID("2"))
		return err
	})
	if got := testenv.MessageIDs(testenv.DumpStream(t, cluster.Servers[1].URL(), "S")); fmt.Sprint(got) != "[1 2]" {
		t.Errorf("stream = %v, want [1 2]", got)
	}
}

func TestLinesOfBothStreamsAreFoundInTurn(t *testing.T) {
	p := runEcho(t, "state a", "!state b", "state a", "exit")
	p.WaitLine("^state a$", testenv.Deadline)
	p.WaitExit(3, testenv.Deadline)
	if got, want := p.Stdout(), "state a\nstate a\n"; got != want {
		t.Errorf("stdout = %q, want %q", got, want)
	}
	if got, want := p.Stderr(), "!state b\n"; got != want {
		t.Errorf("stderr = %q, want %q", got, want)
	}
	if got := len(p.Lines()); got != 3 {
		t.Errorf("%d lines, want 3", got)
	}
}

func TestSameLineIsNotFoundTwice(t *testing.T) {
	p := runEcho(t, "once", "other", "wait")
	p.WaitLine("once", testenv.Deadline)
	fails := recordFailure(t, func(tb testing.TB) {
		tb.Helper()
		watched := testenv.RunCommand(tb, testenv.Command{Path: os.Args[0], Args: []string{"once"}, Env: []string{echoEnv + "=1"}})
		watched.WaitLine("once", testenv.Deadline)
		watched.WaitLine("once", testenv.Deadline)
	})
	if !strings.Contains(fails, "ended (exit 0) without a line") {
		t.Errorf("failure = %q", fails)
	}
	p.WaitLine("other", testenv.Deadline)
}

func TestProgramIsKilledWithItsTest(t *testing.T) {
	var pid int
	t.Run("inner", func(t *testing.T) {
		p := runEcho(t, "up", "wait")
		p.WaitLine("up", testenv.Deadline)
		pid = p.PID()
	})
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v, want it gone", pid, err)
	}
}

func TestEventuallyFailsWithTheLastError(t *testing.T) {
	tries := 0
	testenv.Eventually(t, testenv.Deadline, func() error {
		if tries++; tries < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	fails := recordFailure(t, func(tb testing.TB) {
		tb.Helper()
		testenv.Eventually(tb, 1, func() error { return errors.New("the reason") })
	})
	if !strings.Contains(fails, "the reason") {
		t.Errorf("failure = %q, want the reason", fails)
	}
}

// recorder is a testing.TB that remembers a failure instead of failing.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	panic(r)
}

func recordFailure(t *testing.T, body func(tb testing.TB)) (failure string) {
	t.Helper()
	r := &recorder{TB: t}
	defer func() {
		if got := recover(); got != nil && got != any(r) {
			panic(got)
		}
		failure = r.failure
	}()
	body(r)
	return ""
}
