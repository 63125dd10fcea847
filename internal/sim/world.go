package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// world is the clock, the randomness and the lock of one run. All that the simulated
// servers do happens with mu held, in functions that do not block.
type world struct {
	mu      sync.Mutex
	rng     *rand.Rand
	begun   time.Time
	over    bool
	failure error
	failed  chan struct{} // closed with the first failure
	lines   []string      // the newest of what happened
	note    func(string)  // nil, or called with each line
}

const linesKept = 400

func newWorld(seed uint64) *world {
	return &world{rng: rand.New(rand.NewPCG(seed, 0x0b0c)), begun: time.Now(), failed: make(chan struct{})}
}

// tracef notes what happens, for whoever looks into a failure.
func (w *world) tracef(format string, args ...any) {
	line := fmt.Sprintf("%12s ", time.Since(w.begun).Round(time.Microsecond)) + fmt.Sprintf(format, args...)
	if w.note != nil {
		w.note(line)
	}
	if len(w.lines) >= 2*linesKept {
		w.lines = slices.Delete(w.lines, 0, linesKept)
	}
	w.lines = append(w.lines, line)
}

// detailf notes a detail, when somebody listens.
func (w *world) detailf(format string, args ...any) {
	if w.note != nil {
		w.tracef(format, args...)
	}
}

// failf notes the first broken promise.
func (w *world) failf(format string, args ...any) {
	if w.failure != nil {
		return
	}
	w.failure = fmt.Errorf(format, args...)
	w.tracef("FAILED: %s", w.failure)
	close(w.failed)
}

// after calls f, with mu held, unless the run is over by then.
func (w *world) after(d time.Duration, f func()) {
	time.AfterFunc(d, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.over {
			f()
		}
	})
}

// between draws a duration.
func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rng.Int64N(int64(most-least)+1))
}

// chance draws whether something happens that does so once in n times.
func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

// random is what the forwarders draw from.
func (w *world) random() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rng.Float64()
}

// lane is one direction of a connection: what is sent arrives in order.
type lane struct {
	w            *world
	items        []laneItem
	lastAt       time.Time
	stalledUntil time.Time // nothing arrives before; it does later
	broken       bool      // nothing more is taken
	armed        bool
}

type laneItem struct {
	at     time.Time
	arrive func()
}

// send lets something arrive after a latency.
func (l *lane) send(latency time.Duration, arrive func()) {
	if l.broken {
		return
	}
	at := time.Now().Add(latency)
	if !at.After(l.lastAt) {
		at = l.lastAt.Add(1)
	}
	l.lastAt = at
	l.items = append(l.items, laneItem{at, arrive})
	l.arm()
}

func (l *lane) arm() {
	if l.armed || len(l.items) == 0 {
		return
	}
	at := l.items[0].at
	if at.Before(l.stalledUntil) {
		at = l.stalledUntil
	}
	l.armed = true
	l.w.after(time.Until(at), func() {
		l.armed = false
		for now := time.Now(); len(l.items) > 0 && !l.items[0].at.After(now) && !now.Before(l.stalledUntil); {
			it := l.items[0]
			l.items = l.items[1:]
			it.arrive()
		}
		l.arm()
	})
}

// snap breaks the lane: of what is on its way a random first part still arrives.
func (l *lane) snap() {
	if l.broken {
		return
	}
	l.broken = true
	l.stalledUntil = time.Time{}
	l.items = l.items[:l.w.rng.IntN(len(l.items)+1)]
}

// stall lets nothing arrive for a while.
func (l *lane) stall(d time.Duration) {
	if until := time.Now().Add(d); until.After(l.stalledUntil) {
		l.stalledUntil = until
	}
}
