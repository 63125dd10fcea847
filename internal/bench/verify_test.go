package bench

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// verifyRowsDefault is a table of which the program could hold the ids in memory, so that
// it shows if it did: 2 million times 16 bytes and what a map adds.
const verifyRowsDefault = 2_000_000

// BenchmarkVerify compares BENCH_VERIFY_ROWS rows with as many messages and prints how long
// that takes and how much memory the command has had at the most. Run it once: -benchtime 1x.
func BenchmarkVerify(b *testing.B) {
	rows := setting(b, "BENCH_VERIFY_ROWS", verifyRowsDefault)
	databaseURL, natsURL := testenv.Postgres(b).NewDatabase(b), testenv.NATS(b).URL()
	run := func(args ...string) *exec.Cmd {
		ctx := testenv.Context(b, 30*time.Minute)
		return exec.CommandContext(ctx, testenv.Binary(b), append(args, "--database-url", databaseURL, "--nats-url", natsURL)...)
	}
	must := func(cmd *exec.Cmd) {
		b.Helper()
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%s: %v\n%s", cmd, err, out)
		}
	}
	must(run("setup"))
	const portion = 100_000
	for first := 1; first <= rows; first += portion {
		testenv.Exec(b, databaseURL, fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
			SELECT 'order', i %% 10000, i, 'placed', jsonb_build_object('n', i) FROM generate_series(%d, %d) i`, first, min(rows, first+portion-1)))
	}
	forwarder := run("start", "--http", "off")
	if err := forwarder.Start(); err != nil {
		b.Fatal(err)
	}
	must(run("wait", "--timeout", "20m"))
	if err := forwarder.Process.Signal(syscall.SIGTERM); err != nil {
		b.Fatal(err)
	}
	if err := forwarder.Wait(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		began := time.Now()
		cmd := run("verify", "--json")
		memory := runWatched(b, cmd)
		took := time.Since(began)
		cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		fmt.Printf("\nverify of %d rows: %.1fs, %.1f us of CPU a row, at most %d MiB of memory\n",
			rows, took.Seconds(), float64(cpu.Microseconds())/float64(rows), memory>>20)
		b.ReportMetric(float64(rows)/took.Seconds(), "rows/s")
		b.ReportMetric(float64(memory>>20), "MiB")
	}
	b.ReportMetric(0, "ns/op") // says nothing here
}

// runWatched runs a command and returns the most memory that it was seen to have had. What the
// system says at its end would do, were it not the parent's, from before the exec.
func runWatched(tb testing.TB, cmd *exec.Cmd) (memory int64) {
	tb.Helper()
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				tb.Fatalf("%s: %v", cmd, err)
			}
			return memory
		case <-again.C:
			memory = max(memory, memoryNow(cmd.Process.Pid))
		}
	}
}

// memoryNow is like peakMemory, and 0 for a process that is gone.
func memoryNow(pid int) int64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, found := strings.Cut(string(raw), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil || !found {
		return 0
	}
	return kib << 10
}
