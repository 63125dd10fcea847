package e2e

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// headersOf returns the headers of a message, without those that depend on the run.
func headersOf(m testenv.Message) map[string]string {
	out := map[string]string{}
	for name := range m.Header {
		switch name {
		case "Outbox-Position", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence":
		default:
			out[name] = m.Header.Get(name)
		}
	}
	return out
}

// sourceOf is what Outbox-Source has to be for this outbox.
func (o *outbox) sourceOf() string {
	o.tb.Helper()
	return testenv.Query(o.tb, o.databaseURL, "SELECT system_identifier::text FROM pg_control_system()")[0] + "/" + o.slot
}

func expectHeaders(tb testing.TB, m testenv.Message, want map[string]string) {
	tb.Helper()
	got := headersOf(m)
	if maps.Equal(got, want) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			tb.Errorf("unexpected header %s: %q", name, got[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			tb.Errorf("header %s: %q, want %q", name, got[name], want[name])
		}
	}
}

const (
	goldenID    = "0195f2b0-1111-7000-8000-00000000abcd"
	goldenTrace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
)

// insertGolden commits one event of which each byte is known.
func (o *outbox) insertGolden() {
	o.tb.Helper()
	o.exec(`INSERT INTO ` + o.table + ` (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, event_version, payload, traceparent, occurred_at)
		VALUES ('` + goldenID + `', 'order', 'A "1"', 7, 'placed', 2,
		'{"amount": 0.10, "id": 12345678901234567890, "name": "Ångström <&>", "big": 1e400, "nested": {"b": [1, null, true]}}',
		'` + goldenTrace + `', '2026-03-01 12:34:56.7+02')`)
}

func TestEnvelopeIsByteExactWithItsMinimalHeaders(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insertGolden()
	o.startStreaming()
	m := o.message()
	payload := testenv.Query(t, o.databaseURL, "SELECT payload::text FROM outbox")[0]
	want := `{"eventId":"` + goldenID + `","eventType":"placed","eventVersion":2,"aggregateType":"order","aggregateId":"A \"1\"",` +
		`"aggregateVersion":7,"occurredAt":"2026-03-01T10:34:56.700000Z","traceId":"4bf92f3577b34da6a3ce929d0e0e4736","payload":` + payload + `}`
	if string(m.Data) != want {
		t.Errorf("body\n%s\nwant\n%s", m.Data, want)
	}
	for _, number := range []string{"0.10", "12345678901234567890", "1000000000000"} {
		if !strings.Contains(string(m.Data), number) {
			t.Errorf("number %s has changed on the way: %s", number, m.Data)
		}
	}
	if m.Subject != o.stream+".order.placed" {
		t.Errorf("subject %q", m.Subject)
	}
	expectHeaders(t, m, map[string]string{
		"Nats-Msg-Id": goldenID, "Outbox-Event-Id": goldenID, "Outbox-Source": o.sourceOf(),
		"traceparent": goldenTrace, "Content-Type": "application/json",
	})
	if got := commitLSN(t, m); got == 0 || !strings.HasPrefix(m.Header.Get("Outbox-Position"), "1:") || !strings.HasSuffix(m.Header.Get("Outbox-Position"), ":0") {
		t.Errorf("position %q", m.Header.Get("Outbox-Position"))
	}
}

