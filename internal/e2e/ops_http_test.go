package e2e

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestMetricsHaveTheNamesOfTheContractAndMove(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	o := newOutbox(t, server.URL())
	_, health := o.startHTTPStreaming("--status-interval", "100ms", "--ack-timeout", "1s")
	o.insertTx("a", 100)
	o.expectAll()
	o.waitConfirmed()
	for _, series := range []string{
		"outbox_cdc_events_published_total",
		`outbox_cdc_events_skipped_total{reason="already-stored"}`, `outbox_cdc_events_skipped_total{reason="duplicate"}`,
		"outbox_cdc_publish_retries_total", "outbox_cdc_commit_to_ack_seconds_count", "outbox_cdc_publish_seconds_count",
		"outbox_cdc_in_flight_events", "outbox_cdc_in_flight_bytes", "outbox_cdc_oldest_unacked_seconds",
		"outbox_cdc_slot_lag_bytes", "outbox_cdc_slot_retained_bytes", "outbox_cdc_confirmed_lsn",
		"outbox_cdc_order_violations_total", `outbox_cdc_reconnects_total{side="postgres"}`, `outbox_cdc_reconnects_total{side="nats"}`,
		`outbox_cdc_state{state="streaming"}`,
	} {
		health.waitMetric(series, func(float64) bool { return true })
	}
	if _, body := health.get("/metrics"); !strings.Contains(body, "\noutbox_cdc_build_info{") || !strings.Contains(body, "\noutbox_cdc_dead_letters_total{") {
		t.Errorf("build_info or dead_letters_total is missing in\n%s", body)
	}
	is := func(want float64) func(float64) bool { return func(got float64) bool { return got == want } }
	health.waitMetric("outbox_cdc_events_published_total", is(100))
	health.waitMetric("outbox_cdc_commit_to_ack_seconds_count", is(100))
	health.waitMetric("outbox_cdc_publish_seconds_count", is(100))
	health.waitMetric("outbox_cdc_in_flight_events", is(0))
	health.waitMetric("outbox_cdc_in_flight_bytes", is(0))
	health.waitMetric("outbox_cdc_oldest_unacked_seconds", is(0))
	health.waitMetric(`outbox_cdc_state{state="streaming"}`, is(1))
	confirmed := o.confirmedLSN()
	health.waitMetric("outbox_cdc_confirmed_lsn", func(at float64) bool { return at >= float64(confirmed) })

	server.Stop()
	o.insertTx("b", 50)
	health.waitMetric(`outbox_cdc_state{state="backing off"}`, is(1))
	health.waitMetric(`outbox_cdc_state{state="streaming"}`, is(0))
	health.waitMetric("outbox_cdc_oldest_unacked_seconds", func(seconds float64) bool { return seconds > 0.1 })
	health.waitMetric("outbox_cdc_slot_lag_bytes", func(bytes float64) bool { return bytes > 0 })
	if err := server.Start(testenv.Context(t, testenv.Deadline)); err != nil {
		t.Fatal(err)
	}
	o.expectAll()
	health.waitMetric("outbox_cdc_events_published_total", is(150))
	health.waitMetric(`outbox_cdc_reconnects_total{side="nats"}`, is(1))
	health.waitMetric(`outbox_cdc_state{state="streaming"}`, is(1))
}

