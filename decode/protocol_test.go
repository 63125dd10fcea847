package decode_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/decode/decodetest"
)

var noTime time.Time

// primed returns a Decoder that has read the messages before the n-th.
func primed(t testing.TB, sc scenario, messages [][]byte, n int) *decode.Decoder {
	t.Helper()
	d := decode.New(sc.config)
	for _, m := range messages[:n] {
		mustDecode(t, d, m)
	}
	return d
}

// sound are the recordings that decode without an error; together they hold every kind
// of message that is read.
var sound = []string{"outbox", "kinds", "messages", "partition_leaf", "values"}

func TestTruncatedMessageIsAnErrorAtEveryByte(t *testing.T) {
	kinds := map[byte]bool{}
	for _, name := range sound {
		sc := named(t, name)
		messages := sc.messages(t)
		for n, m := range messages {
			kinds[m[0]] = true
			for cut := range m {
				var p *decode.ProtocolError
				_, err := primed(t, sc, messages, n).Decode(m[:cut:cut])
				if !errors.As(err, &p) || p.Cause != decode.CauseMalformed {
					t.Fatalf("%s: message %d (%q) cut to %d of %d bytes: %v", name, n, m[0], cut, len(m), err)
				}
			}
			if _, err := primed(t, sc, messages, n).Decode(append(slices.Clone(m), 0)); err == nil {
				t.Fatalf("%s: message %d (%q) with a byte too many was taken", name, n, m[0])
			}
		}
	}
	for _, kind := range []byte("BCRYIUDTOM") {
		if !kinds[kind] {
			t.Errorf("no recording of %q", kind)
		}
	}
}

func TestCorruptByteNeverPanicsNorInflates(t *testing.T) {
	for _, name := range sound {
		sc := named(t, name)
		messages := sc.messages(t)
		for n, m := range messages {
			for at := range m {
				for _, v := range []byte{0x00, 0x7F, 0x80, 0xFF} {
					bad := slices.Clone(m)
					bad[at] = v
					c, err := primed(t, sc, messages, n).Decode(bad)
					if err == nil && c.Event != nil && c.Event.Size() > 2000+2*len(bad) {
						t.Fatalf("%s: message %d with byte %d set to %#x: event of %d bytes", name, n, at, v, c.Event.Size())
					}
				}
			}
		}
	}
}

