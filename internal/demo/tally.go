package demo

import (
	"fmt"
	"sync"
)

// rememberedMax bounds how many settled event ids are remembered, to tell a second
// arrival from an event of somebody else.
const rememberedMax = 1 << 16

// Summary says what became of the orders of one run.
type Summary struct {
	// Committed orders have an event; RolledBack ones must not.
	Committed  int `json:"committed"`
	RolledBack int `json:"rolled_back"`
	// Arrived are the events of committed orders, each counted once.
	Arrived int `json:"arrived"`
	// Repeated are arrivals of an event that had arrived before.
	Repeated int `json:"repeated"`
	// Phantoms are events of orders that were rolled back.
	Phantoms int `json:"phantoms"`
	// Others are events that this run did not write, such as a visitor's own.
	Others int `json:"others"`
}

// OK reports whether each committed order's event arrived once, and nothing else did.
func (s Summary) OK() bool {
	return s.Committed == s.Arrived && s.Repeated == 0 && s.Phantoms == 0
}

// String is one line.
func (s Summary) String() string {
	return fmt.Sprintf("committed %d orders, %d events arrived", s.Committed, s.Arrived)
}

// tally counts. Its methods may be called from several goroutines: an event may arrive
// before its writer knows that it is committed.
type tally struct {
	mu      sync.Mutex
	sum     Summary
	open    map[string]*order // by event id: outcome or arrival outstanding
	arrived *recentIDs
	refused *recentIDs // of orders that were rolled back
	changed chan struct{}
}

type order struct {
	committed bool
	arrivals  int
}

func newTally() *tally {
	return &tally{
		open: map[string]*order{}, arrived: newRecentIDs(rememberedMax), refused: newRecentIDs(rememberedMax),
		changed: make(chan struct{}, 1),
	}
}

// begin notes an event whose transaction is still open.
func (t *tally) begin(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open[id] = &order{}
}

// commit notes that the transaction of an event was committed.
func (t *tally) commit(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sum.Committed++
	t.open[id].committed = true
	t.settle(id)
}

// rollBack notes that the transaction of an event was rolled back.
func (t *tally) rollBack(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sum.RolledBack++
	t.sum.Phantoms += t.open[id].arrivals
	delete(t.open, id)
	t.refused.add(id)
}

// arrive notes that an event has arrived.
func (t *tally) arrive(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.signal()
	switch o, ours := t.open[id]; {
	case ours:
		o.arrivals++
		t.settle(id)
	case t.arrived.has(id):
		t.sum.Repeated++
	case t.refused.has(id):
		t.sum.Phantoms++
	default:
		t.sum.Others++
	}
}

// settle closes the account of an event that is both committed and here; mu is held.
func (t *tally) settle(id string) {
	o := t.open[id]
	if !o.committed || o.arrivals == 0 {
		return
	}
	t.sum.Arrived++
	t.sum.Repeated += o.arrivals - 1
	delete(t.open, id)
	t.arrived.add(id)
}

// signal wakes the one that waits for arrivals.
func (t *tally) signal() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// outstanding is how many events are awaited, or still being written.
func (t *tally) outstanding() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

func (t *tally) summary() Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sum
}

// recentIDs remembers the newest ids, up to a bound.
type recentIDs struct {
	ids  map[string]struct{}
	ring []string
	next int
}

func newRecentIDs(idsMax int) *recentIDs {
	return &recentIDs{ids: map[string]struct{}{}, ring: make([]string, idsMax)}
}

func (r *recentIDs) has(id string) bool {
	_, ok := r.ids[id]
	return ok
}

func (r *recentIDs) add(id string) {
	delete(r.ids, r.ring[r.next])
	r.ids[id] = struct{}{}
	r.ring[r.next] = id
	r.next = (r.next + 1) % len(r.ring)
}
