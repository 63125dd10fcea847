package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const (
	rowsDefault = 200_000
	runsDefault = 3
	drainMax    = 5 * time.Minute
)

func TestForwarderAndBareLoopDrainTheSameBacklog(t *testing.T) {
	e := newEnvironment(t, 2000)
	b := e.newBacklog(t, 10)
	b.contest(t, b.databaseURL, 1)
}

// BenchmarkBacklog drains a backlog of BENCH_ROWS rows BENCH_RUNS times with each program
// in turn and prints the figures. Run it once: -benchtime 1x.
func BenchmarkBacklog(b *testing.B) {
	rows, runs := setting(b, "BENCH_ROWS", rowsDefault), setting(b, "BENCH_RUNS", runsDefault)
	e := newEnvironment(b, rows)
	for _, perTransaction := range []int{10, 1} {
		b.Run(fmt.Sprintf("rows-per-transaction=%d", perTransaction), func(b *testing.B) {
			log := e.newBacklog(b, perTransaction)
			for _, way := range []struct{ name, databaseURL string }{{"TCP", log.databaseURL}, {"unix", log.socketURL}} {
				b.Run("postgres="+way.name, func(b *testing.B) {
					for b.Loop() {
						title := fmt.Sprintf("%d events, %d a transaction, PostgreSQL over %s", rows, perTransaction, way.name)
						report(b, title, log.contest(b, way.databaseURL, runs), log.sample)
					}
				})
			}
		})
	}
}

func setting(tb testing.TB, name string, def int) int {
	tb.Helper()
	text := os.Getenv(name)
	if text == "" {
		return def
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		tb.Fatalf("%s=%q is not a positive number", name, text)
	}
	return n
}

func report(b *testing.B, title string, contests []contest, s *sample) {
	b.Helper()
	title += fmt.Sprintf("; body of %d bytes, %d headers of %d bytes", s.BodySize, len(s.Header), s.headerSize)
	fmt.Printf("\n%s\n%s", title, table(contests))
	for _, c := range contests {
		median, unit := c.median(), strings.ReplaceAll(c.name, " ", "-")
		b.ReportMetric(median.eventsPerSecond, unit+"-events/s")
		b.ReportMetric(median.cpu, unit+"-us/event")
	}
	b.ReportMetric(0, "ns/op") // says nothing here
}

// environment is what all runs share.
type environment struct {
	tb       testing.TB
	rows     int
	cluster  *testenv.Cluster
	nats     *testenv.NATSServer
	js       jetstream.JetStream
	bareloop string
}

func newEnvironment(tb testing.TB, rows int) *environment {
	tb.Helper()
	e := &environment{tb: tb, rows: rows, cluster: testenv.Postgres(tb), nats: testenv.NATSProcess(tb)}
	e.js = testenv.JetStream(tb, e.nats.URL())
	e.bareloop = filepath.Join(tb.TempDir(), "bareloop")
	build := exec.CommandContext(testenv.Context(tb, 10*testenv.Deadline), "go", "build", "-o", e.bareloop, "./bareloop")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build bareloop: %v\n%s", err, out)
	}
	return e
}

// backlog is an outbox whose rows wait behind a slot that nobody reads; each run reads a
// copy of that slot.
type backlog struct {
	*environment
	databaseURL string
	socketURL   string
	slot        string
	sample      *sample // what the forwarder publishes; known after its first run
	samplePath  string
}