func TestColumnsThatAreNullAreAbsentFromEnvelopeAndHeaders(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, occurred_at) VALUES ('` + goldenID + `', 'order', '', 'placed', '-infinity')`)
	o.startStreaming("--headers", "full")
	m := o.message()
	want := `{"eventId":"` + goldenID + `","eventType":"placed","eventVersion":1,"aggregateType":"order","aggregateId":"","occurredAt":"-infinity"}`
	if string(m.Data) != want {
		t.Errorf("body\n%s\nwant\n%s", m.Data, want)
	}
	expectHeaders(t, m, map[string]string{
		"Nats-Msg-Id": goldenID, "Outbox-Event-Id": goldenID, "Outbox-Source": o.sourceOf(), "Content-Type": "application/json",
		"Outbox-Event-Type": "placed", "Outbox-Event-Version": "1", "Outbox-Aggregate-Type": "order", "Outbox-Aggregate-Id": "",
		"Outbox-Occurred-At": "-infinity",
	})
}

func TestFullHeadersRepeatTheAttributes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insertGolden()
	o.startStreaming("--headers", "full", "--source", "shop", "--content-type", "application/vnd.shop+json")
	expectHeaders(t, o.message(), map[string]string{
		"Nats-Msg-Id": goldenID, "Outbox-Event-Id": goldenID,
		"Outbox-Source":     strings.TrimSuffix(o.sourceOf(), o.slot) + "shop",
		"Outbox-Event-Type": "placed", "Outbox-Event-Version": "2", "Outbox-Aggregate-Type": "order",
		"Outbox-Aggregate-Id": `A "1"`, "Outbox-Aggregate-Version": "7", "Outbox-Occurred-At": "2026-03-01T10:34:56.700000Z",
		"traceparent": goldenTrace, "Content-Type": "application/vnd.shop+json",
	})
}

func TestFormatPayloadIsTheBytesOfTheColumn(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	tests := []struct {
		name, columnType, value string // value as SQL
		body, contentType       string
		null                    bool
	}{
		{name: "jsonb", columnType: "jsonb", value: `'{"b": 1, "a":[1.50]}'`, body: `{"a": [1.50], "b": 1}`, contentType: "application/json"},
		{name: "json", columnType: "json", value: `'{"b":1, "b" : 2,"a":[1.50]}'`, body: `{"b":1, "b" : 2,"a":[1.50]}`, contentType: "application/json"},
		{name: "text", columnType: "text", value: `E'line\n Ångström "x" '`, body: "line\n Ångström \"x\" ", contentType: "text/plain; charset=utf-8"},
		{name: "varchar", columnType: "varchar(40)", value: `'short'`, body: "short", contentType: "text/plain; charset=utf-8"},
		{name: "bytea", columnType: "bytea", value: `'\x005cff0a41'`, body: "\x00\x5c\xff\nA", contentType: "application/octet-stream"},
		{name: "empty bytea", columnType: "bytea", value: `'\x'`, contentType: "application/octet-stream"},
		{name: "empty text", columnType: "text", value: `''`, contentType: "text/plain; charset=utf-8"},
		{name: "NULL", columnType: "bytea", value: `NULL`, contentType: "application/octet-stream", null: true},
		{name: "JSON null", columnType: "jsonb", value: `'null'`, body: "null", contentType: "application/json"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, server.URL())
			o.exec("ALTER TABLE outbox ALTER payload TYPE "+test.columnType+" USING NULL",
				"INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload) VALUES ('"+goldenID+"', 'order', 'a', 'placed', "+test.value+")")
			o.startStreaming("--format", "payload", "--headers", "minimal")
			m := o.message()
			if string(m.Data) != test.body {
				t.Errorf("body %q, want %q", m.Data, test.body)
			}
			want := map[string]string{
				"Nats-Msg-Id": goldenID, "Outbox-Event-Id": goldenID, "Outbox-Source": o.sourceOf(), "Content-Type": test.contentType,
			}
			if test.null {
				want["Outbox-Payload-Null"] = "true"
			}
			expectHeaders(t, m, want)
		})
	}
}

func TestRowsSetOnlyTheHeadersThatAreTheirs(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, traceparent, headers) VALUES ('` + goldenID + `', 'order', 'a', 'placed', '` + goldenTrace + `',
		'{"tenant": "eu 1", "X-Weird_Name!": "a\r\nNats-Msg-Id: forged\tb\u007f", "empty": "", "unicode": "Å",
		  "Nats-Msg-Id": "forged", "nats-ttl": "1s", "NATS-Rollup": "all", "Nats-Expected-Last-Sequence": "0", "KV-Operation": "PURGE", "kv-operation": "DEL",
		  "Outbox-Position": "forged", "outbox-source": "forged", "Outbox-Event-Id": "forged", "outbox-event-type": "forged",
		  "Outbox-Republished": "true", "Outbox-Original-Position": "forged", "Outbox-Payload-Null": "true", "content-type": "forged", "Traceparent": "forged"}')`)
	p := o.startStreaming()
	expectHeaders(t, o.message(), map[string]string{
		"Nats-Msg-Id": goldenID, "Outbox-Event-Id": goldenID, "Outbox-Source": o.sourceOf(), "traceparent": goldenTrace,
		"Content-Type": "application/json", "tenant": "eu 1", "X-Weird_Name!": "a%0D%0ANats-Msg-Id: forged%09b%7F", "empty": "", "unicode": "Å",
	})
	for _, name := range []string{"Nats-Msg-Id", "nats-ttl", "kv-operation", "Outbox-Position", "content-type"} {
		if !slices.ContainsFunc(p.Lines(), func(line string) bool { return strings.Contains(line, `"header":"`+name+`"`) }) {
			t.Errorf("no line says that header %s was left out", name)
		}
	}
}

