package decode_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/decode/decodetest"
)

func TestExtremeValuesPassAsText(t *testing.T) {
	events := named(t, "values").events(t)
	wantValues(t, events, decode.FieldEventID, "NaN", strings.Repeat("1234567890", 40), "0.000")
	wantValues(t, events, decode.FieldAggregateType, "NaN", "-Infinity", "0.30000000000000004")
	wantValues(t, events, decode.FieldAggregateID, "infinity", "-infinity", "4713-01-01 BC")
	wantValues(t, events, decode.FieldAggregateVersion, "9223372036854775807", "-9223372036854775808", "0")
	wantValues(t, events, decode.FieldEventType, "infinity", "0044-03-15 00:00:00 BC", "294276-12-31 23:59:59.999999")
	wantValues(t, events, decode.FieldOccurredAt, "infinity", "0044-03-15 12:00:00+00 BC", "294276-12-31 00:00:00+00")
	wantValues(t, events, decode.FieldTopic, "t", "f", "<null>")
	if got := string(events[2].Extra(0)); got != "1"+strings.Repeat("0", 400) {
		t.Errorf("1e400 came as %q", got)
	}
}

func TestByteaIsDecodedByteForByte(t *testing.T) {
	events := named(t, "values").events(t)
	for i, want := range [][]byte{{}, {0x00, 0x5c, 0xff}, nil} {
		got, err := events[i].Bytea(decode.FieldPayload)
		if err != nil || !bytes.Equal(got, want) || (got == nil) != (want == nil) {
			t.Errorf("row %d: %x (nil %t), %v; want %x", i, got, got == nil, err, want)
		}
	}
	if got, err := events[1].AppendBytea([]byte("x"), decode.FieldPayload); err != nil || string(got) != "x\x00\x5c\xff" {
		t.Errorf("appended: %q, %v", got, err)
	}
}

