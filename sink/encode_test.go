package sink

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

var testPosition = decode.Position{Timeline: 1, CommitLSN: 0x16B3748, Ordinal: 2}

// row makes an event of the standard table. Values are given as name=text; a name
// that is not given is NULL. kinds overrides the kinds of the standard columns.
func row(t *testing.T, kinds map[decode.Field]decode.TypeKind, values ...string) *decode.Event {
	t.Helper()
	v := decode.Values{}
	standard := map[decode.Field]decode.TypeKind{
		decode.FieldEventID: decode.KindUUID, decode.FieldAggregateType: decode.KindText, decode.FieldAggregateID: decode.KindText,
		decode.FieldAggregateVersion: decode.KindInteger, decode.FieldEventType: decode.KindText,
		decode.FieldEventVersion: decode.KindInteger, decode.FieldTopic: decode.KindText, decode.FieldPayload: decode.KindJSON,
		decode.FieldHeaders: decode.KindJSON, decode.FieldTraceparent: decode.KindText, decode.FieldOccurredAt: decode.KindTimestampTZ,
	}
	for f, k := range standard {
		if other, ok := kinds[f]; ok {
			k = other
		}
		v.Kinds[f] = k
	}
	for _, pair := range values {
		name, text, ok := strings.Cut(pair, "=")
		f, known := decode.ParseField(name)
		if !ok || !known {
			t.Fatalf("%q is no field=value", pair)
		}
		v.Fields[f] = []byte(text)
	}
	return decode.NewEvent(testPosition, time.Unix(1, 0), decode.TableName{Schema: "public", Name: "outbox"}, v)
}

const testID = "0f0e0d0c-0b0a-4908-8706-050403020100"

var fullRow = []string{
	"event_id=" + testID, "aggregate_type=order", "aggregate_id=o-1", "aggregate_version=7", "event_type=placed",
	"event_version=2", `payload={"total": 0.10, "id": 1234567890123456789}`, "occurred_at=2026-02-01 03:04:05.06+00",
	"traceparent=00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", `headers={"tenant":"a b","x":"1"}`,
}

func encoder(t *testing.T, change func(*EncoderConfig)) *Encoder {
	t.Helper()
	template, err := ParseTemplate("outbox.{aggregate_type}.{event_type}", decode.DefaultMapping())
	if err != nil {
		t.Fatal(err)
	}
	cfg := EncoderConfig{Template: template, Format: FormatEnvelope, Headers: HeadersMinimal, Source: "7000/outbox", SourceName: "outbox"}
	if change != nil {
		change(&cfg)
	}
	return NewEncoder(cfg)
}