func TestHealthAndStatusSayWhatTheForwarderDoes(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	o := newOutbox(t, server.URL())
	_, health := o.startHTTPStreaming()
	o.insert("a", 3)
	o.expectAll()
	if code, body := health.get("/livez"); code != http.StatusOK || !strings.Contains(body, `"live":true`) {
		t.Errorf("GET /livez: %d %s", code, body)
	}
	if code, body := health.get("/readyz"); code != http.StatusOK || !strings.Contains(body, `"ready":true`) {
		t.Errorf("GET /readyz: %d %s", code, body)
	}
	if code, body := health.get("/"); code != http.StatusOK || !strings.Contains(body, "<html") || !strings.Contains(body, o.slot) {
		t.Errorf("GET /: %d %.300s", code, body)
	}
	if code, _ := health.get("/elsewhere"); code != http.StatusNotFound {
		t.Errorf("GET /elsewhere: %d", code)
	}
	status := o.status(health)
	for _, name := range []string{"slot", "publication", "stream", "last_event", "oldest_undelivered_seconds", "dead_letters", "held", "requests", "state"} {
		if _, ok := status[name]; !ok {
			t.Errorf("GET /status has no %q: %v", name, slices.Sorted(maps.Keys(status)))
		}
	}
	if status["state"] != "streaming" {
		t.Errorf("state %v", status["state"])
	}
	slot, _ := status["slot"].(map[string]any)
	if slot["name"] != o.slot || slot["exists"] != true || slot["active"] != true {
		t.Errorf("slot %v", slot)
	}
	stream, _ := status["stream"].(map[string]any)
	if stream["name"] != o.stream || stream["messages"] != 3.0 || stream["last_sequence"] != 3.0 {
		t.Errorf("stream %v", stream)
	}
	last, _ := status["last_event"].(map[string]any)
	newest := o.ours()[2]
	if last["event_id"] != o.rows()[2] || last["subject"] != newest.Subject || last["sequence"] != 3.0 || last["position"] != newest.Header.Get("Outbox-Position") {
		t.Errorf("last event %v, want %v", last, newest.Header)
	}
	server.Stop()
	health.waitRed()
	if code, body := health.get("/livez"); code != http.StatusOK {
		t.Errorf("GET /livez while NATS is away: %d %s", code, body)
	}
	if code, body := health.get("/"); code != http.StatusOK {
		t.Errorf("GET / while NATS is away: %d %.300s", code, body)
	}
}

// status reads GET /status.
func (o *outbox) status(h *httpSide) map[string]any {
	o.tb.Helper()
	code, body := h.get("/status")
	if code != http.StatusOK {
		o.tb.Fatalf("GET /status: %d %s", code, body)
	}
	var status map[string]any
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		o.tb.Fatal(err)
	}
	return status
}

func TestStandbyIsReady(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming()
	p, health := o.startHTTP()
	p.WaitLine(`"msg":"standby"`, testenv.Deadline)
	if body := health.waitCode("/readyz", http.StatusOK); !strings.Contains(body, "standby") {
		t.Errorf("GET /readyz: %s", body)
	}
}

func TestHTTPAddressThatIsTakenIsAnExitWithAHint(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	_, health := o.startHTTPStreaming()
	address := strings.TrimPrefix(health.base, "http://")
	p := o.start("--http", address)
	expectStop(t, p, address, "--http")
}

func TestEachPublishedEventHasOneLineAtDebugLevelOnly(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload, traceparent)
		VALUES ('` + goldenID + `', 'order', 'agg-1', 'placed', '{"text": "Marmalade"}', '` + goldenTrace + `')`)
	quiet := o.startStreaming()
	m := o.message()
	o.waitConfirmed()
	quiet.Kill()
	if lines := strings.Join(quiet.Lines(), "\n"); strings.Contains(lines, goldenID) {
		t.Errorf("an event has a line at info level:\n%s", lines)
	}

	loud := o.startStreaming("--log-level", "debug")
	o.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload, traceparent)
		SELECT event_id::text::uuid, aggregate_type, aggregate_id, event_type, payload, traceparent FROM
		(VALUES ('0195f2b0-2222-7000-8000-00000000abcd', 'order', 'agg-2', 'placed', '{"text": "Marmalade"}'::jsonb, '` + goldenTrace + `')) v(event_id, aggregate_type, aggregate_id, event_type, payload, traceparent)`)
	line := logLine(t, loud.WaitLine(`"msg":"published"`, testenv.Deadline))
	o.waitStored(2)
	stored := o.ours()[1]
	for name, want := range map[string]any{
		"level": "DEBUG", "event_id": "0195f2b0-2222-7000-8000-00000000abcd", "aggregate_id": "agg-2",
		"trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "subject": stored.Subject,
		"position": stored.Header.Get("Outbox-Position"), "sequence": float64(stored.Sequence),
	} {
		if line[name] != want {
			t.Errorf("%s is %v, want %v", name, line[name], want)
		}
	}
	if m.Sequence != 1 || stored.Sequence != 2 {
		t.Errorf("sequences %d and %d", m.Sequence, stored.Sequence)
	}
	if lines := strings.Join(loud.Lines(), "\n"); strings.Contains(lines, "Marmalade") {
		t.Errorf("a payload is logged:\n%s", lines)
	}
}
