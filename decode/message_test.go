package decode_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/decode/decodetest"
)

// sent decodes one transactional logical message with the outbox prefix.
func sent(t *testing.T, content string) *decode.Event {
	t.Helper()
	d := begun(t, decode.Config{Table: outbox, Messages: true})
	return mustDecode(t, d, decodetest.Message(true, 1, "outbox", []byte(content))).Event
}

func TestLogicalMessageTakesItsPlaceAmongTheRows(t *testing.T) {
	events := named(t, "messages").events(t)
	if got := values(events[:3], decode.FieldEventID); got[0] != "e1" || got[1] != id(1) || got[2] != "e2" {
		t.Errorf("order %q", got)
	}
	if p := events[1].Position; p.Ordinal != 1 || p.Timeline != 1 {
		t.Errorf("the message is at %s", p)
	}
	if events[1].Table != (decode.TableName{}) {
		t.Errorf("a message has the table %s", events[1].Table)
	}
}

func TestLogicalMessageKeepsJSONTextAsItStands(t *testing.T) {
	for _, payload := range []string{
		`{"b" : 1e400,"a":0.10, "a":12345678901234567890123}`, `[ 1 , {"x":"}]\"," } ]`, `"quo\"ted, }"`, `-0.0`, `true`, `""`, `{}`, `[]`, "{\n\t}",
	} {
		e := sent(t, "\n{ \"event_id\" : \"e\" ,\t\"payload\": "+payload+" , \"headers\":"+`{"k" : "v"}`+" }\r\n")
		if got := string(e.Value(decode.FieldPayload)); e.Malformed != nil || got != payload || e.Kind(decode.FieldPayload) != decode.KindJSON {
			t.Errorf("payload %s came as %s (%v)", payload, got, e.Malformed)
		}
		if got := string(e.Value(decode.FieldHeaders)); got != `{"k" : "v"}` {
			t.Errorf("headers came as %s", got)
		}
		last := sent(t, `{"payload":`+payload+"\n}")
		if got := string(last.Value(decode.FieldPayload)); got != payload {
			t.Errorf("payload %s at the end came as %s", payload, got)
		}
	}
}

func TestLogicalMessageValuesHaveTheFormOfColumns(t *testing.T) {
	for _, tc := range []struct {
		member string
		field  decode.Field
		want   string // "<null>" for NULL
		kind   decode.TypeKind
	}{
		{`"event_id": "0b6d4a3e-8c1f-4a55-9d8e-2f6f0a1b2c3d"`, decode.FieldEventID, "0b6d4a3e-8c1f-4a55-9d8e-2f6f0a1b2c3d", decode.KindUUID},
		{`"event_id": "0B6D4A3E-8C1F-4A55-9D8E-2F6F0A1B2C3D"`, decode.FieldEventID, "0B6D4A3E-8C1F-4A55-9D8E-2F6F0A1B2C3D", decode.KindText},
		{`"event_id": 17`, decode.FieldEventID, "17", decode.KindText},
		{`"event_id": null`, decode.FieldEventID, "<null>", decode.KindUUID},
		{`"payload": null`, decode.FieldPayload, "<null>", decode.KindJSON},
		{`"aggregate_id": 12345678901234567890123`, decode.FieldAggregateID, "12345678901234567890123", decode.KindText},
		{`"aggregate_id": true`, decode.FieldAggregateID, "true", decode.KindText},
		{`"aggregate_type": ""`, decode.FieldAggregateType, "", decode.KindText},
		{`"aggregate_type": "a\tb\u00e9\ud834\udd1e\\\/"`, decode.FieldAggregateType, "a\tbé𝄞\\/", decode.KindText},
		{`"aggregate_type": "\ud834\udd1e\ud834\udd1e\\ud834"`, decode.FieldAggregateType, `𝄞𝄞\ud834`, decode.KindText},
		{`"aggregate_version": 9223372036854775807`, decode.FieldAggregateVersion, "9223372036854775807", decode.KindInteger},
		{`"event_version": "007"`, decode.FieldEventVersion, "7", decode.KindInteger},
		{`"occurred_at": "2026-02-01T12:30:00.1234567+01:00"`, decode.FieldOccurredAt, "2026-02-01 11:30:00.123457+00", decode.KindTimestampTZ},
		{`"occurred_at": "2026-02-01 12:30:00+05:45"`, decode.FieldOccurredAt, "2026-02-01 06:45:00+00", decode.KindTimestampTZ},
		{`"occurred_at": "2026-02-01 12:30:00-08"`, decode.FieldOccurredAt, "2026-02-01 20:30:00+00", decode.KindTimestampTZ},
		{`"occurred_at": "-infinity"`, decode.FieldOccurredAt, "-infinity", decode.KindTimestampTZ},
	} {
		e := sent(t, "{"+tc.member+"}")
		got := values([]*decode.Event{e}, tc.field)[0]
		if e.Malformed != nil || got != tc.want || e.Kind(tc.field) != tc.kind {
			t.Errorf("%s came as %q (%s, %v), want %q (%s)", tc.member, got, e.Kind(tc.field), e.Malformed, tc.want, tc.kind)
		}
	}
}