func encode(t *testing.T, e *Encoder, ev *decode.Event) *Message {
	t.Helper()
	m, err := e.Encode(ev)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func text(m *Message) string {
	var b strings.Builder
	b.WriteString(m.Subject + "\n")
	for name, value := range m.Headers {
		b.WriteString(name + ": " + value + "\n")
	}
	return b.String() + "\n" + string(m.Body())
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

func TestMessagesAreByteExact(t *testing.T) {
	expect(t, "envelope", text(encode(t, encoder(t, nil), row(t, nil, fullRow...))), `outbox.order.placed
Nats-Msg-Id: 0f0e0d0c-0b0a-4908-8706-050403020100
Outbox-Position: 1:0/16B3748:2
Outbox-Source: 7000/outbox
Outbox-Event-Id: 0f0e0d0c-0b0a-4908-8706-050403020100
traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
Content-Type: application/json
tenant: a b
x: 1

{"eventId":"0f0e0d0c-0b0a-4908-8706-050403020100","eventType":"placed","eventVersion":2,"aggregateType":"order","aggregateId":"o-1","aggregateVersion":7,"occurredAt":"2026-02-01T03:04:05.060000Z","traceId":"4bf92f3577b34da6a3ce929d0e0e4736","payload":{"total": 0.10, "id": 1234567890123456789}}`)

	expect(t, "sparse envelope", text(encode(t, encoder(t, nil), row(t, nil, "event_id="+testID))), `outbox.%00.%00
Nats-Msg-Id: 0f0e0d0c-0b0a-4908-8706-050403020100
Outbox-Position: 1:0/16B3748:2
Outbox-Source: 7000/outbox
Outbox-Event-Id: 0f0e0d0c-0b0a-4908-8706-050403020100
Content-Type: application/json

{"eventId":"0f0e0d0c-0b0a-4908-8706-050403020100"}`)

	payload := encoder(t, func(c *EncoderConfig) { c.Format, c.Headers = FormatPayload, HeadersFull })
	expect(t, "payload", text(encode(t, payload, row(t, nil, fullRow...))), `outbox.order.placed
Nats-Msg-Id: 0f0e0d0c-0b0a-4908-8706-050403020100
Outbox-Position: 1:0/16B3748:2
Outbox-Source: 7000/outbox
Outbox-Event-Id: 0f0e0d0c-0b0a-4908-8706-050403020100
Outbox-Event-Type: placed
Outbox-Event-Version: 2
Outbox-Aggregate-Type: order
Outbox-Aggregate-Id: o-1
Outbox-Aggregate-Version: 7
Outbox-Occurred-At: 2026-02-01T03:04:05.060000Z
traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
Content-Type: application/json
tenant: a b
x: 1

{"total": 0.10, "id": 1234567890123456789}`)

	cloud := encoder(t, func(c *EncoderConfig) { c.Format = FormatCloudEvents })
	expect(t, "cloudevents", text(encode(t, cloud, row(t, nil, "event_id="+testID, "aggregate_type=order", `aggregate_id=o "1" %é`,
		"event_type=placed", "payload={}", "occurred_at=2026-02-01 03:04:05+00"))), `outbox.order.placed
Nats-Msg-Id: 0f0e0d0c-0b0a-4908-8706-050403020100
Outbox-Position: 1:0/16B3748:2
Outbox-Source: 7000/outbox
Outbox-Event-Id: 0f0e0d0c-0b0a-4908-8706-050403020100
ce-specversion: 1.0
ce-id: 0f0e0d0c-0b0a-4908-8706-050403020100
ce-source: 7000/outbox
ce-type: placed
ce-subject: o%20%221%22%20%25%C3%A9
ce-time: 2026-02-01T03:04:05.000000Z
Content-Type: application/json

{}`)
}

func TestPayloadsKeepTheirBytes(t *testing.T) {
	payload := encoder(t, func(c *EncoderConfig) { c.Format, c.Headers = FormatPayload, HeadersFull })
	for _, c := range []struct {
		name        string
		kind        decode.TypeKind
		values      []string
		body        string
		contentType string
		null        string
		envelope    string
	}{
		{"bytea", decode.KindBytea, []string{`payload=\x005cff`}, "\x00\\\xff", "application/octet-stream", "", `"payloadBase64":"AFz/"`},
		{"empty bytea", decode.KindBytea, []string{`payload=\x`}, "", "application/octet-stream", "", `"payloadBase64":""`},
		{"null bytea", decode.KindBytea, nil, "", "application/octet-stream", "true", ``},
		{"json with odd spacing", decode.KindJSON, []string{"payload={ \"a\" :1,\n\"a\":2}"}, "{ \"a\" :1,\n\"a\":2}", "application/json", "", "\"payload\":{ \"a\" :1,\n\"a\":2}"},
		{"json null", decode.KindJSON, []string{"payload=null"}, "null", "application/json", "", `"payload":null`},
		{"text", decode.KindText, []string{"payload=a\"\\\n\x01\u2028ü"}, "a\"\\\n\x01\u2028ü", "text/plain; charset=utf-8", "", "\"payload\":\"a\\\"\\\\\\n\\u0001\u2028ü\""},
		{"empty text", decode.KindText, []string{"payload="}, "", "text/plain; charset=utf-8", "", `"payload":""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			ev := row(t, map[decode.Field]decode.TypeKind{decode.FieldPayload: c.kind}, append([]string{"event_id=" + testID}, c.values...)...)
			m := encode(t, payload, ev)
			expect(t, "body", string(m.Body()), c.body)
			contentType, _ := m.Header("Content-Type")
			expect(t, "content type", contentType, c.contentType)
			null, _ := m.Header("Outbox-Payload-Null")
			expect(t, "null header", null, c.null)
			want := `{"eventId":"` + testID + `"`
			if c.envelope != "" {
				want += "," + c.envelope
			}
			expect(t, "envelope", string(encode(t, encoder(t, nil), ev).Body()), want+"}")
		})
	}
}

func TestTimestampsHaveADocumentedFormForEachValue(t *testing.T) {
	for in, want := range map[string]string{
		"2026-02-01 03:04:05+00":           "2026-02-01T03:04:05.000000Z",
		"2026-02-01 03:04:05.123456+00":    "2026-02-01T03:04:05.123456Z",
		"2026-02-01 03:04:05.5":            "2026-02-01T03:04:05.500000Z",
		"0044-03-15 12:00:00+00 BC":        "-0043-03-15T12:00:00.000000Z",
		"0001-01-01 00:00:00+00 BC":        "0000-01-01T00:00:00.000000Z",
		"294276-12-31 23:59:59.999999+00":  "+294276-12-31T23:59:59.999999Z",
		"4713-01-01 00:00:00+00 BC":        "-4712-01-01T00:00:00.000000Z",
		"infinity":                         "infinity",
		"-infinity":                        "-infinity",
		"0999-01-01 00:00:00+00":           "0999-01-01T00:00:00.000000Z",
		"not a timestamp":                  "not a timestamp",
		"":                                 "",
		"2026-02-01 03:04:05.1234567890+0": "2026-02-01T03:04:05.1234567890+0Z",
	} {
		expect(t, in, string(appendTimestamp(nil, []byte(in))), want)
	}
}

func TestValuesCannotBreakTheSubject(t *testing.T) {
	for in, want := range map[string]string{
		"plain": "plain", "a.b": "a.b", "": "%00", " ": "%20", "a b": "a%20b", "*": "%2A", ">": "%3E", ".": "%2E",
		".a": "%2Ea", "a.": "a%2E", "a..b": "a.%2Eb", "...": "%2E%2E%2E", "a\tb\n": "a%09b%0A", "ü": "ü", "\x7f": "%7F",
		"\u0085": "%C2%85", "\xff": "%FF", "50%": "50%", "a\u00a0b": "a\u00a0b", "$JS": "$JS",
	} {
		got := string(appendToken(nil, []byte(in)))
		expect(t, in, got, want)
		if reason := invalidSubject("x." + got + ".y"); reason != "" {
			t.Errorf("%q makes an invalid subject: %s", in, reason)
		}
	}
}

func TestMessageIDsFromOtherTypesAreQualifiedAndStayDistinct(t *testing.T) {
	kinds := map[decode.Field]decode.TypeKind{decode.FieldEventID: decode.KindText}
	seen := map[string]string{}
	for in, want := range map[string]string{
		"1": "outbox/1", "a": "outbox/a", " a": "outbox/%20a", "p\nq": "outbox/p%0Aq", "p q": "outbox/p%20q", "a/b": "outbox/a%2Fb", "ä%": "outbox/%C3%A4%25",
	} {
		m := encode(t, encoder(t, nil), row(t, kinds, "event_id="+in))
		expect(t, in, m.ID, want)
		id, _ := m.Header("Outbox-Event-Id")
		if other, ok := seen[id]; ok {
			t.Errorf("event ids %q and %q have the same header %q", in, other, id)
		}
		seen[id] = in
	}
}

func TestPoisonIsNamedBeforeItIsPublished(t *testing.T) {
	kind := func(f decode.Field, k decode.TypeKind) map[decode.Field]decode.TypeKind {
		return map[decode.Field]decode.TypeKind{f: k}
	}
	json := func(c *EncoderConfig) { c.Format, c.ContentType = FormatPayload, "application/json; charset=utf-8" }
	for _, c := range []struct {
		name   string
		code   string
		kinds  map[decode.Field]decode.TypeKind
		change func(*EncoderConfig)
		values []string
	}{
		{"no event id", PoisonEventIDNull, nil, nil, nil},
		{"empty event id", PoisonEventIDEmpty, kind(decode.FieldEventID, decode.KindText), nil, []string{"event_id="}},
		{"wildcard topic", PoisonSubjectInvalid, nil, nil, []string{"event_id=" + testID, "topic=a.*"}},
		{"empty topic", PoisonSubjectInvalid, nil, nil, []string{"event_id=" + testID, "topic="}},
		{"topic with an empty token", PoisonSubjectInvalid, nil, nil, []string{"event_id=" + testID, "topic=a..b"}},
		{"API topic", PoisonSubjectReserved, nil, nil, []string{"event_id=" + testID, "topic=$JS.API.STREAM.PURGE.x"}},
		{"inbox topic", PoisonSubjectReserved, nil, nil, []string{"event_id=" + testID, "topic=_INBOX.a"}},
		{"long topic", PoisonSubjectTooLong, nil, nil, []string{"event_id=" + testID, "topic=" + strings.Repeat("a", 1025)}},
		{"headers no object", PoisonHeadersInvalid, nil, nil, []string{"event_id=" + testID, "headers=[1]"}},
		{"header no string", PoisonHeadersInvalid, nil, nil, []string{"event_id=" + testID, `headers={"a":1}`}},
		{"header name", PoisonHeadersInvalid, nil, nil, []string{"event_id=" + testID, `headers={"a b":"1"}`}},
		{"headers too large", PoisonHeadersTooLarge, nil, nil, []string{"event_id=" + testID, `headers={"a":"` + strings.Repeat("x", 65535) + `"}`}},
		{"not a number", PoisonNotNumber, kind(decode.FieldAggregateVersion, decode.KindFloat), nil, []string{"event_id=" + testID, "aggregate_version=NaN"}},
		{"not UTF-8", PoisonNotUTF8, kind(decode.FieldPayload, decode.KindText), nil, []string{"event_id=" + testID, "payload=\xff"}},
		{"not JSON", PoisonNotJSON, kind(decode.FieldPayload, decode.KindText), json, []string{"event_id=" + testID, "payload={"}},
		{"not hex", PoisonBytea, kind(decode.FieldPayload, decode.KindBytea), nil, []string{"event_id=" + testID, `payload=\xzz`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := encoder(t, c.change).Encode(row(t, c.kinds, c.values...))
			var p *Poison
			if !errors.As(err, &p) || p.Code != c.code {
				t.Fatalf("got %v, want poison %s", err, c.code)
			}
			if p.Position != testPosition || (len(c.values) > 0 && c.code != PoisonEventIDEmpty && p.EventID != testID) {
				t.Errorf("poison does not name the event: %v", p)
			}
		})
	}
}

func TestHeadersColumnCannotReplaceOurs(t *testing.T) {
	var ignored []string
	e := encoder(t, func(c *EncoderConfig) { c.HeaderIgnored = func(name string) { ignored = append(ignored, name) } })
	m := encode(t, e, row(t, nil, "event_id="+testID,
		`headers={"nats-msg-id":"x","KV-Operation":"DEL","Outbox-Position":"9","content-TYPE":"z","ok":"a\r\nNats-Msg-Id: y","traceparent":"t"}`))
	expect(t, "ignored", strings.Join(ignored, " "), "KV-Operation Outbox-Position content-TYPE nats-msg-id")
	for name, want := range map[string]string{
		"Nats-Msg-Id": testID, "Outbox-Position": testPosition.String(), "Content-Type": "application/json",
		"ok": "a%0D%0ANats-Msg-Id: y", "traceparent": "t",
	} {
		got, _ := m.Header(name)
		expect(t, name, got, want)
	}
	n := 0
	for range m.Headers {
		n++
	}
	if n != 7 {
		t.Errorf("%d headers, want 7:\n%s", n, text(m))
	}
}

func TestAMessageSharesNoMemoryWithEventOrEncoder(t *testing.T) {
	e := encoder(t, nil)
	first := encode(t, e, row(t, nil, fullRow...))
	before := text(first)
	encode(t, e, row(t, nil, "event_id=11111111-1111-4111-8111-111111111111", "aggregate_type=zzzzzzzzzzzz", "event_type=yyyyyyyy", `payload={"x":"`+strings.Repeat("q", 300)+`"}`))
	expect(t, "first message", text(first), before)
}

func TestSubjectFilters(t *testing.T) {
	for _, c := range []struct {
		filter, subject string
		want            bool
	}{
		{"outbox.>", "outbox.a.b", true}, {"outbox.>", "outbox", false}, {"outbox.>", "outboxx.a", false}, {">", "a", true},
		{"a.*", "a.b", true}, {"a.*", "a.b.c", false}, {"a.*.c", "a.b.c", true}, {"a.b", "a.b", true}, {"a.b", "a", false}, {"a", "a.b", false},
	} {
		if got := subjectMatches(c.filter, c.subject); got != c.want {
			t.Errorf("%q covers %q: %v", c.filter, c.subject, got)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	template, err := ParseTemplate("outbox.{aggregate_type}.{event_type}", decode.DefaultMapping())
	if err != nil {
		b.Fatal(err)
	}
	e := NewEncoder(EncoderConfig{Template: template, Format: FormatEnvelope, Headers: HeadersMinimal, Source: "7000/outbox", SourceName: "outbox"})
	v := decode.Values{}
	for _, pair := range fullRow[:8] {
		name, text, _ := strings.Cut(pair, "=")
		f, _ := decode.ParseField(name)
		v.Fields[f] = []byte(text)
	}
	v.Kinds[decode.FieldEventID], v.Kinds[decode.FieldPayload], v.Kinds[decode.FieldOccurredAt] = decode.KindUUID, decode.KindJSON, decode.KindTimestampTZ
	ev := decode.NewEvent(testPosition, time.Unix(1, 0), decode.TableName{Schema: "public", Name: "outbox"}, v)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.Encode(ev); err != nil {
			b.Fatal(err)
		}
	}
}
