package decode_test

import (
	"strings"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/decode/decodetest"
)

var standardRelation = decode.Relation{
	OID: 16400, Schema: "public", Name: "outbox",
	Columns: []decode.Column{
		{Name: "id", TypeOID: 20}, {Name: "event_id", TypeOID: 2950}, {Name: "aggregate_type", TypeOID: 25},
		{Name: "aggregate_id", TypeOID: 25}, {Name: "aggregate_version", TypeOID: 20}, {Name: "event_type", TypeOID: 25},
		{Name: "event_version", TypeOID: 23}, {Name: "topic", TypeOID: 25}, {Name: "payload", TypeOID: 3802},
		{Name: "headers", TypeOID: 3802}, {Name: "traceparent", TypeOID: 25}, {Name: "occurred_at", TypeOID: 1184},
	},
}

// standardRow is a row of the outbox table with a payload of 292 bytes.
func standardRow() []byte {
	text := func(s string) []byte { return []byte(s) }
	return decodetest.Insert(16400, text("123456"), text("0b6d4a3e-8c1f-4a55-9d8e-2f6f0a1b2c3d"), text("order"), text("order-4711"),
		text("17"), text("placed"), text("1"), nil, text(`{"total": "`+strings.Repeat("x", 279)+`"}`), nil,
		text("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), text("2026-02-01 12:30:00.123456+00"))
}

// begun returns a Decoder inside a transaction, after the relation.
func begun(t testing.TB, c decode.Config) *decode.Decoder {
	t.Helper()
	d := decode.New(c)
	for _, m := range [][]byte{decodetest.Begin(0x16B3748, time.Unix(1e9, 0), 7), decodetest.Relation(standardRelation)} {
		if _, err := d.Decode(m); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

var sunk decode.Change

// BenchmarkDecode measures the Insert message of one outbox row. The bytes are those of
// the message.
func BenchmarkDecode(b *testing.B) {
	for name, m := range map[string]string{"plain": "", "extra": "tenant=topic,who=traceparent"} {
		b.Run(name, func(b *testing.B) {
			d := begun(b, decode.Config{Table: outbox, Mapping: mapping(m)})
			row := standardRow()
			b.SetBytes(int64(len(row)))
			b.ReportAllocs()
			for b.Loop() {
				change, err := d.Decode(row)
				if err != nil {
					b.Fatal(err)
				}
				sunk = change
			}
		})
	}
}

// BenchmarkDecodeTransaction measures a whole transaction of one row: three messages.
func BenchmarkDecodeTransaction(b *testing.B) {
	d := decode.New(decode.Config{Table: outbox})
	at := time.Unix(1e9, 0)
	if _, err := d.Decode(decodetest.Relation(standardRelation)); err != nil {
		b.Fatal(err)
	}
	messages := [][]byte{decodetest.Begin(100, at, 7), standardRow(), decodetest.Commit(100, 130, at)}
	b.ReportAllocs()
	for b.Loop() {
		for _, m := range messages {
			change, err := d.Decode(m)
			if err != nil {
				b.Fatal(err)
			}
			sunk = change
		}
	}
}
