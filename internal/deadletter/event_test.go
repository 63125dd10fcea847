package deadletter

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

func event(kind decode.TypeKind, payload []byte) *decode.Event {
	var v decode.Values
	v.Fields[decode.FieldEventID], v.Kinds[decode.FieldEventID] = []byte("e-1"), decode.KindUUID
	v.Fields[decode.FieldAggregateType] = []byte("order")
	v.Fields[decode.FieldAggregateID] = []byte("7")
	v.Fields[decode.FieldTopic] = []byte{} // empty is not NULL
	v.Fields[decode.FieldHeaders], v.Kinds[decode.FieldHeaders] = []byte(`{"k": "v"}`), decode.KindJSON
	v.Fields[decode.FieldPayload], v.Kinds[decode.FieldPayload] = payload, kind
	v.Extras = [][]byte{[]byte("north"), nil}
	return decode.NewEvent(decode.Position{Timeline: 3, CommitLSN: 0x1_0000_00AB, Ordinal: 5}, time.Date(2026, 2, 1, 3, 4, 5, 678901000, time.UTC),
		decode.TableName{Schema: "Billing-EU", Name: "Order.Outbox"}, v)
}

// contents are all parts of an event but for Malformed; NULL and empty are told apart.
func contents(e *decode.Event) []any {
	all := []any{e.Position, e.CommitTime, e.Table}
	for i := range decode.NumFields {
		f := decode.Field(i)
		all = append(all, f, e.Kind(f), e.Value(f) == nil, string(e.Value(f)))
	}
	for i := range 2 {
		all = append(all, e.Extra(i) == nil, string(e.Extra(i)))
	}
	return all
}

func TestAKeptEventComesBackAsItWas(t *testing.T) {
	extras := []string{"region", "tenant"}
	for name, tc := range map[string]struct {
		kind    decode.TypeKind
		payload []byte
		column  string // what the payload column holds
	}{
		"NULL":                   {decode.KindJSON, nil, ""},
		"JSON with a NUL escape": {decode.KindJSON, []byte(`{"a" : "\u0000", "n": 1e400}`), `{"a" : "\u0000", "n": 1e400}`},
		"empty text":             {decode.KindText, []byte{}, ""},
		"text that is no UTF-8":  {decode.KindText, []byte("a\xff"), "a\xff"},
		"bytea":                  {decode.KindBytea, []byte(`\x00ff41`), "\x00\xffA"},
		"empty bytea":            {decode.KindBytea, []byte(`\x`), ""},
		"bytea in another form":  {decode.KindBytea, []byte(`\x00FF`), `\x00FF`},
		"bytea that is none":     {decode.KindBytea, []byte(`abc`), `abc`},
	} {
		t.Run(name, func(t *testing.T) {
			want := event(tc.kind, tc.payload)
			want.Malformed = errors.New("the content is not an object")
			kept, column := encodeEvent(want, extras)
			if string(column) != tc.column || (column == nil) != (tc.payload == nil) {
				t.Errorf("column payload is %q, want %q", column, tc.column)
			}
			got, err := decodeEvent(kept, column, extras)
			if err != nil {
				t.Fatal(err)
			}
			if got.Malformed == nil || got.Malformed.Error() != want.Malformed.Error() {
				t.Errorf("malformed: %v", got.Malformed)
			}
			if got, want := fmt.Sprintf("%+v", contents(got)), fmt.Sprintf("%+v", contents(want)); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestExtraColumnsOfAKeptEventAreFoundByName(t *testing.T) {
	kept, payload := encodeEvent(event(decode.KindJSON, []byte(`{}`)), []string{"region", "tenant"})
	got, err := decodeEvent(kept, payload, []string{"new", "tenant", "region"})
	if err != nil {
		t.Fatal(err)
	}
	if got.Extra(0) != nil || got.Extra(1) != nil || string(got.Extra(2)) != "north" {
		t.Errorf("got %q, %q, %q", got.Extra(0), got.Extra(1), got.Extra(2))
	}
}

func TestWhatIsNoKeptEventIsRefusedAndNeverPanics(t *testing.T) {
	kept, payload := encodeEvent(event(decode.KindText, []byte("x")), []string{"region", "tenant"})
	for n := range kept {
		if _, err := decodeEvent(kept[:n], payload, nil); err == nil {
			t.Errorf("the first %d bytes were read as an event", n)
		}
	}
	for i := range kept {
		for _, b := range []byte{0x00, 0x7f, 0xff} {
			spoilt := append([]byte{}, kept...)
			spoilt[i] = b
			_, _ = decodeEvent(spoilt, payload, nil)
		}
	}
	if _, err := decodeEvent(append(kept, 0), payload, nil); err == nil {
		t.Error("a byte too many was read as an event")
	}
}

func TestAPayloadThatWasMadeInvalidByHandIsRefused(t *testing.T) {
	kept, _ := encodeEvent(event(decode.KindJSON, []byte(`{}`)), nil)
	if e, err := decodeEvent(kept, []byte(`{"a": 1}`), nil); err != nil || string(e.Value(decode.FieldPayload)) != `{"a": 1}` {
		t.Errorf("a payload that was mended by hand: %v", err)
	}
	if _, err := decodeEvent(kept, []byte(`{"a": `), nil); err == nil {
		t.Error("half a payload was read as an event")
	}
}
