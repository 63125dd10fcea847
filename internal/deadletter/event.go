package deadletter

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// eventVersion is the first byte of a kept event. A new form gets a new number; the old
// ones stay readable, since letters stay for years.
const eventVersion = 1

// How a kept event has its payload.
const (
	payloadNull   = 0
	payloadColumn = 1 // the bytes of the column payload, as they are
	payloadHex    = 2 // the bytes of the column payload, in PostgreSQL's hex form
	payloadInline = 3 // in the kept event, since the column cannot give it back
)

// encodeEvent returns the bytes for the columns event and payload. The payload of a bytea
// column is what the hex digits stand for, of any other its text. Fields and kinds are kept
// by name, so that their numbers may change; extra columns by the names that the mapping
// gives them. It is not kept twice: it may be the largest part by far.
//
// Form: version; position, commit time, table, malformed; then the fields and the extra
// columns, each a count and (name, kind, value) or (name, value). Texts have their length
// before them; a value has its length plus one, 0 being NULL.
func encodeEvent(e *decode.Event, extras []string) (event, payload []byte) {
	how, payload := splitPayload(e)
	b := []byte{eventVersion}
	b = appendText(b, e.Position.String())
	b = binary.AppendVarint(b, e.CommitTime.UnixMicro())
	b = appendText(appendText(b, e.Table.Schema), e.Table.Name)
	malformed := ""
	if e.Malformed != nil {
		malformed = e.Malformed.Error()
	}
	b = appendText(b, malformed)
	b = binary.AppendUvarint(b, uint64(decode.NumFields))
	for i := range decode.NumFields {
		f := decode.Field(i)
		b = appendText(appendText(b, f.String()), e.Kind(f).String())
		switch {
		case f != decode.FieldPayload:
			b = appendValue(b, e.Value(f))
		case how == payloadInline:
			b = appendValue(append(b, payloadInline), e.Value(f))
		default:
			b = append(b, how)
		}
	}
	b = binary.AppendUvarint(b, uint64(len(extras)))
	for i, name := range extras {
		b = appendValue(appendText(b, name), e.Extra(i))
	}
	return b, payload
}

func splitPayload(e *decode.Event) (how byte, payload []byte) {
	text := e.Value(decode.FieldPayload)
	switch {
	case text == nil:
		return payloadNull, nil
	case e.Kind(decode.FieldPayload) != decode.KindBytea:
		return payloadColumn, text
	}
	payload, err := e.Bytea(decode.FieldPayload)
	if err != nil || string(hexForm(payload)) != string(text) {
		return payloadInline, text
	}
	return payloadHex, payload
}

// hexForm is how PostgreSQL writes a bytea.
func hexForm(b []byte) []byte { return hex.AppendEncode([]byte(`\x`), b) }

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func appendValue(b, value []byte) []byte {
	if value == nil {
		return binary.AppendUvarint(b, 0)
	}
	return append(binary.AppendUvarint(b, uint64(len(value))+1), value...)
}

// errKept says that the column event does not hold what encodeEvent writes.
var errKept = errors.New("the kept event cannot be read: it was written by a newer version, or changed by hand")

// decodeEvent is the reverse of encodeEvent. extras are the names of the extra columns that
// are wanted, in the order in which they shall come; those that were not kept are NULL.
func decodeEvent(event, payload []byte, extras []string) (*decode.Event, error) {
	if len(event) == 0 || event[0] != eventVersion {
		return nil, errKept
	}
	r := reader{rest: event[1:]}
	position, positionErr := decode.ParsePosition(r.text())
	commitTime := time.UnixMicro(r.varint()).UTC()
	table := decode.TableName{Schema: r.text(), Name: r.text()}
	malformed := r.text()
	values := r.fields(payload)
	values.Extras = r.extras(extras)
	if r.failed || positionErr != nil || len(r.rest) > 0 {
		return nil, errKept
	}
	text := values.Fields[decode.FieldPayload]
	if text != nil && malformed == "" && values.Kinds[decode.FieldPayload] == decode.KindJSON && !json.Valid(text) {
		return nil, fmt.Errorf("the payload is not JSON any more, as the type of its column was: column payload was changed by hand")
	}
	e := decode.NewEvent(position, commitTime, table, values)
	if malformed != "" {
		e.Malformed = errors.New(malformed)
	}
	return e, nil
}

// reader takes a kept event apart. After a failure it returns zero values.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) fields(payload []byte) decode.Values {
	var v decode.Values
	for range r.count() {
		field, known := decode.ParseField(r.text())
		kind, _ := decode.ParseKind(r.text())
		var value []byte
		if known && field == decode.FieldPayload {
			value = r.payload(payload)
		} else {
			value = r.value()
		}
		if known { // else of a version that had a field more
			v.Fields[field], v.Kinds[field] = value, kind
		}
	}
	return v
}

func (r *reader) payload(column []byte) []byte {
	if column == nil {
		column = []byte{}
	}
	switch r.byte() {
	case payloadNull:
		return nil
	case payloadColumn:
		return column
	case payloadHex:
		return hexForm(column)
	case payloadInline:
		return r.value()
	default:
		r.failed = true
		return nil
	}
}

func (r *reader) extras(wanted []string) [][]byte {
	kept := map[string][]byte{}
	for range r.count() {
		name := r.text()
		kept[name] = r.value()
	}
	var values [][]byte
	for _, name := range wanted {
		values = append(values, kept[name])
	}
	return values
}

// count reads how many things follow; each takes a byte at least.
func (r *reader) count() uint64 {
	n := r.uvarint()
	if n > uint64(len(r.rest)) {
		r.failed = true
		return 0
	}
	return n
}

func (r *reader) text() string { return string(r.take(r.uvarint())) }

func (r *reader) value() []byte {
	n := r.uvarint()
	if n == 0 {
		return nil
	}
	return append([]byte{}, r.take(n-1)...)
}

func (r *reader) byte() byte {
	b := r.take(1)
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

func (r *reader) take(n uint64) []byte {
	if r.failed || n > uint64(len(r.rest)) {
		r.failed = true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) uvarint() uint64 {
	n, size := binary.Uvarint(r.rest)
	return uint64(r.moved(int64(n), size))
}

func (r *reader) varint() int64 {
	n, size := binary.Varint(r.rest)
	return r.moved(n, size)
}

func (r *reader) moved(n int64, size int) int64 {
	if r.failed || size <= 0 {
		r.failed = true
		return 0
	}
	r.rest = r.rest[size:]
	return n
}
