package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/decode/decodetest"
)

const (
	systemID         = "7100000000000000001"
	slotName         = "outbox"
	walsenderTimeout = 20 * time.Second
	firstLSN         = pglogrepl.LSN(0x1000000)
	outboxOID        = 16400
)

var outbox = decode.Relation{OID: outboxOID, Schema: "public", Name: "outbox", Columns: []decode.Column{
	{Name: "id", TypeOID: 20}, {Name: "event_id", TypeOID: 2950}, {Name: "aggregate_type", TypeOID: 25},
	{Name: "aggregate_id", TypeOID: 25}, {Name: "event_type", TypeOID: 25}, {Name: "payload", TypeOID: 3802},
}}

// event is one outbox row.
type event struct {
	id        string
	position  decode.Position
	payload   int    // bytes
	seq       uint64 // in the stream; 0 when it is not there
	aggregate int
	storedAt  time.Time
	buried    bool    // it is or was a dead letter
	letter    *letter // nil when it is none
}

// transaction is a committed transaction; without events it is one of other tables.
type transaction struct {
	commitLSN, endLSN pglogrepl.LSN
	at                time.Time
	events            []*event
}

// postgres is a primary with its slot. What a promotion makes of it is the same value:
// clients reach whoever is the primary.
type postgres struct {
	w       *world
	version int

	timeline   uint32
	history    string
	switchLSN  pglogrepl.LSN // where the timeline began
	wal        []*transaction
	walEndLSN  pglogrepl.LSN
	up         bool
	stopping   bool // a clean stop waits for the walsenders
	pids       uint32
	conns      map[*pgConn]bool
	opened     int
	rows       map[string]*event // all that were ever committed
	made       int
	promotions int

	confirmedLSN pglogrepl.LSN // of the slot
	// stoodAt are all places where the slot has stood.
	stoodAt  []pglogrepl.LSN
	savedLSN pglogrepl.LSN // of the slot, as it is on disk
	holder   *walsender
	settled  int // transactions of wal that the slot has passed

	letters     []*letter
	lettersMade int64

	onConfirm func(passed []*transaction)
	onLetter  func(*letter)
}

func newPostgres(w *world, version int) *postgres {
	return &postgres{
		w: w, version: version, timeline: 1, walEndLSN: firstLSN, confirmedLSN: firstLSN, savedLSN: firstLSN, up: true,
		conns: map[*pgConn]bool{}, rows: map[string]*event{}, onConfirm: func([]*transaction) {}, onLetter: func(*letter) {},
	}
}

// commit commits a transaction with so many events; payload draws their sizes.
func (pg *postgres) commit(events int, payload func() int) {
	if !pg.up || pg.stopping {
		return
	}
	made := make([]*event, events)
	for i := range made {
		pg.made++
		made[i] = &event{
			id:      fmt.Sprintf("%08x-0000-4000-8000-%012x", pg.made, pg.made),
			payload: payload(), aggregate: pg.w.rng.IntN(8),
		}
		pg.rows[made[i].id] = made[i]
	}
	pg.write(made)
}

// write puts a transaction into the WAL.
func (pg *postgres) write(events []*event) *transaction {
	t := &transaction{at: time.Now(), commitLSN: pg.walEndLSN + pglogrepl.LSN(40+pg.w.rng.IntN(4000)), events: events}
	t.endLSN = t.commitLSN + pglogrepl.LSN(48+8*pg.w.rng.IntN(4))
	for i, e := range events {
		e.position = decode.Position{Timeline: pg.timeline, CommitLSN: t.commitLSN, Ordinal: uint64(i)}
	}
	pg.wal = append(pg.wal, t)
	pg.walEndLSN = t.endLSN
	if pg.holder != nil {
		pg.holder.work()
	}
	return t
}

// messages are the pgoutput messages of a transaction.
func (t *transaction) messages(withRelation bool) [][]byte {
	out := [][]byte{decodetest.Begin(t.commitLSN, t.at, 1)}
	for i, e := range t.events {
		if i == 0 && withRelation {
			out = append(out, decodetest.Relation(outbox))
		}
		number := e.position.CommitLSN
		out = append(out, decodetest.Insert(outboxOID, fmt.Append(nil, uint64(number)), []byte(e.id), []byte("order"),
			fmt.Append(nil, e.aggregate), []byte("placed"), []byte(`{"n":"`+strings.Repeat("x", e.payload)+`"}`)))
	}
	return append(out, decodetest.Commit(t.commitLSN, t.endLSN, t.at))
}

// confirm moves the slot.
func (pg *postgres) confirm(lsn pglogrepl.LSN) {
	if lsn <= pg.confirmedLSN {
		return
	}
	pg.confirmedLSN = lsn
	pg.stoodAt = append(pg.stoodAt, lsn)
	first := pg.settled
	for pg.settled < len(pg.wal) && pg.wal[pg.settled].commitLSN < lsn {
		pg.settled++
	}
	pg.onConfirm(pg.wal[first:pg.settled])
}