func TestByteaInAnotherFormatIsAnError(t *testing.T) {
	for _, text := range []string{"", `\`, `\x0`, `\xzz`, `\000abc`, "plain"} {
		var v decode.Values
		v.Fields[decode.FieldPayload] = []byte(text)
		e := decode.NewEvent(decode.Position{}, noTime, outbox, v)
		if got, err := e.Bytea(decode.FieldPayload); err == nil || !strings.Contains(err.Error(), "payload") {
			t.Errorf("%q: %x, %v", text, got, err)
		}
	}
}

func TestNullIsToldFromEmpty(t *testing.T) {
	events := named(t, "outbox").events(t)
	wantValues(t, events, decode.FieldTopic, "orders.eu", "", "<null>")
	wantValues(t, events, decode.FieldAggregateID, "o-1", "", "o-3")
	wantValues(t, events, decode.FieldPayload, `{"id": 1234567890123456789, "total": 0.10}`, `""`, `{"kept": true}`)
	empty := mustDecode(t, begun(t, decode.Config{Table: outbox}), decodetest.Insert(16400, make([][]byte, 12)...)).Event
	for i := range decode.NumFields {
		if v := empty.Value(decode.Field(i)); v != nil {
			t.Errorf("%s of a row of NULLs is %q", decode.Field(i), v)
		}
	}
}

func TestJSONTextPassesByteForByte(t *testing.T) {
	events := named(t, "json").events(t)
	wantValues(t, events, decode.FieldPayload, " {\"b\" :1e400,\n \"a\":0.10, \"a\":12345678901234567890123}", "null")
	wantValues(t, events, decode.FieldHeaders, `{"a": 1234567890123456789, "b": 1.50}`, "null")
	wantValues(t, events, decode.FieldTopic, "tab\t \"quote\" \\ back", "null")
}

func TestDomainHasTheKindOfItsBaseType(t *testing.T) {
	e := named(t, "kinds").events(t)[0]
	if e.Kind(decode.FieldEventID) != decode.KindUUID || e.Kind(decode.FieldPayload) != decode.KindJSON {
		t.Errorf("kinds %s and %s, want uuid and json", e.Kind(decode.FieldEventID), e.Kind(decode.FieldPayload))
	}
	if got := string(e.Extra(0)); got != "green" {
		t.Errorf("enum came as %q", got)
	}
}

func TestUnchangedToastMakesTheEventMalformed(t *testing.T) {
	for column, mapped := range map[int]bool{0: false, 8: true} { // id is not mapped, payload is
		row := decodetest.Insert(16400, make([][]byte, 12)...)
		row[8+column] = 'u'
		e := mustDecode(t, begun(t, decode.Config{Table: outbox}), row).Event
		if got := e.Malformed != nil; got != mapped {
			t.Errorf("column %d: malformed %v", column, e.Malformed)
		}
		if mapped && !strings.Contains(e.Malformed.Error(), "payload") {
			t.Errorf("%v does not name the column", e.Malformed)
		}
	}
}

// TestValuesAgreeWithPglogrepl reads the recordings with another implementation.
func TestValuesAgreeWithPglogrepl(t *testing.T) {
	for _, sc := range scenarios {
		if sc.streaming || sc.twoPhase {
			continue
		}
		d := decode.New(sc.config)
		relations := map[uint32]*pglogrepl.RelationMessage{}
		for _, m := range sc.messages(t) {
			c, err := d.Decode(m)
			if err != nil {
				break
			}
			switch other, err := pglogrepl.Parse(m); x := other.(type) {
			case *pglogrepl.RelationMessage:
				relations[x.RelationID] = x
			case *pglogrepl.InsertMessage:
				if c.Event != nil {
					compare(t, sc, relations[x.RelationID], x.Tuple, c.Event)
				}
			case *pglogrepl.BeginMessage:
				if x.FinalLSN != c.CommitLSN || !x.CommitTime.Equal(c.CommitTime) || x.Xid != c.XID {
					t.Errorf("%s: begin %+v, want %+v", sc.name, c, x)
				}
			case *pglogrepl.CommitMessage:
				if x.TransactionEndLSN != c.CommitEndLSN || x.CommitLSN != c.CommitLSN {
					t.Errorf("%s: commit %+v, want %+v", sc.name, c, x)
				}
			case nil:
				t.Errorf("%s: %v", sc.name, err)
			}
		}
	}
}

func compare(t *testing.T, sc scenario, r *pglogrepl.RelationMessage, row *pglogrepl.TupleData, e *decode.Event) {
	t.Helper()
	check := func(what, column string, got []byte) {
		for i, c := range r.Columns {
			if c.Name != column {
				continue
			}
			if want := row.Columns[i]; !bytes.Equal(got, want.Data) || (got == nil) != (want.DataType == 'n') {
				t.Errorf("%s: %s of %s is %q, want %q", sc.name, what, e.Position, got, want.Data)
			}
			return
		}
		if got != nil {
			t.Errorf("%s: %s of %s is %q without a column", sc.name, what, e.Position, got)
		}
	}
	for i := range decode.NumFields {
		f := decode.Field(i)
		check(f.String(), sc.config.Mapping.Column(f), e.Value(f))
	}
	for i, x := range sc.config.Mapping.Extra() {
		check(x.Name, x.Column, e.Extra(i))
	}
}

// TestEncoderWritesWhatPostgreSQLSends keeps decodetest honest.
func TestEncoderWritesWhatPostgreSQLSends(t *testing.T) {
	for _, name := range []string{"copy", "interleaved", "values", "messages"} {
		for _, m := range named(t, name).messages(t) {
			parsed, err := pglogrepl.Parse(m)
			if err != nil {
				t.Fatal(err)
			}
			if got := encode(parsed); !bytes.Equal(got, m) {
				t.Errorf("%s: %s\n got %x\nwant %x", name, parsed.Type(), got, m)
			}
		}
	}
}

func encode(m pglogrepl.Message) []byte {
	switch x := m.(type) {
	case *pglogrepl.BeginMessage:
		return decodetest.Begin(x.FinalLSN, x.CommitTime, x.Xid)
	case *pglogrepl.CommitMessage:
		return decodetest.Commit(x.CommitLSN, x.TransactionEndLSN, x.CommitTime)
	case *pglogrepl.RelationMessage:
		r := decode.Relation{OID: x.RelationID, Schema: x.Namespace, Name: x.RelationName}
		for _, c := range x.Columns {
			r.Columns = append(r.Columns, decode.Column{Name: c.Name, TypeOID: c.DataType})
		}
		return decodetest.Relation(r)
	case *pglogrepl.InsertMessage:
		var row [][]byte
		for _, c := range x.Tuple.Columns {
			if c.DataType == 't' && c.Data == nil {
				c.Data = []byte{}
			}
			row = append(row, c.Data)
		}
		return decodetest.Insert(x.RelationID, row...)
	case *pglogrepl.LogicalDecodingMessage:
		return decodetest.Message(x.Transactional, x.LSN, x.Prefix, x.Content)
	default:
		return nil
	}
}