func TestBadLogicalMessageIsAnEventMarkedMalformed(t *testing.T) {
	for content, want := range map[string]string{
		"":                                      "content",
		"x":                                     "content",
		"[]":                                    "content",
		`"a"`:                                   "content",
		"\xff":                                  "UTF-8",
		`{"event_id":"e"} x`:                    "content",
		`{"\ud800":1}`:                          "member name",
		`{"event_id":{}}`:                       "event_id",
		`{"topic":[1]}`:                         "topic",
		`{"event_version":1.0}`:                 "event_version",
		`{"event_version":1e3}`:                 "event_version",
		`{"aggregate_version":"x"}`:             "aggregate_version",
		`{"headers":"x"}`:                       "headers",
		`{"headers":[]}`:                        "headers",
		`{"occurred_at":"tomorrow"}`:            "occurred_at",
		`{"occurred_at":"2026-02-01 12:30:00"}`: "zone",
		`{"event_id":"\u0000"}`:                 `\u0000`,
		`{"event_id":"\udc00"}`:                 "surrogate",
		`{"event_id":"\ud834x"}`:                "surrogate",
		`{"event_id":"\ud834\ud834"}`:           "surrogate",
	} {
		e := sent(t, content)
		var v *decode.ValueError
		if !errors.As(e.Malformed, &v) || !strings.Contains(v.Error(), want) || v.Hint() == "" {
			t.Errorf("%q: malformed %v, want it to hold %q", content, e.Malformed, want)
		}
		if got := string(e.Value(decode.FieldPayload)); got != content || e.Value(decode.FieldPayload) == nil {
			t.Errorf("%q: the payload is %q instead of the content", content, got)
		}
	}
}

func TestNonTransactionalMessageIsIgnoredAndCounted(t *testing.T) {
	d := decode.New(decode.Config{Table: outbox, Messages: true})
	for _, prefix := range []string{"outbox", "outbox", "heartbeat"} {
		if c := mustDecode(t, d, decodetest.Message(false, 1, prefix, []byte(`{}`))); c.Kind != decode.ChangeNone {
			t.Errorf("prefix %s: %s", prefix, c.Kind)
		}
	}
	if got := d.NonTransactionalMessages(); got != 2 {
		t.Errorf("counted %d, want 2", got)
	}
}

func TestOnlyMessagesThatWereAskedForAreEvents(t *testing.T) {
	content := []byte(`{"event_id":"e"}`)
	for _, tc := range []struct {
		config decode.Config
		prefix string
		want   decode.ChangeKind
	}{
		{decode.Config{}, "outbox", decode.ChangeNone},
		{decode.Config{Messages: true}, "outbox", decode.ChangeEvent},
		{decode.Config{Messages: true}, "Outbox", decode.ChangeNone},
		{decode.Config{Messages: true, MessagePrefix: "mine"}, "outbox", decode.ChangeNone},
		{decode.Config{Messages: true, MessagePrefix: "mine"}, "mine", decode.ChangeEvent},
	} {
		if c := mustDecode(t, begun(t, tc.config), decodetest.Message(true, 1, tc.prefix, content)); c.Kind != tc.want {
			t.Errorf("%+v, prefix %s: %s, want %s", tc.config, tc.prefix, c.Kind, tc.want)
		}
	}
}

func TestMessageMembersMayBearTheNamesOfMappedColumns(t *testing.T) {
	d := begun(t, decode.Config{Table: outbox, Messages: true, Mapping: mapping("debezium,tenant=tenant_id")})
	e := mustDecode(t, d, decodetest.Message(true, 1, "outbox", []byte(`{"id":"e1","event_type":"first","type":"second","tenant_id":5}`))).Event
	if string(e.Value(decode.FieldEventID)) != "e1" || string(e.Value(decode.FieldEventType)) != "first" || string(e.Extra(0)) != "5" {
		t.Errorf("event %q", contents(e, mapping("tenant=tenant_id")))
	}
}
