package sim

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	seedEnv  = "OUTBOX_CDC_SIM_SEED"  // runs this one alone, and tells what happens
	countEnv = "OUTBOX_CDC_SIM_SEEDS" // how many fresh ones
	seeds    = 500
	runMax   = time.Minute // real time of one run; it takes some milliseconds
)

func TestPromisesHoldUnderRandomFaults(t *testing.T) {
	oneProcessor(t)
	if text := os.Getenv(seedEnv); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
		playSeed(t, seed, true)
		return
	}
	n := seeds
	if text := os.Getenv(countEnv); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", countEnv, err)
		}
	}
	first := rand.Uint64N(1 << 40)
	t.Logf("seeds %d to %d", first, first+uint64(n)-1)
	begun := time.Now()
	var all report
	for i := range n {
		r := playSeed(t, first+uint64(i), false)
		all.events += r.events
		all.stored += r.stored
		all.phantoms += r.phantoms
		all.took += r.took
		if r.err != nil {
			t.Fatalf("found by seed %d of this run", i+1)
		}
	}
	t.Logf("%d runs of %s together in %s: %d events, %d stored, %d phantoms", n, all.took.Round(time.Second), time.Since(begun).Round(time.Millisecond),
		all.events, all.stored, all.phantoms)
}

// oneProcessor makes a seed as repeatable as it gets.
func oneProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(1)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

func playSeed(t *testing.T, seed uint64, loud bool) report {
	t.Helper()
	var r report
	// A run whose clock stands still never ends by itself.
	alarm := time.AfterFunc(runMax, func() {
		panic(fmt.Sprintf("seed %d does not end; again: %s=%d go test ./internal/sim", seed, seedEnv, seed))
	})
	defer alarm.Stop()
	synctest.Test(t, func(*testing.T) {
		log, note := slog.New(slog.DiscardHandler), (func(string))(nil)
		if loud {
			log = slog.New(slog.NewTextHandler(os.Stdout, nil))
			note = func(line string) { fmt.Println(line) }
		}
		r = play(seed, log, note)
	})
	if r.err != nil {
		t.Errorf("%v\nseed %d; again: %s=%d go test ./internal/sim -run %s\n%s", r.err, seed, seedEnv, seed, t.Name(), strings.Join(r.lines, "\n"))
	}
	return r
}