func (e *environment) newBacklog(tb testing.TB, perTransaction int) *backlog {
	tb.Helper()
	databaseURL := e.cluster.NewDatabase(tb)
	b := &backlog{
		environment: e, databaseURL: databaseURL, slot: testenv.UniqueName("backlog"),
		socketURL:  e.cluster.SocketURL(testenv.DatabaseName(tb, databaseURL)),
		samplePath: filepath.Join(tb.TempDir(), "sample.json"),
	}
	setup := testenv.RunCommand(tb, testenv.Command{Path: testenv.Binary(tb), Args: []string{
		"setup", "--database-url", databaseURL, "--nats-url", e.nats.URL(), "--slot", b.slot, "--no-stream",
	}})
	setup.WaitExit(0, testenv.Deadline)
	conn := testenv.Connect(tb, databaseURL)
	insert := fmt.Sprintf(`DO $$ BEGIN FOR tx IN 1..%[1]d LOOP
		INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
		SELECT 'order', 'order-' || tx %% 1000, tx / 1000 * %[2]d + i, 'placed', jsonb_build_object('n', tx, 'customer', 'customer-' || tx %% 77,
			'currency', 'EUR', 'total', 1234.56, 'note', repeat('benchmark ', 20))
		FROM generate_series(1, %[2]d) i; COMMIT; END LOOP; END $$`, e.rows/perTransaction, perTransaction)
	if _, err := conn.Exec(testenv.Context(tb, drainMax), insert); err != nil {
		tb.Fatal(err)
	}
	return b
}

// contest lets both programs drain the backlog in turn.
func (b *backlog) contest(tb testing.TB, databaseURL string, runs int) []contest {
	tb.Helper()
	forwarder, bare := contest{name: "forwarder"}, contest{name: "bare loop"}
	for range runs {
		forwarder.runs = append(forwarder.runs, b.drain(tb, b.forwarder(tb, databaseURL)))
		bare.runs = append(bare.runs, b.drain(tb, b.bareLoop(tb, databaseURL)))
	}
	return []contest{forwarder, bare}
}

// program is how to run something that drains a slot into a stream.
type program struct {
	path string
	args func(slot, stream string) []string
	// stop ends the program after its figures are taken.
	stop func(*testenv.Program)
	// look, if set, is given the stream before it is deleted.
	look func(jetstream.Stream)
}

func (b *backlog) forwarder(tb testing.TB, databaseURL string) program {
	tb.Helper()
	return program{
		path: testenv.Binary(tb),
		args: func(slot, stream string) []string {
			return []string{
				"start", "--database-url", databaseURL, "--nats-url", b.nats.URL(), "--http", "off",
				"--slot", slot, "--publication", b.slot, "--stream", stream, "--subject", stream + ".{aggregate_type}.{event_type}",
			}
		},
		stop: func(p *testenv.Program) {
			p.Signal(syscall.SIGTERM)
			p.WaitExit(0, testenv.Deadline)
		},
		look: func(s jetstream.Stream) {
			if b.sample == nil {
				b.takeSample(tb, s)
			}
		},
	}
}

func (b *backlog) bareLoop(tb testing.TB, databaseURL string) program {
	tb.Helper()
	return program{
		path: b.bareloop,
		args: func(slot, stream string) []string {
			b.sample.Subject = stream + b.sample.Subject[strings.IndexByte(b.sample.Subject, '.'):]
			b.writeSample(tb)
			return []string{
				"--database-url", databaseURL, "--nats-url", b.nats.URL(), "--slot", slot, "--publication", b.slot,
				"--sample", b.samplePath,
			}
		},
		stop: func(p *testenv.Program) { p.Kill() },
	}
}

// drain runs a program on a fresh copy of the slot until a fresh stream holds every row.
func (b *backlog) drain(tb testing.TB, p program) figures {
	tb.Helper()
	slot, streamName := testenv.UniqueName("run"), testenv.UniqueName("RUN")
	copySlot := fmt.Sprintf("SELECT pg_copy_logical_replication_slot('%s', '%s')", b.slot, slot)
	testenv.Exec(tb, b.databaseURL, copySlot, "CHECKPOINT")
	ctx := testenv.Context(tb, drainMax)
	stream, err := b.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: streamName, Subjects: []string{streamName + ".>"}, Storage: jetstream.FileStorage, AllowBatchPublish: true,
	})
	if err != nil {
		tb.Fatal(err)
	}
	natsBefore := cpuTime(tb, b.nats.PID())
	process := testenv.Run(tb, p.path, p.args(slot, streamName)...)
	walsender := b.walsender(tb, slot)
	state := b.waitDrained(tb, stream, process)

	events := float64(b.rows)
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / events }
	f := figures{
		eventsPerSecond: events / state.LastTime.Sub(state.FirstTime).Seconds(),
		cpu:             each(cpuTime(tb, process.PID())),
		peakMiB:         float64(peakMemory(tb, process.PID())) / (1 << 20),
		walsenderCPU:    each(cpuTime(tb, walsender)),
		natsCPU:         each(cpuTime(tb, b.nats.PID()) - natsBefore),
	}
	p.stop(process)
	if p.look != nil {
		p.look(stream)
	}
	if err := b.js.DeleteStream(ctx, streamName); err != nil {
		tb.Fatal(err)
	}
	b.dropSlot(tb, slot)
	return f
}

