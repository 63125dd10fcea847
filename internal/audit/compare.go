package audit

import (
	"cmp"
	"slices"
)

// In record.a of a row, above its place in the table.
const selectedBit = uint64(1) << 63

// In record.a of a message, above its sequence. record.b of an inverted one is the
// sequence of the message that was stored before it and has a higher position.
const (
	republishedBit = uint64(1) << 63
	invertedBit    = uint64(1) << 62
	newBit         = uint64(1) << 61 // its row was inserted after the snapshot
	sequenceMask   = newBit - 1
)

// What record.a of a settled event says: why its row need not be in the stream.
const (
	deadLetter  = uint64(1) // it is one, or is held behind one
	unconfirmed = uint64(2) // the slot has yet to send it
)

// listMax is how many events of a kind are named.
const listMax = 100

// comparison compares the rows of the table with the messages of the stream.
type comparison struct {
	rows, messages, settled spill
	first, republished      oldest
	// filtered says that only some rows are selected: then only their events count.
	filtered bool
	// withoutID are selected rows whose event id is NULL or empty. They are told from
	// each other by nothing, so they are settled by number.
	withoutID        bitmap
	withoutIDSettled [3]uint64 // by what settles them

	checked    uint64
	inStream   uint64
	pending    uint64
	unknown    uint64
	absent     bitmap // selected rows that are neither stored nor settled
	withoutRow bitmap // messages whose event has no row in the snapshot, by sequence from base on
	base       uint64
	duplicates list
	inversions list
}

// found is an event that is listed by the messages that show what is wrong with it.
type found struct {
	sequences []uint64
	place     uint64 // of its row
	hasRow    bool
}

// list keeps the first events by sequence, and counts all.
type list struct {
	count uint64
	items []found
}

func (l *list) add(f found) {
	l.count++
	at, _ := slices.BinarySearchFunc(l.items, f, func(x, y found) int { return cmp.Compare(x.sequences[0], y.sequences[0]) })
	if at == listMax {
		return
	}
	l.items = slices.Insert(l.items, at, f)
	l.items = l.items[:min(len(l.items), listMax)]
}

// addRow takes a row; place counts from 0 in the order of the table.
func (c *comparison) addRow(k *keyer, id []byte, place uint64, selected bool) error {
	a := place
	if selected {
		a |= selectedBit
		c.checked++
	}
	if len(id) == 0 {
		if selected {
			c.withoutID.add(place)
		}
		return nil
	}
	return c.rows.add(record{key: k.ofRow(id), a: a})
}

// addSettled takes an event, by its id as it stands in the row, that need not be stored.
func (c *comparison) addSettled(k *keyer, id []byte, why uint64) error {
	if len(id) == 0 {
		c.withoutIDSettled[why]++
		return nil
	}
	return c.settled.add(record{key: k.ofRow(id), a: why})
}

// compare looks at all events, part by part.
func (c *comparison) compare() error {
	var rows, messages, settled []record
	for i := range partitions {
		var err error
		if rows, err = c.rows.part(i, rows); err != nil {
			return err
		}
		if messages, err = c.messages.part(i, messages); err != nil {
			return err
		}
		if settled, err = c.settled.part(i, settled); err != nil {
			return err
		}
		c.part(rows, messages, settled)
	}
	c.settleWithoutID()
	return nil
}

// part merges the records of one part, all ordered by key.
func (c *comparison) part(rows, messages, settled []record) {
	for len(rows) > 0 || len(messages) > 0 {
		var k key
		switch {
		case len(messages) == 0 || len(rows) > 0 && compareKeys(rows[0].key, messages[0].key) < 0:
			k = rows[0].key
		default:
			k = messages[0].key
		}
		for len(settled) > 0 && compareKeys(settled[0].key, k) < 0 {
			settled = settled[1:]
		}
		var r, m, s []record
		r, rows = cutKey(rows, k)
		m, messages = cutKey(messages, k)
		s, settled = cutKey(settled, k)
		c.event(r, m, s)
	}
}

// cutKey returns the records of k at the start, and the rest.
func cutKey(records []record, k key) (of, rest []record) {
	n := 0
	for n < len(records) && records[n].key == k {
		n++
	}
	return records[:n], records[n:]
}

// event judges one event id: its rows (two only where the table allows it), its
// messages in order of their sequences, and what settles it.
func (c *comparison) event(rows, messages, settled []record) {
	selected := !c.filtered
	for _, r := range rows {
		selected = selected || r.a&selectedBit != 0
	}
	if len(messages) > 0 {
		c.stored(rows, messages, selected)
		return
	}
	for _, r := range rows {
		if r.a&selectedBit == 0 {
			continue
		}
		switch place := r.a &^ selectedBit; {
		case hasReason(settled, deadLetter):
		case hasReason(settled, unconfirmed):
			c.pending++
		default:
			c.absent.add(place)
		}
	}
}

func hasReason(settled []record, why uint64) bool {
	return slices.ContainsFunc(settled, func(s record) bool { return s.a == why })
}

// stored judges an event that the stream holds.
func (c *comparison) stored(rows, messages []record, selected bool) {
	var f found
	place, placed := uint64(newerThanAll), true
	switch {
	case len(rows) > 0:
		place = rows[0].a &^ selectedBit
		f.place, f.hasRow = place, true
	case messages[0].a&newBit == 0:
		placed = false
		c.unknown++
	}
	for _, r := range rows {
		if r.a&selectedBit != 0 {
			c.inStream++
		}
	}
	var deliveries []record
	for _, m := range messages {
		old := &c.first
		if m.a&republishedBit != 0 {
			old = &c.republished
		} else {
			deliveries = append(deliveries, m)
		}
		if placed {
			old.add(m.a&sequenceMask, place)
		}
	}
	if len(rows) == 0 {
		// Nothing says that it should be there, nor when and how often.
		for _, m := range deliveries {
			c.withoutRow.add(c.fromBase(m.a & sequenceMask))
		}
		return
	}
	if !selected || len(deliveries) == 0 {
		return
	}
	if len(deliveries) > 1 {
		f.sequences = nil
		for _, m := range deliveries[:min(len(deliveries), listMax)] {
			f.sequences = append(f.sequences, m.a&sequenceMask)
		}
		c.duplicates.add(f)
	}
	// A second copy is out of order in any case: that it is there is what counts.
	if m := deliveries[0]; m.a&invertedBit != 0 {
		f.sequences = []uint64{m.b, m.a & sequenceMask}
		c.inversions.add(f)
	}
}

// fromBase is a sequence's place in withoutRow.
func (c *comparison) fromBase(sequence uint64) uint64 { return sequence - min(sequence, c.base) }

// forgetMessages takes back all that came of the messages, apart from which of them
// have no row.
func (c *comparison) forgetMessages() error {
	err := c.messages.close()
	c.messages, c.first, c.republished = spill{}, oldest{}, oldest{}
	c.inStream, c.pending, c.unknown = 0, 0, 0
	c.absent, c.duplicates, c.inversions = bitmap{}, list{}, list{}
	return err
}

// settleWithoutID settles rows without an event id by their number.
func (c *comparison) settleWithoutID() {
	dead, sent := c.withoutIDSettled[deadLetter], c.withoutIDSettled[unconfirmed]
	for place := range uint64(len(c.withoutID.words)) * 64 {
		switch {
		case !c.withoutID.has(place):
		case dead > 0:
			dead--
		case sent > 0:
			sent--
			c.pending++
		default:
			c.absent.add(place)
		}
	}
}

func (c *comparison) close() error {
	return cmp.Or(c.rows.close(), c.messages.close(), c.settled.close())
}
