package forwarder

import (
	"sync"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// itemKind says what the reader hands to the publisher.
type itemKind uint8

const (
	itemEvent     itemKind = iota + 1
	itemBegin              // a transaction that holds events
	itemCommit             // lsn is its end LSN
	itemKeepalive          // lsn is the WAL end that the server has handed over
	itemSession            // a new beginning: tracker and encoder are made anew
)

type item struct {
	kind    itemKind
	lsn     pglogrepl.LSN
	event   *decode.Event
	session *session
}

// session is one server and timeline that a slot is read from.
type session struct {
	systemID     string
	timelines    decode.Timelines
	confirmedLSN pglogrepl.LSN
	walEndLSN    pglogrepl.LSN // of the server when the session began
	generation   uint64
}

// queue carries items from reader to publisher in order. It bounds events and
// their bytes from the moment they are pushed until they are released after their
// acknowledgement, so that memory does not depend on the size of a transaction.
// One event is always let in, however large.
type queue struct {
	eventsMax int
	bytesMax  int64

	mu         sync.Mutex
	items      []item
	events     int // pushed and not released
	bytes      int64
	generation uint64
	// confirmableLSN comes back from the publisher: what PostgreSQL may be told of the
	// present generation. A word about an older one must not reach a newer server.
	confirmableLSN pglogrepl.LSN

	ready chan struct{} // signalled when items were pushed; capacity 1
	room  chan struct{} // signalled when events were released; capacity 1
}

func newQueue(eventsMax int, bytesMax int64) *queue {
	return &queue{
		eventsMax: eventsMax, bytesMax: bytesMax,
		ready: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

// push adds items in order as long as there is room and returns how many it took.
func (q *queue) push(items []item) int {
	q.mu.Lock()
	taken := 0
	for _, it := range items {
		switch it.kind {
		case itemEvent:
			if q.events > 0 && (q.events >= q.eventsMax || q.bytes >= q.bytesMax) {
				q.mu.Unlock()
				if taken > 0 {
					signal(q.ready)
				}
				return taken
			}
			q.events++
			q.bytes += int64(it.event.Size())
		case itemKeepalive:
			if n := len(q.items); n > 0 && q.items[n-1].kind == itemKeepalive {
				q.items[n-1].lsn = max(q.items[n-1].lsn, it.lsn)
				taken++
				continue
			}
		case itemBegin, itemCommit, itemSession:
		}
		q.items = append(q.items, it)
		taken++
	}
	q.mu.Unlock()
	if taken > 0 {
		signal(q.ready)
	}
	return taken
}

// reset drops everything and starts a new session.
func (q *queue) reset(s *session) {
	q.mu.Lock()
	q.generation++
	s.generation = q.generation
	clear(q.items)
	q.items = append(q.items[:0], item{kind: itemSession, session: s})
	q.events, q.bytes, q.confirmableLSN = 0, 0, s.confirmedLSN
	q.mu.Unlock()
	signal(q.ready)
	signal(q.room)
}

// take returns all items and gives buf's memory, which must be empty, to the queue.
func (q *queue) take(buf []item) []item {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.items
	q.items = buf[:0]
	return out
}

// stale tells whether items of a generation are of no use any more.
func (q *queue) stale(generation uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return generation != q.generation
}

// confirm sets what PostgreSQL may be told of a generation.
func (q *queue) confirm(generation uint64, confirmableLSN pglogrepl.LSN) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if generation == q.generation {
		q.confirmableLSN = confirmableLSN
	}
}

// confirmable returns what PostgreSQL may be told.
func (q *queue) confirmable() pglogrepl.LSN {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.confirmableLSN
}

// release gives back the room of events that are settled.
func (q *queue) release(generation uint64, events int, bytes int64) {
	q.mu.Lock()
	if generation == q.generation {
		q.events -= events
		q.bytes -= bytes
	}
	q.mu.Unlock()
	signal(q.room)
}

// load returns how many events are pushed and not released, and their bytes.
func (q *queue) load() (events int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.events, q.bytes
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
