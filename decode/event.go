package decode

import (
	"encoding/hex"
	"fmt"
	"time"
	"unsafe"
)

// Event is one row of the outbox, or one transactional logical message. It owns its
// bytes: nothing in it refers to the message that it was decoded from. Once returned
// it is not written to again, so any number of goroutines may read it.
type Event struct {
	Position Position
	// CommitTime is the server's time of the commit.
	CommitTime time.Time
	// Table is the relation as it was named when the row was written; empty for a
	// logical message. Of a partitioned outbox it may be the partition.
	Table TableName
	// Malformed is not nil when the event cannot be published as it is: the content of a
	// logical message is not the agreed JSON object, or a value did not come. The payload
	// of a malformed message is the whole content.
	Malformed error

	fields [NumFields]span
	extras []span // nil unless the mapping has extra columns
	kinds  *[NumFields]TypeKind
	buf    []byte
}

// span is a value inside the event's buffer; its length is null for SQL NULL.
type span struct{ off, len int32 }

// null is the length of a span that holds no value.
const null = -1

const (
	eventSize = int(unsafe.Sizeof(Event{}))
	spanSize  = int(unsafe.Sizeof(span{}))
)

// newEvent allocates an event and its spans, in one piece for a few extra columns.
func newEvent(extras int) *Event {
	const few = 4
	switch {
	case extras == 0:
		return &Event{}
	case extras <= few:
		e := &struct {
			Event
			extras [few]span
		}{}
		e.Event.extras = e.extras[:extras]
		return &e.Event
	default:
		return &Event{extras: make([]span, extras)}
	}
}

// value returns the bytes of s; nil for NULL, empty but not nil for an empty value.
func (e *Event) value(s span) []byte {
	if s.len == null {
		return nil
	}
	end := s.off + s.len
	return e.buf[s.off:end:end]
}

// Value returns a field in the text form in which PostgreSQL sent it: nil for SQL NULL
// and for an absent column, empty and not nil for an empty value. The event owns the
// bytes; the caller must not change them.
func (e *Event) Value(f Field) []byte { return e.value(e.fields[f]) }

// Kind returns the kind of the field's column type; KindOther if the column is absent.
func (e *Event) Kind(f Field) TypeKind { return e.kinds[f] }

// Extra returns the extra column with that index in Mapping.Extra, as Value does.
func (e *Event) Extra(i int) []byte {
	if i < 0 || i >= len(e.extras) {
		return nil
	}
	return e.value(e.extras[i])
}

// Size returns the bytes that the event holds in memory, its own structure included.
func (e *Event) Size() int {
	return eventSize + cap(e.buf) + len(e.extras)*spanSize
}

// Bytea returns the bytes that a bytea column's value stands for, in a new slice; nil
// for SQL NULL. It fails unless the value is in PostgreSQL's hex format.
func (e *Event) Bytea(f Field) ([]byte, error) {
	text := e.Value(f)
	if text == nil {
		return nil, nil
	}
	return e.AppendBytea(make([]byte, 0, len(text)/2), f)
}

// AppendBytea appends what Bytea returns to dst.
func (e *Event) AppendBytea(dst []byte, f Field) ([]byte, error) {
	text := e.Value(f)
	if text == nil {
		return dst, nil
	}
	if len(text) < 2 || text[0] != '\\' || text[1] != 'x' {
		return dst, fmt.Errorf("read %s as bytea: the value is not in hex format", f)
	}
	out, err := hex.AppendDecode(dst, text[2:])
	if err != nil {
		return dst, fmt.Errorf("read %s as bytea: %w", f, err)
	}
	return out, nil
}

// Values are the contents of an event that does not come from the slot, such as a row
// read by SQL. A nil slice is SQL NULL.
type Values struct {
	Fields [NumFields][]byte
	Kinds  [NumFields]TypeKind
	Extras [][]byte // in the order of Mapping.Extra
}

// NewEvent makes an event of the given values, which it copies.
func NewEvent(p Position, commitTime time.Time, table TableName, v Values) *Event {
	size := 0
	for _, b := range v.Fields {
		size += len(b)
	}
	for _, b := range v.Extras {
		size += len(b)
	}
	kinds := v.Kinds
	e := newEvent(len(v.Extras))
	e.Position, e.CommitTime, e.Table = p, commitTime, table
	e.kinds, e.buf = &kinds, make([]byte, 0, size)
	for i, b := range v.Fields {
		e.fields[i] = e.add(b)
	}
	for i, b := range v.Extras {
		e.extras[i] = e.add(b)
	}
	return e
}

// add copies a value into the buffer, whose capacity must suffice.
func (e *Event) add(b []byte) span {
	if b == nil {
		return span{len: null}
	}
	s := span{off: int32(len(e.buf)), len: int32(len(b))}
	e.buf = append(e.buf, b...)
	return s
}
