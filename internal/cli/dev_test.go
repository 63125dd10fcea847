package cli_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/demo"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// devRun is a run of the built dev command in a temporary folder of its own.
type devRun struct {
	*testenv.Program
	temp string
}

func startDev(t *testing.T, args ...string) devRun {
	t.Helper()
	temp := testenv.ReachableDir(t)
	args = append([]string{"dev", "--http", "off"}, args...)
	if bin := os.Getenv(testenv.BinDirEnv); bin != "" {
		args = append(args, "--postgres-bin", bin)
	}
	return devRun{temp: temp, Program: testenv.RunCommand(t, testenv.Command{
		Path: testenv.Binary(t), Args: args, Env: []string{"TMPDIR=" + temp},
	})}
}

// processes returns the command lines of running processes that name a folder.
func processes(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(raw), dir) {
			found = append(found, strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}
	return found
}

func (r devRun) wantNothingLeft(t *testing.T) {
	t.Helper()
	if left := processes(t, r.temp); len(left) > 0 {
		t.Errorf("processes left: %q", left)
	}
	if left, err := os.ReadDir(r.temp); err != nil || len(left) > 0 {
		t.Errorf("folders left: %v, %v", left, err)
	}
}

// lastLine returns the last line of standard output.
func (r devRun) lastLine() string {
	lines := strings.Split(strings.TrimSpace(r.Stdout()), "\n")
	return lines[len(lines)-1]
}

func TestDevDeliversEachCommittedOrderOnceAndNoneThatWasRolledBack(t *testing.T) {
	r := startDev(t, "--orders", "50", "--rate", "500", "--json")
	r.WaitExit(0, 2*testenv.Deadline)
	r.wantNothingLeft(t)

	arrived, refused := map[string]int{}, map[string]bool{}
	for line := range strings.Lines(r.Stdout()) {
		var document struct {
			Event struct {
				EventID string `json:"event_id"`
				Body    struct {
					AggregateType string `json:"aggregateType"`
				} `json:"body"`
			} `json:"event"`
			RolledBack struct {
				EventID string `json:"event_id"`
			} `json:"rolled_back"`
		}
		if strings.HasPrefix(line, `{"committed"`) {
			break // the last one: rolled_back is a number in it
		}
		if err := json.Unmarshal([]byte(line), &document); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if id := document.RolledBack.EventID; id != "" {
			refused[id] = true
			continue
		}
		if document.Event.Body.AggregateType != "order" {
			t.Errorf("event without its envelope: %s", line)
		}
		arrived[document.Event.EventID]++
	}
	if len(arrived) != 50 || len(refused) != 5 {
		t.Errorf("%d events arrived, %d orders rolled back, want 50 and 5", len(arrived), len(refused))
	}
	for id, times := range arrived {
		if times != 1 || refused[id] {
			t.Errorf("event %s arrived %d times, rolled back: %v", id, times, refused[id])
		}
	}
	var sum struct {
		demo.Summary
		OK bool `json:"ok"`
	}
	if err := json.Unmarshal([]byte(r.lastLine()), &sum); err != nil {
		t.Fatal(err)
	}
	if want := (demo.Summary{Committed: 50, RolledBack: 5, Arrived: 50}); sum.Summary != want || !sum.OK {
		t.Errorf("summary = %+v, want %+v and ok", sum, want)
	}
}

func TestDevStopsEverythingOnCtrlC(t *testing.T) {
	r := startDev(t, "--rate", "100")
	r.WaitLine(`^PostgreSQL \d+ +psql 'postgres://postgres@127\.0\.0\.1:\d+/shop\?sslmode=disable'$`, testenv.Deadline)
	r.WaitLine(`^JetStream +nats --server nats://127\.0\.0\.1:\d+ stream view OUTBOX$`, testenv.Deadline)
	r.WaitLine(` outbox\.order\.placed .*"order": 5,`, testenv.Deadline)
	r.Signal(syscall.SIGINT)
	r.WaitExit(0, testenv.Deadline)
	var committed, arrived int
	if _, err := fmt.Sscanf(r.lastLine(), "committed %d orders, %d events arrived", &committed, &arrived); err != nil {
		t.Fatalf("last line %q: %v", r.lastLine(), err)
	}
	if committed < 5 || committed != arrived {
		t.Errorf("last line %q: want as many events as orders", r.lastLine())
	}
	r.wantNothingLeft(t)
}