// place finds out which transactions the slot has passed, after its position went back.
func (pg *postgres) place() {
	pg.settled = 0
	for pg.settled < len(pg.wal) && pg.wal[pg.settled].commitLSN < pg.confirmedLSN {
		pg.settled++
	}
}

// checkpoint saves the slot.
func (pg *postgres) checkpoint() { pg.savedLSN = pg.confirmedLSN }

// cutAll breaks all connections.
func (pg *postgres) cutAll() {
	for _, c := range pg.connections() {
		c.snap()
	}
	pg.release()
}

// release ends the walsender.
func (pg *postgres) release() {
	if h := pg.holder; h != nil {
		pg.holder = nil
		h.ended = true
	}
}

// restart stops the server, cleanly or at once, and starts it again. Until 16 the slot
// is as it was saved last, also after a clean stop.
func (pg *postgres) restart(clean bool, downFor time.Duration) {
	if !pg.up || pg.stopping {
		return
	}
	if !clean {
		pg.w.tracef("postgres: stops at once, back in %s", downFor)
		pg.stopped(false, downFor)
		return
	}
	pg.w.tracef("postgres: stops when its walsender has caught up, back %s later", downFor)
	pg.stopping = true
	for _, c := range pg.connections() { // walsenders alone are waited for
		if c.sender == nil {
			c.end(sqlError("57P01", "terminating connection due to administrator command"))
		}
	}
	pg.farewell(downFor)
}

// farewell asks the walsender's client again and again until it has confirmed all, or
// is gone.
func (pg *postgres) farewell(downFor time.Duration) {
	if pg.holder == nil || pg.confirmedLSN >= pg.walEndLSN {
		pg.stopped(true, downFor)
		return
	}
	pg.holder.keepalive(true)
	pg.w.after(pg.w.between(5*time.Millisecond, 50*time.Millisecond), func() { pg.farewell(downFor) })
}

func (pg *postgres) stopped(clean bool, downFor time.Duration) {
	pg.up, pg.stopping = false, false
	pg.cutAll()
	if !clean || pg.version < 17 {
		pg.confirmedLSN = pg.savedLSN
		pg.place()
	}
	pg.w.after(downFor, func() { pg.up = true })
}

// copiedLSN is where the copy of the slot stands on a standby that has no more than a part
// of the WAL: at the last place where the slot has stood that this part holds.
func (pg *postgres) copiedLSN(walEndLSN pglogrepl.LSN) pglogrepl.LSN {
	copied := firstLSN
	for _, lsn := range pg.stoodAt {
		if lsn <= walEndLSN {
			copied = max(copied, lsn)
		}
	}
	return copied
}

// promote makes a standby the primary that lacks the last transactions; its copy of the
// slot is behind as well.
func (pg *postgres) promote(lost int, downFor time.Duration) {
	if !pg.up || pg.stopping {
		return
	}
	ofTimeline := 0 // a standby that follows this timeline has all before it
	for _, t := range pg.wal {
		if t.commitLSN >= pg.switchLSN {
			ofTimeline++
		}
	}
	lost = min(lost, ofTimeline)
	pg.cutAll()
	pg.up = false
	pg.promotions++
	kept := pg.wal[:len(pg.wal)-lost]
	switchLSN := max(pg.switchLSN, firstLSN)
	if len(kept) > 0 {
		switchLSN = max(switchLSN, kept[len(kept)-1].endLSN)
	}
	pg.switchLSN = switchLSN
	copied := pg.savedLSN
	if !pg.w.chance(3) { // it was copied since it was saved
		copied = pg.confirmedLSN
	}
	copied = pg.copiedLSN(min(copied, switchLSN))
	pg.w.tracef("postgres: a standby is promoted at %s, %d transactions are gone, slot at %s instead of %s; back in %s",
		switchLSN, lost, copied, pg.confirmedLSN, downFor)
	pg.history += fmt.Sprintf("%d\t%s\tno recovery target specified\n\n", pg.timeline, switchLSN)
	pg.wal, pg.walEndLSN = append([]*transaction(nil), kept...), switchLSN
	pg.timeline++
	pg.confirmedLSN = copied
	pg.savedLSN, pg.stoodAt = pg.confirmedLSN, []pglogrepl.LSN{pg.confirmedLSN}
	pg.letters = slices.DeleteFunc(pg.letters, func(l *letter) bool {
		if l.commitLSN >= switchLSN {
			l.event.letter = nil
		}
		return l.commitLSN >= switchLSN
	})
	pg.place()
	pg.onConfirm(pg.wal[:pg.settled]) // also by what the standby has
	pg.w.after(downFor, func() { pg.up = true })
}
