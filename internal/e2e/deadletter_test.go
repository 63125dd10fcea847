package e2e

import (
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestAnEventWhoseTopicTheStreamDoesNotCoverBecomesADeadLetterAndTheOthersFlowOn(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	p, h := o.startHTTPStreaming("--status-interval", fastStatus)
	first := o.insertEvent("a", "1")
	bad := o.insertEvent("a", "2", "elsewhere."+o.stream)
	last := o.insertEvent("a", "3")
	o.waitLetters(bad + " subject-not-in-stream")
	o.expectStored(first, last)
	o.waitConfirmed()
	line := logLine(t, p.WaitLine(`"msg":"dead letter`, testenv.Deadline))
	at, _ := line["position"].(string)
	hint, _ := line["hint"].(string)
	if line["event_id"] != bad || line["reason_code"] != "subject-not-in-stream" || !strings.HasPrefix(at, "1:") || !strings.HasSuffix(hint, "dead-letter retry --event-id "+bad+" --slot "+o.slot+" --stream "+o.stream) {
		t.Errorf("the log line is %v", line)
	}
	h.waitMetric(`outbox_cdc_dead_letters_total{reason="subject-not-in-stream"}`, func(v float64) bool { return v == 1 })
	h.waitMetric("outbox_cdc_dead_letters", func(v float64) bool { return v == 1 })
	if s := o.status(h); s["dead_letters"] != 1.0 || s["held"] != 0.0 {
		t.Errorf("status: %v dead letters, %v held", s["dead_letters"], s["held"])
	}
	h.waitReady()
	stop(t, p)
	want := o.value("SELECT system_identifier::text FROM pg_control_system()") + "/" + o.slot + "|" + at + "|elsewhere." + o.stream + "|1"
	if got := o.value("SELECT concat_ws('|', source, position, subject, attempts) FROM " + letterTable); got != want {
		t.Errorf("the letter says %s, want %s", got, want)
	}
}

// What a row that cannot become a message holds is kept, and those beside it in its
// transaction are published.
func TestTheVeryBytesOfAPoisonEventAreKept(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ typ, payload, bytes string }{
		"JSON with a NUL escape": {"json", `{"b" : "\u0000",  "a":1e400}`, `{"b" : "\u0000",  "a":1e400}`},
		"bytea":                  {"bytea", `\x00ff410a`, "\x00\xffA\n"},
		"text":                   {"text", "ä\tb\n", "ä\tb\n"},
		"jsonb":                  {"jsonb", `{"b":1.50}`, `{"b": 1.50}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newForeignOutbox(t, testenv.Postgres(t).NewDatabase(t), testenv.NATS(t).URL(), []string{
				"CREATE TABLE outbox(id bigserial, event_id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text, topic text, headers json, payload " + test.typ + ")",
			})
			o.startStreaming("--status-interval", fastStatus, "--format", "payload")
			insert := "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, topic, headers, payload) SELECT 'order', 'a', 'placed', t, h::json, $1::text::" + test.typ +
				` FROM (VALUES (NULL, NULL), ('elsewhere', '{"k": "v"}'), ('elsewhere', '{"k": "\u0000"}'), (NULL, NULL)) v(t, h)`
			o.exec("BEGIN; SELECT 1; COMMIT")
			if _, err := o.connect().Exec(testenv.Context(t, testenv.Deadline), insert, test.payload); err != nil {
				t.Fatal(err)
			}
			rows := o.rows()
			o.waitLetters(rows[1]+" subject-not-in-stream", rows[2]+" subject-not-in-stream")
			o.expectStored(rows[0], rows[3])
			o.waitConfirmed()
			want := hex.EncodeToString([]byte(test.bytes))
			if got := o.value("SELECT string_agg(encode(payload, 'hex') || coalesce(headers::text, ' NULL'), '|' ORDER BY id) FROM " + letterTable); got != want+`{"k": "v"}|`+want+" NULL" {
				t.Errorf("kept is %s, want twice %s", got, want)
			}
			if got := hex.EncodeToString(o.ours()[0].Data); got != want {
				t.Errorf("published is %s, want %s", got, want)
			}
		})
	}
}

func TestARowThatCannotBecomeAMessageIsADeadLetterAmongGoodOnesOfItsTransaction(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		columns, good, bad, code string
		args                     []string
	}{
		"NaN in a number":             {"aggregate_version float8, payload jsonb", "1, '1'", "'NaN', '2'", "not-a-number", nil},
		"text where JSON is promised": {"payload text", "'[1]'", "'[1'", "not-json", []string{"--format", "payload", "--content-type", "application/json"}},
		"event id that is NULL":       {"payload jsonb", "'1'", "'2'", "event-id-null", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newForeignOutbox(t, testenv.Postgres(t).NewDatabase(t), testenv.NATS(t).URL(), []string{
				"CREATE TABLE outbox(id bigserial, event_id uuid, aggregate_type text, aggregate_id text, event_type text, " + test.columns + ")",
			})
			o.startStreaming(append([]string{"--status-interval", fastStatus}, test.args...)...)
			badID := "'" + uuidOf(2) + "'"
			if test.code == "event-id-null" {
				badID = "NULL"
			}
			o.exec(fmt.Sprintf("INSERT INTO outbox VALUES (1, '%s', 'order', 'a', 'placed', %s), (2, %s, 'order', 'a', 'placed', %s), (3, '%s', 'order', 'a', 'placed', %s)",
				uuidOf(1), test.good, badID, test.bad, uuidOf(3), test.good))
			o.expectStored(uuidOf(1), uuidOf(3))
			o.waitConfirmed()
			got := o.value("SELECT concat_ws(' ', coalesce(event_id, 'NULL'), reason_code, split_part(position, ':', 3), convert_from(payload, 'UTF8')) FROM " + letterTable)
			if want := strings.Trim(badID, "'") + " " + test.code + " 1 " + o.value("SELECT payload::text FROM outbox WHERE id = 2"); got != want {
				t.Errorf("the letter is %q, want %q", got, want)
			}
		})
	}
}

func uuidOf(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// Headers count towards the limit. What is just small enough is found from what the first
// letter says of its size.
func TestMessagesAroundMaxPayloadAreDeadLettersFromTheFirstByteTooMany(t *testing.T) {
	t.Parallel()
	const maxPayload = 64 << 10
	o := newOutbox(t, testenv.NATSProcess(t, fmt.Sprintf("max_payload: %d", maxPayload)).URL())
	o.startStreaming("--status-interval", fastStatus, "--format", "payload")
	insert := func(bytes int) string { return o.insertEvent("a", text(bytes-2)) }
	first := insert(10)
	over := insert(maxPayload + 1)
	o.waitLetters(over + " message-too-large")
	size := regexp.MustCompile(`^(\d+) bytes with headers`).FindStringSubmatch(o.value("SELECT reason FROM " + letterTable))
	if size == nil {
		t.Fatal(o.value("SELECT reason FROM " + letterTable))
	}
	whole, err := strconv.Atoi(size[1])
	if err != nil {
		t.Fatal(err)
	}
	fits := maxPayload - (whole - (maxPayload + 1))
	less, exact := insert(maxPayload-1), insert(maxPayload)
	fitting, tooMany := insert(fits), insert(fits+1)
	last := insert(10)
	o.expectStored(first, fitting, last)
	o.waitLetters(over+" message-too-large", less+" message-too-large", exact+" message-too-large", tooMany+" message-too-large")
	o.waitConfirmed()
}

// The stream's limit is lowered while messages that were fine are on their way: the server
// refuses them, and what becomes of them is decided when they come by again.
func TestMessagesThatTheServerRefusesInFlightAreDeadLettersAndSmallOnesFlowOn(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"dead-letter", "hold-aggregate"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, testenv.NATS(t).URL())
			p, h := o.startHTTPStreaming("--status-interval", fastStatus, "--on-poison", policy)
			first := o.insertEvent("a", "1")
			o.expectStored(first)
			o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 1024 })
			large := o.insertEvent("a", text(2000))
			p.WaitLine(`"msg":"reading again`, testenv.Deadline)
			behind, other := o.insertEvent("a", "3"), o.insertEvent("b", "4")
			second := o.insertEvent("b", text(3000))
			last, of := o.insertEvent("b", "6"), o.insertEvent("c", "7")
			if policy == "dead-letter" {
				o.waitLetters(large+" message-too-large", second+" message-too-large")
				o.expectStored(first, behind, other, last, of)
			} else {
				o.waitLetters(large+" message-too-large", behind+" held", second+" message-too-large", last+" held")
				o.expectStored(first, other, of)
			}
			o.waitConfirmed()
			for _, line := range p.Lines() {
				if strings.Contains(line, `"msg":"failed"`) || strings.Contains(line, `"msg":"backing off"`) || strings.Contains(line, `"msg":"standby"`) {
					t.Errorf("a message that was refused looks like a failure: %s", line)
				}
			}
			if v, _ := h.metric(`outbox_cdc_reconnects_total{side="postgres"}`); v != 0 {
				t.Errorf("%v reconnects are counted", v)
			}
		})
	}
}

func TestAnEventThatTheStreamHoldsIsNoDeadLetterWhateverItIsToday(t *testing.T) {
	t.Parallel()
	o := newForeignOutbox(t, testenv.Postgres(t).NewDatabase(t), testenv.NATS(t).URL(), []string{
		"CREATE TABLE outbox(id bigserial, event_id uuid DEFAULT gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text, payload text)",
	})
	p := o.startStreaming("--status-interval", "10m", "--takeover-after", "off", "--format", "payload")
	o.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'placed', 'no JSON')")
	o.waitStored(1)
	p.Kill()
	o.exec("INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'a', 'placed', 'nor this')")
	rows := o.rows()
	o.startStreaming("--status-interval", fastStatus, "--format", "payload", "--content-type", "application/json")
	o.waitLetters(rows[1] + " not-json")
	o.waitConfirmed()
	o.expectStored(rows[0])
}
