package checkpoint

import (
	"fmt"
	"sort"

	"github.com/jackc/pglogrepl"
)

// Tracker follows one slot from a start position on. It is told, in the order of
// the slot, what was received, and, in any order, what was settled.
//
// Calls that break the order of the protocol (a commit without a begin) are
// broken invariants of the caller and panic.
type Tracker struct {
	confirmableLSN pglogrepl.LSN
	// waiting holds the transactions that ended and are not confirmable yet,
	// oldest first. It is bounded by the caller's bound on events in flight, plus
	// empty transactions, which settle as soon as all before them have. The first
	// done of them are confirmable already; they are dropped in bulk.
	waiting []transaction
	done    int
	open    bool
	// openStoredLSN is the storedLSN of the open transaction so far.
	openStoredLSN pglogrepl.LSN
	// settledLSN is the end of the settled prefix. It is confirmable unless it lies before
	// storedLSN: a slot that stood between an event and the commit of what stands for the
	// event would, on a standby that has the WAL up to there, have neither.
	settledLSN pglogrepl.LSN
	storedLSN  pglogrepl.LSN

	receivedEvents uint64 // number of the newest event
	settledEvents  uint64 // all events up to this number are settled
	settledAhead   map[uint64]struct{}
}

// transaction is a committed transaction that waits for its events.
type transaction struct {
	lastEvent  uint64        // number of the newest event received when it ended
	confirmLSN pglogrepl.LSN // its end LSN, or a later WAL end that came right behind it
	storedLSN  pglogrepl.LSN // what stands for its events was committed before it; 0 for nothing
}

// New returns a tracker that starts at the slot's own confirmed_flush_lsn.
func New(confirmedLSN pglogrepl.LSN) *Tracker {
	return &Tracker{confirmableLSN: confirmedLSN, settledLSN: confirmedLSN, settledAhead: make(map[uint64]struct{})}
}

// Begin opens a transaction.
func (t *Tracker) Begin() {
	if t.open {
		panic("checkpoint: begin inside an open transaction")
	}
	t.open = true
}

// Event adds an event to the open transaction and returns its number, which
// counts from 1 and is what Settle takes.
func (t *Tracker) Event() uint64 {
	if !t.open {
		panic("checkpoint: event outside of a transaction")
	}
	t.receivedEvents++
	return t.receivedEvents
}

// Commit closes the open transaction. commitEndLSN is the end of its commit
// record: confirming the commit LSN itself would send the transaction again.
func (t *Tracker) Commit(commitEndLSN pglogrepl.LSN) {
	if !t.open {
		panic("checkpoint: commit outside of a transaction")
	}
	t.open = false
	t.waiting = append(t.waiting, transaction{lastEvent: t.receivedEvents, confirmLSN: commitEndLSN, storedLSN: t.openStoredLSN})
	t.openStoredLSN = 0
	t.advance()
}

// Keepalive tells that the server has decoded and handed over all that lies below
// walEndLSN. Inside an open transaction it proves nothing and is ignored.
func (t *Tracker) Keepalive(walEndLSN pglogrepl.LSN) {
	if t.open {
		return
	}
	if n := len(t.waiting); n > t.done {
		t.waiting[n-1].confirmLSN = max(t.waiting[n-1].confirmLSN, walEndLSN)
		return
	}
	t.settled(transaction{confirmLSN: walEndLSN})
}

// Settle says that one event needs nothing more. Settling an event twice is harmless.
func (t *Tracker) Settle(event uint64) {
	if event == 0 || event > t.receivedEvents {
		panic(fmt.Sprintf("checkpoint: settle event %d of %d received", event, t.receivedEvents))
	}
	switch {
	case event <= t.settledEvents:
		return
	case event > t.settledEvents+1:
		t.settledAhead[event] = struct{}{}
		return
	}
	t.settledEvents = event
	for len(t.settledAhead) > 0 {
		if _, ok := t.settledAhead[t.settledEvents+1]; !ok {
			break
		}
		t.settledEvents++
		delete(t.settledAhead, t.settledEvents)
	}
	t.advance()
}

// SettleStored says that something else was stored in an event's place, in the server's
// own tables, by a commit before storedLSN. The event is settled, but no position between
// the two is confirmable: a standby that takes over the slot at its position then has what
// was stored.
func (t *Tracker) SettleStored(event uint64, storedLSN pglogrepl.LSN) {
	if event <= t.settledEvents {
		return
	}
	waiting := t.waiting[t.done:]
	i := sort.Search(len(waiting), func(i int) bool { return waiting[i].lastEvent >= event })
	if i < len(waiting) {
		waiting[i].storedLSN = max(waiting[i].storedLSN, storedLSN)
	} else if t.open {
		t.openStoredLSN = max(t.openStoredLSN, storedLSN)
	}
	t.Settle(event)
}

// ConfirmableLSN returns the position that PostgreSQL may be told. It never goes back.
func (t *Tracker) ConfirmableLSN() pglogrepl.LSN { return t.confirmableLSN }

// InTransaction tells whether a transaction has begun and not ended.
func (t *Tracker) InTransaction() bool { return t.open }

// Unsettled returns how many events were received and are not settled.
func (t *Tracker) Unsettled() uint64 {
	return t.receivedEvents - t.settledEvents - uint64(len(t.settledAhead))
}

// Idle tells whether nothing is open and nothing is in flight.
func (t *Tracker) Idle() bool {
	return !t.open && len(t.waiting) == t.done && t.settledLSN >= t.storedLSN
}

func (t *Tracker) advance() {
	for t.done < len(t.waiting) && t.waiting[t.done].lastEvent <= t.settledEvents {
		t.settled(t.waiting[t.done])
		t.done++
	}
	switch {
	case t.done == len(t.waiting):
		t.waiting, t.done = t.waiting[:0], 0
	case t.done > len(t.waiting)/2: // each transaction is moved once at most on average
		rest := copy(t.waiting, t.waiting[t.done:])
		t.waiting, t.done = t.waiting[:rest], 0
	}
}

// settled adds a transaction to the settled prefix.
func (t *Tracker) settled(tx transaction) {
	t.settledLSN = max(t.settledLSN, tx.confirmLSN)
	t.storedLSN = max(t.storedLSN, tx.storedLSN)
	if t.settledLSN >= t.storedLSN {
		t.confirmableLSN = max(t.confirmableLSN, t.settledLSN)
	}
}