// walsender waits until the slot is read and returns the process id of its walsender.
func (b *backlog) walsender(tb testing.TB, slot string) int {
	tb.Helper()
	var pid int
	query := "SELECT active_pid FROM pg_replication_slots WHERE active_pid IS NOT NULL AND slot_name = '" + slot + "'"
	testenv.Eventually(tb, testenv.Deadline, func() error {
		values, err := testenv.TryQuery(tb.Context(), b.databaseURL, query)
		if err != nil {
			return err
		}
		if len(values) == 0 {
			return fmt.Errorf("nobody reads slot %s", slot)
		}
		pid, err = strconv.Atoi(values[0])
		return err
	})
	return pid
}

// waitDrained waits until the stream holds each row once.
func (b *backlog) waitDrained(tb testing.TB, stream jetstream.Stream, process *testenv.Program) jetstream.StreamState {
	tb.Helper()
	var state jetstream.StreamState
	testenv.Eventually(tb, drainMax, func() error {
		ctx, cancel := context.WithTimeout(tb.Context(), testenv.Deadline)
		defer cancel()
		info, err := stream.Info(ctx)
		if err != nil {
			return err
		}
		state = info.State
		select {
		case <-process.Done():
			tb.Fatalf("the program ended; the stream holds %d of %d events", state.Msgs, b.rows)
		default:
		}
		if int(state.Msgs) < b.rows {
			return fmt.Errorf("the stream holds %d of %d events", state.Msgs, b.rows)
		}
		return nil
	})
	if int(state.Msgs) != b.rows || int(state.LastSeq) != b.rows {
		tb.Fatalf("the stream holds %d events, the last one %d, want %d", state.Msgs, state.LastSeq, b.rows)
	}
	return state
}

func (b *backlog) dropSlot(tb testing.TB, slot string) {
	tb.Helper()
	query := "SELECT pg_drop_replication_slot(slot_name)::text FROM pg_replication_slots WHERE active_pid IS NULL AND slot_name = '" + slot + "'"
	testenv.Eventually(tb, testenv.Deadline, func() error {
		values, err := testenv.TryQuery(tb.Context(), b.databaseURL, query)
		if err == nil && len(values) == 0 {
			err = fmt.Errorf("slot %s is in use", slot)
		}
		return err
	})
}

// sample is what the bare loop publishes: the shape of the forwarder's messages.
type sample struct {
	Subject  string      `json:"subject"`
	Header   nats.Header `json:"header"`
	BodySize int         `json:"body_size"`

	headerSize int // bytes, the message id included
}

// takeSample takes the message in the middle of a stream that the forwarder filled.
func (b *backlog) takeSample(tb testing.TB, stream jetstream.Stream) {
	tb.Helper()
	msg, err := stream.GetMsg(testenv.Context(tb, testenv.Deadline), uint64(b.rows/2))
	if err != nil {
		tb.Fatal(err)
	}
	s := &sample{Subject: msg.Subject, Header: nats.Header{}, BodySize: len(msg.Data)}
	for name, values := range msg.Header {
		s.headerSize += len(name) + len(": \r\n") + len(values[0])
		// The server's own headers keep their size and lose their meaning: the bare loop
		// expects nothing of the stream. It sets the message id itself.
		if rest, ok := strings.CutPrefix(name, "Nats-"); ok && name != nats.MsgIdHdr {
			name = "Bare-" + rest
		}
		s.Header[name] = values
	}
	b.sample = s
}

func (b *backlog) writeSample(tb testing.TB) {
	tb.Helper()
	text, err := json.Marshal(b.sample)
	if err == nil {
		err = os.WriteFile(b.samplePath, text, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
}
