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
	coming  []happening // a heap
	numbers uint64
	earlier chan struct{} // an event comes before all others
	ended   chan struct{} // closed when nothing happens any more
	failure error
	failed  chan struct{} // closed with the first failure
	lines   []string      // the newest of what happened
	note    func(string)  // nil, or called with each line
}

const linesKept = 400

func newWorld(seed uint64) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 0x0b0c)), begun: time.Now(), failed: make(chan struct{}),
		earlier: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	w.turn()
	return w
}

// happening is something that is to happen, and when.
type happening struct {
	at     time.Time
	number uint64
	f      func()
}

// before tells whether a happening comes before another.
func (h happening) before(o happening) bool {
	return h.at.Before(o.at) || h.at.Equal(o.at) && h.number < o.number
}

// plan puts a happening into the heap of those that are to come.
func (w *world) plan(h happening) {
	w.coming = append(w.coming, h)
	i := len(w.coming) - 1
	for ; i > 0 && h.before(w.coming[(i-1)/2]); i = (i - 1) / 2 {
		w.coming[i] = w.coming[(i-1)/2]
	}
	w.coming[i] = h
}

// next takes the first of those that are to come out.
func (w *world) next() happening {
	first, h := w.coming[0], w.coming[len(w.coming)-1]
	w.coming[len(w.coming)-1] = happening{}
	w.coming = w.coming[:len(w.coming)-1]
	i, n := 0, len(w.coming)
	for 2*i+1 < n {
		child := 2*i + 1
		if child+1 < n && w.coming[child+1].before(w.coming[child]) {
			child++
		}
		if !w.coming[child].before(h) {
			break
		}
		w.coming[i], i = w.coming[child], child
	}
	if n > 0 {
		w.coming[i] = h
	}
	return first
}

// run lets happen what is due until the world ends.
func (w *world) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-w.earlier:
		case <-w.ended:
			return
		}
		w.mu.Lock()
		for now := time.Now(); len(w.coming) > 0 && !w.coming[0].at.After(now); {
			w.next().f()
		}
		if len(w.coming) > 0 {
			timer.Reset(time.Until(w.coming[0].at))
		}
		w.mu.Unlock()
	}
}

// end lets nothing happen any more.
func (w *world) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.over = true
		close(w.ended)
	}
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

// after calls f, with mu held, unless the world has ended by then; mu is to be held.
func (w *world) after(d time.Duration, f func()) {
	w.numbers++
	w.plan(happening{time.Now().Add(max(0, d)), w.numbers, f})
	if w.coming[0].number == w.numbers {
		select {
		case w.earlier <- struct{}{}:
		default:
		}
	}
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
