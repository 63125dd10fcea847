package audit

import (
	"cmp"
	"math"
	"slices"
)

// oldestMax is how many of the oldest messages are looked at.
const oldestMax = 10_000

// oldest are the oldest messages that the stream still holds, and where their rows
// stand in the table.
type oldest struct {
	from   uint64 // messages before this sequence are gone by now
	placed []placed
	below  uint64 // messages from this sequence on are not among the oldest; 0 is no bound
}

// placed is a message and the place of its row.
type placed struct{ sequence, place uint64 }

// newerThanAll is the place of a row that was inserted after the snapshot.
const newerThanAll = math.MaxUint64

// add takes a message, in any order.
func (o *oldest) add(sequence, place uint64) {
	if sequence < o.from || o.below > 0 && sequence >= o.below {
		return
	}
	o.placed = append(o.placed, placed{sequence, place})
	if len(o.placed) >= 2*oldestMax {
		o.cut()
	}
}

// cut keeps the oldest ones, in the order of the stream.
func (o *oldest) cut() {
	slices.SortFunc(o.placed, func(x, y placed) int { return cmp.Compare(x.sequence, y.sequence) })
	if len(o.placed) > oldestMax {
		o.below = o.placed[oldestMax].sequence
		o.placed = o.placed[:oldestMax]
	}
}

// end returns the place in the table before which rows are older than the oldest
// message that has one; false when no message has.
//
// The order of the table is that in which rows were inserted, the order of the stream
// that in which they were committed. How far the two stray from each other shows in the
// messages themselves: a row behind the oldest message's may have been committed, sent
// and dropped before it if it stands no further behind than that.
func (o *oldest) end() (uint64, bool) {
	o.cut()
	if len(o.placed) == 0 {
		return 0, false
	}
	first := o.placed[0].place
	if first == newerThanAll {
		return newerThanAll, true
	}
	highest, stray := first, uint64(0)
	for _, p := range o.placed {
		switch {
		case p.place == newerThanAll:
		case p.place < highest:
			stray = max(stray, highest-p.place)
		default:
			highest = p.place
		}
	}
	return first + 2*stray, true
}

// horizon tells which rows are too old for the stream to hold their messages.
type horizon struct {
	end        uint64 // places before it are too old
	occurredAt int64  // so are rows that occurred before it, in microseconds
}

const never = -noTime - 1

func (h horizon) before(place uint64, r row) bool {
	return place < h.end || r.occurredAt < h.occurredAt
}

// horizonOf works it out after the comparison. Without a message whose row is known the
// time at which the stream's oldest one was stored has to do.
func (v *verification) horizonOf() horizon {
	h := horizon{occurredAt: v.keptSince()}
	if v.stream.FirstSequence <= 1 || v.stream.Messages == 0 {
		return h // it has lost nothing, or all
	}
	if v.stream.FirstSequence > v.scannedSeq {
		h.end = newerThanAll // what it held when it was read is gone by now
		return h
	}
	end, known := v.first.end()
	if !known {
		end, known = v.republished.end()
	}
	switch {
	case known && (v.query.ordered || end == newerThanAll):
		h.end = end
	case !known:
		h.occurredAt = max(h.occurredAt, v.oldestAt)
	}
	return h
}
