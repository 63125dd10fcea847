package sim

import (
	"github.com/outbox-cdc/outbox-cdc/decode"
)

// The headers that say whose message it is.
const (
	headerSource      = "Outbox-Source"
	headerPosition    = "Outbox-Position"
	headerEventID     = "Outbox-Event-Id"
	headerRepublished = "Outbox-Republished"
)

// checker holds the promises.
type checker struct {
	w      *world
	pg     *postgres
	source string
	newest decode.Position // of the newest first delivery
	first  int             // first deliveries
	holds  bool            // a dead letter holds its aggregate
	both   int             // events that are dead letters and stored
}

func watch(w *world, pg *postgres, js *jetStream, source string) *checker {
	c := &checker{w: w, pg: pg, source: source}
	js.onStore = c.stored
	pg.onConfirm = c.confirmed
	pg.onLetter = c.buried
	return c
}

// stored looks at a message that has become part of the stream.
func (c *checker) stored(s *stored) {
	if s.msg == nil {
		return
	}
	header := func(name string) string {
		value, _ := s.msg.Header(name)
		return value
	}
	if header(headerSource) != c.source || header(headerRepublished) != "" {
		return
	}
	id := header(headerEventID)
	e := c.pg.rows[id]
	if e == nil {
		c.w.failf("message %d: no row ever had event id %q", s.seq, id)
		return
	}
	if got := header(headerPosition); got != e.position.String() {
		c.w.failf("message %d: event %s has position %s, not %s", s.seq, id, got, e.position)
	}
	if e.seq != 0 && e.buried {
		c.w.tracef("message %d: event %s, whose dead letter a promotion has lost, is message %d too", s.seq, id, e.seq)
		return // see doc.go
	}
	if e.seq != 0 {
		c.w.failf("message %d: event %s at %s is stored a second time, it is message %d too", s.seq, id, e.position, e.seq)
		return
	}
	c.poisoned(s, e)
	e.seq, e.storedAt = s.seq, s.at
	c.first++
	if e.buried {
		return // its letter was lost with a promotion, and today it fits: it comes late
	}
	if e.position.Compare(c.newest) <= 0 {
		c.w.failf("message %d: event %s at %s is stored behind the one at %s", s.seq, id, e.position, c.newest)
	}
	c.newest = e.position
}

// poisoned looks whether an event may be published in spite of dead letters. What was on
// its way when a letter was made may be stored all the same.
func (c *checker) poisoned(s *stored, e *event) {
	if e.letter != nil {
		c.w.tracef("message %d: event %s is dead letter %d too", s.seq, e.id, e.letter.id)
		c.both++
		if s.sentAt.After(e.letter.at) {
			c.w.failf("message %d: event %s was published when it was dead letter %d", s.seq, e.id, e.letter.id)
		}
	}
	if !c.holds {
		return
	}
	for _, l := range c.pg.letters {
		if l.event.aggregate == e.aggregate && l.event.position.Compare(e.position) < 0 && s.sentAt.After(l.at) {
			c.w.failf("message %d: event %s at %s was published, although dead letter %d at %s holds its aggregate",
				s.seq, e.id, e.position, l.id, l.event.position)
			return
		}
	}
}

// confirmed looks at the transactions that the slot has passed.
func (c *checker) confirmed(passed []*transaction) {
	for _, t := range passed {
		for _, e := range t.events {
			if e.seq == 0 && e.letter == nil {
				c.w.failf("the slot stands at %s, but event %s at %s is neither stored nor a dead letter", c.pg.confirmedLSN, e.id, e.position)
			}
		}
	}
}

// buried looks at a new dead letter. What was in the stream when its holder got the slot
// is published, whatever would become of it today. What comes before a letter that holds its
// aggregate is settled: whoever resolves it lets those behind it go.
func (c *checker) buried(l *letter) {
	for _, t := range c.pg.wal {
		for _, e := range t.events {
			if c.holds && l.heldBehind == 0 && e.aggregate == l.event.aggregate && e.position.Compare(l.event.position) < 0 && e.seq == 0 && e.letter == nil {
				c.w.failf("event %s at %s is dead letter %d, but event %s at %s of its aggregate is neither stored nor one", l.event.id, l.event.position, l.id, e.id, e.position)
			}
		}
	}
	if l.event.seq != 0 && l.event.storedAt.Before(c.pg.holder.begunAt) {
		c.w.failf("event %s is dead letter %d, but message %d too", l.event.id, l.id, l.event.seq)
	}
	l.event.letter, l.event.buried = l, true
}

// missing returns how many events of the primary's rows are neither stored nor dead letters.
func (c *checker) missing() int {
	n := 0
	for _, t := range c.pg.wal {
		for _, e := range t.events {
			if e.seq == 0 && e.letter == nil {
				n++
			}
		}
	}
	return n
}

// settled tells whether everything is delivered and confirmed.
func (c *checker) settled() bool {
	return c.missing() == 0 && c.pg.settled == len(c.pg.wal)
}

// phantomsStored counts the events in the stream whose rows are gone.
func (c *checker) phantomsStored() int {
	rows := 0
	for _, t := range c.pg.wal {
		for _, e := range t.events {
			if e.seq != 0 {
				rows++
			}
		}
	}
	return c.first - rows
}

// atEnd checks what holds when everything is over.
func (c *checker) atEnd() {
	if n := c.missing(); n > 0 {
		c.w.failf("%d of %d events are missing in the end", n, c.pg.made)
	}
	if c.pg.settled < len(c.pg.wal) {
		c.w.failf("the slot stands at %s in the end, %d transactions are not confirmed", c.pg.confirmedLSN, len(c.pg.wal)-c.pg.settled)
	}
	if n := c.phantomsStored(); n > 0 && c.pg.promotions == 0 {
		c.w.failf("%d events are in the stream whose rows are not in the WAL", n)
	}
}
