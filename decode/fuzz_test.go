package decode_test

import (
	"bytes"
	"encoding/binary"
	"runtime/metrics"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// pack joins messages for the fuzzer: each after its length.
func pack(messages [][]byte) []byte {
	var b []byte
	for _, m := range messages {
		b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
		b = append(b, m...)
	}
	return b
}

// unpack cuts the fuzzer's input into messages; the last one may be short.
func unpack(data []byte) [][]byte {
	var messages [][]byte
	for len(data) >= 2 {
		n := min(int(binary.BigEndian.Uint16(data)), len(data)-2)
		messages = append(messages, data[2:2+n:2+n])
		data = data[2+n:]
	}
	return messages
}

func allocatedBytes() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// FuzzDecode feeds streams of messages. Nothing may panic, allocate out of proportion,
// refer to the input, or disagree with pglogrepl about a row.
func FuzzDecode(f *testing.F) {
	for _, sc := range scenarios {
		f.Add(pack(sc.messages(f)))
		for _, m := range sc.messages(f) {
			f.Add(pack([][]byte{m}))
		}
	}
	m := mapping("tenant=topic,shade=color")
	f.Fuzz(func(t *testing.T, data []byte) {
		before := allocatedBytes()
		for _, c := range []decode.Config{
			{Table: outbox, Messages: true, AcceptRelation: func(decode.Relation) (bool, error) { return true, nil }},
			{Table: outbox, Mapping: m, Messages: true, Required: needed},
		} {
			d := decode.New(c)
			for _, wal := range unpack(bytes.Clone(data)) {
				if !feed(t, d, c, wal) {
					break
				}
			}
		}
		if grown := allocatedBytes() - before; grown > 8<<20+200*uint64(len(data)) {
			t.Fatalf("%d bytes allocated for %d of input", grown, len(data))
		}
	})
}

// feed decodes one message, checks it, and spoils the input afterwards.
func feed(t *testing.T, d *decode.Decoder, c decode.Config, wal []byte) bool {
	change, err := d.Decode(wal)
	if err != nil {
		if change != (decode.Change{}) {
			t.Fatalf("error %v beside %+v", err, change)
		}
		return false
	}
	e := change.Event
	if (e != nil) != (change.Kind == decode.ChangeEvent) {
		t.Fatalf("%s with event %v", change.Kind, e)
	}
	if e == nil {
		return true
	}
	if !d.InTransaction() || e.Position.CommitLSN != change.CommitLSN {
		t.Fatalf("event at %s outside its transaction", e.Position)
	}
	if wal[0] == 'I' {
		sameValues(t, wal, e)
	}
	was := contents(e, c.Mapping)
	for i := range wal {
		wal[i] ^= 0x55
	}
	if !bytes.Equal(was, contents(e, c.Mapping)) {
		t.Fatal("the event refers to its input")
	}
	if e.Size() > 4096+3*len(wal) {
		t.Fatalf("event of %d bytes from a message of %d", e.Size(), len(wal))
	}
	return true
}

// sameValues checks that each value of the event is a value of the row as pglogrepl reads it.
func sameValues(t *testing.T, wal []byte, e *decode.Event) {
	parsed, err := pglogrepl.Parse(wal)
	if err != nil {
		t.Fatalf("pglogrepl refuses what was decoded: %v", err)
	}
	row := parsed.(*pglogrepl.InsertMessage).Tuple
	for i := range decode.NumFields {
		v := e.Value(decode.Field(i))
		found := v == nil
		for _, c := range row.Columns {
			found = found || c.DataType == 't' && bytes.Equal(c.Data, v)
		}
		if !found {
			t.Fatalf("%s is %q, which is no value of the row", decode.Field(i), v)
		}
	}
}