func TestMessagesOutOfTurnAreErrors(t *testing.T) {
	at := time.Unix(1e9, 0)
	begin, relation := decodetest.Begin(100, at, 7), decodetest.Relation(standardRelation)
	key := standardRow()
	key[5] = 'K'
	for name, tc := range map[string]struct {
		messages [][]byte
		want     string
	}{
		"empty":                         {[][]byte{{}}, "empty"},
		"commit without begin":          {[][]byte{decodetest.Commit(100, 110, at)}, "without a begin"},
		"begin inside a transaction":    {[][]byte{begin, begin}, "begins inside"},
		"row outside a transaction":     {[][]byte{relation, standardRow()}, "outside a transaction"},
		"message outside a transaction": {[][]byte{decodetest.Message(true, 1, "outbox", nil)}, "outside a transaction"},
		"commit of another transaction": {[][]byte{begin, decodetest.Commit(101, 110, at)}, "0/65"},
		"commit that ends before":       {[][]byte{begin, decodetest.Commit(100, 99, at)}, "ends at"},
		"row of an unknown relation":    {[][]byte{begin, standardRow()}, "16400"},
		"insert of a key":               {[][]byte{begin, relation, key}, "no new row"},
		"row with a column missing":     {[][]byte{begin, relation, decodetest.Insert(16400, nil)}, "columns"},
		"update without a new row":      {[][]byte{begin, relation, append([]byte{'U'}, key[1:]...)[:len(key)]}, "wanted"},
		"update of another form":        {[][]byte{begin, relation, append([]byte("U\x00\x00\x40\x10X"), key[6:]...)}, "no row"},
		"origin outside a transaction":  {[][]byte{append([]byte("O"), make([]byte, 9)...)}, "outside a transaction"},
		"unknown kind":                  {[][]byte{{'?'}}, "unknown"},
	} {
		d := decode.New(decode.Config{Table: outbox})
		for _, m := range tc.messages[:len(tc.messages)-1] {
			mustDecode(t, d, m)
		}
		_, err := d.Decode(tc.messages[len(tc.messages)-1])
		var p *decode.ProtocolError
		if !errors.As(err, &p) || !strings.Contains(err.Error(), tc.want) || p.Hint() == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMessagesOfOtherModesAreRefusedByName(t *testing.T) {
	for name, tc := range map[string]struct {
		kinds string
		cause decode.ProtocolCause
		hint  string
	}{
		"two_phase": {"bPKr", decode.CauseTwoPhase, "two_phase"},
		"streaming": {"SEcA", decode.CauseStreaming, "proto_version 1"},
	} {
		seen := map[byte]bool{}
		for _, m := range named(t, name).messages(t) {
			if strings.IndexByte(tc.kinds, m[0]) < 0 {
				continue
			}
			seen[m[0]] = true
			_, err := decode.New(decode.Config{Table: outbox}).Decode(m)
			var p *decode.ProtocolError
			if !errors.As(err, &p) || p.Cause != tc.cause || p.Message != m[0] || !strings.Contains(p.Hint(), tc.hint) {
				t.Errorf("%s, message %q: %v", name, m[0], err)
			}
		}
		if len(seen) != len(tc.kinds) {
			t.Errorf("%s: recorded only %d of the kinds %s", name, len(seen), tc.kinds)
		}
	}
}

func TestBinaryValueIsRefused(t *testing.T) {
	row := decodetest.Insert(16400, append([][]byte{[]byte("12345678")}, make([][]byte, 11)...)...)
	row[8] = 'b'
	_, err := begun(t, decode.Config{Table: outbox}).Decode(row)
	var p *decode.ProtocolError
	if !errors.As(err, &p) || p.Cause != decode.CauseBinary {
		t.Errorf("got %v", err)
	}
}

func TestRenamedMappedColumnStopsWithItsName(t *testing.T) {
	sc := named(t, "renamed_column")
	d := decode.New(sc.config)
	var err error
	events := 0
	for _, m := range sc.messages(t) {
		var c decode.Change
		if c, err = d.Decode(m); err != nil {
			break
		}
		if c.Event != nil {
			events++
		}
	}
	var r *decode.RelationError
	if events != 1 || !errors.As(err, &r) {
		t.Fatalf("%d events, then %v", events, err)
	}
	if r.Table != outbox || r.Column != "payload" || r.Field != "payload" || !slices.Contains(r.Columns, "body") || r.CommitLSN == 0 {
		t.Errorf("error %+v", r)
	}
	for _, want := range []string{"public.outbox", "payload", "body", r.CommitLSN.String()} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not hold %q", err, want)
		}
	}
	if !strings.Contains(r.Hint(), "--columns payload=") {
		t.Errorf("hint %q", r.Hint())
	}
}

func TestColumnsThatMustExist(t *testing.T) {
	small := decode.Relation{OID: 16400, Schema: "public", Name: "outbox", Columns: []decode.Column{
		{Name: "event_id", TypeOID: 2950}, {Name: "payload", TypeOID: 3802},
	}}
	required := []decode.Field{decode.FieldEventID, decode.FieldPayload}
	for _, tc := range []struct {
		mapping, missing string
		required         []decode.Field
	}{
		{mapping: "", required: required},
		{mapping: "topic=", required: required},
		{mapping: "topic=subject", missing: "subject", required: required},
		{mapping: "topic=topic", missing: "topic", required: required},
		{mapping: "tenant=tenant_id", missing: "tenant_id", required: required},
		{mapping: "", missing: "event_type", required: append(required, decode.FieldEventType)},
		{mapping: "event_id=id", missing: "id"},
		{mapping: "payload=", missing: "payload", required: required},
	} {
		d := begun(t, decode.Config{Table: outbox, Mapping: mapping(tc.mapping), Required: tc.required})
		mustDecode(t, d, decodetest.Relation(small))
		_, err := d.Decode(decodetest.Insert(16400, []byte("1"), []byte("{}")))
		var r *decode.RelationError
		switch {
		case tc.missing == "" && err != nil:
			t.Errorf("mapping %q: %v", tc.mapping, err)
		case tc.missing != "" && (!errors.As(err, &r) || !strings.Contains(err.Error(), tc.missing) || r.Hint() == ""):
			t.Errorf("mapping %q: %v, want an error that names %s", tc.mapping, err, tc.missing)
		}
	}
}