func TestDevGoesOnWithDataThatWasKept(t *testing.T) {
	data := filepath.Join(testenv.ReachableDir(t), "kept")
	first := startDev(t, "--orders", "5", "--data", data)
	first.WaitExit(0, testenv.Deadline)
	second := startDev(t, "--orders", "5", "--data", data, "--json")
	second.WaitExit(0, testenv.Deadline)
	// Six is the next number of both the stream and the orders.
	line, _, _ := strings.Cut(second.Stdout(), "\n")
	if !strings.HasPrefix(line, `{"event":{"sequence":6,`) || !strings.Contains(line, `"order":6,`) {
		t.Errorf("first event of the second run: %s", line)
	}
	if !strings.Contains(second.lastLine(), `"others":0`) {
		t.Errorf("events of the first run came again: %s", second.lastLine())
	}
	if left := processes(t, data); len(left) > 0 {
		t.Errorf("processes left: %q", left)
	}
}

func TestKilledDevTakesItsPostgresAlong(t *testing.T) {
	r := startDev(t)
	r.WaitLine(" outbox.order.placed ", testenv.Deadline)
	if running := processes(t, r.temp); len(running) == 0 {
		t.Fatal("no PostgreSQL was found while dev runs")
	}
	r.Kill()
	testenv.Eventually(t, testenv.Deadline, func() error {
		if left := processes(t, r.temp); len(left) > 0 {
			return fmt.Errorf("still there: %q", left)
		}
		return nil
	})
}

func TestDevEndsWhenTheForwarderCannotGoOn(t *testing.T) {
	r := startDev(t, "--rate", "100")
	psql := r.WaitLine("psql '", testenv.Deadline)
	url := strings.Split(psql, "'")[1]
	r.WaitLine(" outbox.order.placed ", testenv.Deadline)
	testenv.Exec(t, url, "select pg_terminate_backend(active_pid) from pg_replication_slots",
		"alter publication outbox drop table outbox")
	r.WaitExit(3, 2*testenv.Deadline)
	if got := r.Stderr(); !strings.Contains(got, "publication") || !strings.Contains(got, "hint: ") {
		t.Errorf("standard error = %s", got)
	}
	r.wantNothingLeft(t)
}

func TestDevEndsWith3WhenAnEventArrivesTwice(t *testing.T) {
	r := startDev(t, "--rate", "100")
	server := strings.Fields(r.WaitLine("^JetStream ", testenv.Deadline))[3]
	r.WaitLine(" outbox.order.placed ", testenv.Deadline)
	js := testenv.JetStream(t, server)
	ctx := testenv.Context(t, 6*testenv.Deadline)
	stream, err := js.Stream(ctx, "OUTBOX")
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.Duplicates = 100 * time.Millisecond // so that the server lets the same id pass
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	first, err := stream.GetMsg(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	// The server may forget an id only when the two minutes of the former window are over.
	testenv.Eventually(t, 5*testenv.Deadline, func() error {
		ack, err := js.Publish(ctx, first.Subject, first.Data, jetstream.WithMsgID(first.Header.Get("Nats-Msg-Id")))
		if err == nil && ack.Duplicate {
			err = errors.New("taken for a duplicate")
		}
		return err
	})
	r.Signal(syscall.SIGTERM)
	r.WaitExit(3, testenv.Deadline)
	if got := r.Stderr(); !strings.Contains(got, "1 arrived twice") || !strings.Contains(got, "hint: ") {
		t.Errorf("standard error = %s", got)
	}
	if !strings.HasPrefix(r.lastLine(), "committed ") {
		t.Errorf("last line = %q", r.lastLine())
	}
}

func TestDevWithoutPostgresSaysHowToGetIt(t *testing.T) {
	empty := t.TempDir()
	env{}.run("dev", "--postgres-bin", empty).want(t, 3).says(t, "no PostgreSQL server on this machine", empty, "hint: give --postgres-bin")
}

func TestDevTakesNoOtherServers(t *testing.T) {
	for _, flag := range []string{"--database-url=postgres://127.0.0.1/x", "--nats-url=nats://127.0.0.1", "--columns=debezium"} {
		name, _, _ := strings.Cut(flag, "=")
		env{}.run("dev", flag).want(t, 2).says(t, "it takes no "+name, "hint: ")
	}
}