func TestWithHaltHeadersThatNATSCannotCarryStopTheForwarderAndNameTheEvent(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	for name, headers := range map[string]string{
		"blank in a name":   `'{"a b": "x"}'`,
		"colon in a name":   `'{"a:b": "x"}'`,
		"empty name":        `'{"": "x"}'`,
		"name beyond ASCII": `'{"Å": "x"}'`,
		"number as value":   `'{"a": 1}'`,
		"no object":         `'["a"]'`,
		"over 65,535 bytes": `jsonb_build_object('a', repeat('x', 65500))`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, server.URL())
			o.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, headers) VALUES ('` + goldenID + `', 'order', 'a', 'placed', ` + headers + `)`)
			failure := expectStop(t, o.start("--on-poison", "halt"), goldenID, "position 1:", "headers-")
			if strings.Contains(failure, "xxxxxx") {
				t.Errorf("the failure repeats the value: %.300s", failure)
			}
			if stored := o.stored(); len(stored) > 0 {
				t.Errorf("stream holds %v", testenv.MessageIDs(stored))
			}
		})
	}
}

func TestHeadersJustBelowTheLimitPass(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, headers) VALUES ('order', 'a', 'placed', jsonb_build_object('a', repeat('x', 64500)))`)
	o.startStreaming()
	if got := o.message().Header.Get("a"); len(got) != 64500 {
		t.Errorf("header of %d bytes", len(got))
	}
}

func TestMessageIDOfAnIDThatIsNoUUIDIsQualifiedAndEncoded(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.exec("ALTER TABLE outbox ALTER event_id DROP DEFAULT, ALTER event_id TYPE text")
	ids := []string{" a", "a", "p\nq", "p q", "a/b", "Å", "x%20"}
	for _, id := range ids {
		conn := o.connect()
		if _, err := conn.Exec(testenv.Context(t, testenv.Deadline), "INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type) VALUES ($1, 'order', 'a', 'placed')", id); err != nil {
			t.Fatal(err)
		}
	}
	o.startStreaming()
	o.waitStored(len(ids))
	want := []string{"%20a", "a", "p%0Aq", "p%20q", "a%2Fb", "%C3%85", "x%2520"}
	for i, m := range o.ours() {
		if got := m.Header.Get("Nats-Msg-Id"); got != o.slot+"/"+want[i] {
			t.Errorf("id %q: message id %q, want %q", ids[i], got, o.slot+"/"+want[i])
		}
	}
}

