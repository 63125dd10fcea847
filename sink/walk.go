package sink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// ConflictError says that the stream holds another event at the position of one of
// ours: it was filled from another database, such as a clone or an older copy.
type ConflictError struct {
	Position         decode.Position
	Sequence         uint64
	Stored, Expected string // event ids
}

// Error names the position and both events.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("message %d of the stream has position %s and event id %s, but in this database that position is event %s",
		e.Sequence, e.Position, e.Stored, e.Expected)
}

// walk goes through the first deliveries of ours in a stream, in step with the
// events of the slot, to tell which of these are stored. Its memory does not depend
// on how many there are.
type walk struct {
	messages messages
	stream   string
	source   string
	nextSeq  uint64 // first one not read yet
	lastSeq  uint64 // by the leader's word; nothing of ours comes behind it unseen
	buffer   []stored
	// ahead is behind how many later ones an event may be stored: on a stream without
	// batches, all that were on their way when it was refused.
	ahead int
	// chunksLeft is how many requests may be made before errReading is returned, so that
	// a long read does not hold up everything else.
	chunksLeft int

	// passed are stored events that the slot did not bring: their rows are not in
	// this server's WAL (phantoms after a failover), or not to be forwarded any more.
	passed func(stored)
}

// walkSlice is how many chunks a walk reads before it lets others have their turn.
const walkSlice = 8

// errReading says that the stream has to be read further first: ask again.
var errReading = errors.New("reading the stream")

// cursor returns the sequence of the first message that was not compared yet, or the
// highest number when there is none.
func (w *walk) cursor() uint64 {
	switch {
	case len(w.buffer) > 0:
		return w.buffer[0].seq
	case w.nextSeq <= w.lastSeq:
		return w.nextSeq
	default:
		return math.MaxUint64
	}
}

// left returns how many messages are not read yet.
func (w *walk) left() uint64 { return w.lastSeq + 1 - min(w.nextSeq, w.lastSeq+1) }

// peek returns the next first delivery of ours, or nil at the end.
func (w *walk) peek(ctx context.Context) (*stored, error) {
	if err := w.fill(ctx, 1); err != nil || len(w.buffer) == 0 {
		return nil, err
	}
	return &w.buffer[0], nil
}

// fill reads on until the buffer holds some first deliveries of ours, or all there are.
func (w *walk) fill(ctx context.Context, count int) error {
	for len(w.buffer) < count && w.nextSeq <= w.lastSeq {
		if w.chunksLeft == 0 {
			return errReading
		}
		w.chunksLeft--
		last := min(w.lastSeq, w.nextSeq+chunkSize-1)
		chunk, err := w.messages.Chunk(ctx, w.stream, w.nextSeq, last)
		if err != nil {
			return err
		}
		w.nextSeq = last + 1
		for _, m := range chunk {
			if !m.isFrom(w.source) {
				continue
			}
			s, err := m.stored()
			if err != nil {
				return err
			}
			w.buffer = append(w.buffer, s)
		}
	}
	return nil
}

// verdict says what the stream knows of an event.
type verdict struct {
	seq    uint64 // where it is stored; 0 when it is not
	behind bool   // it is not stored, but a later one is
}

// check tells whether the stream holds an event. Events must be asked for in the
// order of their positions. The error is errReading, a *ConflictError or that of a request.
func (w *walk) check(ctx context.Context, position decode.Position, eventID string) (verdict, error) {
	for {
		s, err := w.peek(ctx)
		if err != nil || s == nil {
			return verdict{}, err
		}
		switch order := s.position.Compare(position); {
		case order > 0:
			// Stored late, behind later ones, as it happens on streams without batches.
			if err := w.fill(ctx, w.ahead); err != nil {
				return verdict{}, err
			}
			for i, later := range w.buffer {
				if later.position == position && later.eventID == eventID {
					w.buffer = slices.Delete(w.buffer, i, i+1)
					return verdict{seq: later.seq}, nil
				}
			}
			return verdict{behind: true}, nil
		case order == 0 && s.eventID != eventID:
			return verdict{}, &ConflictError{Position: position, Sequence: s.seq, Stored: s.eventID, Expected: eventID}
		case order == 0:
			seq := s.seq
			w.buffer = w.buffer[1:]
			return verdict{seq: seq}, nil
		}
		if w.passed != nil {
			w.passed(*s)
		}
		w.buffer = w.buffer[1:]
	}
}