func TestSubjectIsTheTopicOrTheTemplateWithSafeTokens(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	type row struct{ aggregateType, eventType, topic, subject string }
	rows := []row{
		{"order", "placed", "", "order.placed"},
		{"order.item", "v1.placed", "", "order.item.v1.placed"},
		{"a b", "x*y", "", "a%20b.x%2Ay"},
		{">", ".p..q.", "", "%3E.%2Ep.%2Eq%2E"},
		{"", "tab\there", "", "%00.tab%09here"},
		{"Ångström", "100%", "", "Ångström.100%"},
		{"order", "placed", "own.subject", "own.subject"},
	}
	conn := o.connect()
	for _, r := range rows {
		var topic *string
		if r.topic != "" {
			full := o.stream + "." + r.topic
			topic = &full
		}
		if _, err := conn.Exec(testenv.Context(t, testenv.Deadline), "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, topic) VALUES ($1, 'a', $2, $3)", r.aggregateType, r.eventType, topic); err != nil {
			t.Fatal(err)
		}
	}
	o.startStreaming()
	o.expectAll()
	for i, m := range o.ours() {
		if want := o.stream + "." + rows[i].subject; m.Subject != want {
			t.Errorf("%v: subject %q, want %q", rows[i], m.Subject, want)
		}
	}
}

func TestWithHaltATopicThatMustNotBePublishedToStopsTheForwarderAndNamesTheEvent(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	long := strings.Repeat("x", 1100)
	for name, test := range map[string]struct{ topic, code string }{
		"JetStream API":          {"$JS.API.STREAM.PURGE.%s", "subject-reserved"},
		"system":                 {"$SYS.REQ.%s", "subject-reserved"},
		"inbox":                  {"_INBOX.%s", "subject-reserved"},
		"not covered":            {"elsewhere.%s", "subject-not-in-stream"},
		"empty token":            {"%s..a", "subject-invalid"},
		"wildcard":               {"%s.>", "subject-invalid"},
		"blank":                  {"%s.a b", "subject-invalid"},
		"longer than 1024 bytes": {"%s." + long, "subject-too-long"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, server.URL())
			o.insert("before", 3)
			o.waitForwarded()
			topic := fmt.Sprintf(test.topic, o.stream)
			sub, err := testenv.ConnectNATS(t, server.URL()).SubscribeSync(topic)
			listens := err == nil
			o.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, topic, payload) VALUES ('` + goldenID + `', 'order', 'a', 'placed', '` + topic + `', 'null')`)
			failure := expectStop(t, o.start("--on-poison", "halt"), goldenID, "position 1:", test.code)
			expectSlotBefore(t, o, failure)
			if listens {
				if n, _, err := sub.Pending(); err != nil || n > 0 {
					t.Errorf("%d messages went to %s (%v)", n, topic, err)
				}
			}
			o.expectEvents(o.ours(), o.rows()[:3])
		})
	}
}

// waitForwarded runs a forwarder until all that is committed is stored and confirmed.
func (o *outbox) waitForwarded() {
	o.tb.Helper()
	p := o.startStreaming("--status-interval", "50ms")
	o.expectAll()
	o.waitConfirmed()
	p.Kill()
}

// The acknowledgement of the good events and the finding that the next one can never be
// stored may come in the same moment.
func TestWhatIsAcknowledgedIsConfirmedAlsoWhenTheNextEventEndsTheForwarder(t *testing.T) {
	server := testenv.NATSProcess(t)
	o := newOutbox(t, server.URL())
	p := o.startStreaming("--on-poison", "halt")
	o.insert("before", 1)
	o.waitConfirmed()
	const maxMsgSize = 3000
	o.updateStream(func(c *jetstream.StreamConfig) { c.MaxMsgSize = maxMsgSize })
	server.Kill()
	p.WaitLine(`"msg":"backing off"`, testenv.Deadline)
	o.insert("good", 5)
	good := o.walEndLSN()
	o.exec(`INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 'order', 'big', 'placed', to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 300) i`)
	server.Start()
	p.WaitExit(3, testenv.Deadline)
	if n := len(o.ours()); n != 6 {
		t.Fatalf("%d events are stored, want 6", n)
	}
	if confirmed := parseLSN(t, o.confirmed()); confirmed < good {
		t.Errorf("confirmed %s, the good events end at %s", confirmed, good)
	}
}
