package metrics

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// contractNames are the names that users rely on, with the labels of each.
var contractNames = map[string][]string{
	"outbox_cdc_events_published_total": nil,
	"outbox_cdc_events_skipped_total":   {"reason"},
	"outbox_cdc_publish_retries_total":  nil,
	"outbox_cdc_dead_letters_total":     {"reason"},
	"outbox_cdc_dead_letters":           nil,
	"outbox_cdc_commit_to_ack_seconds":  nil,
	"outbox_cdc_publish_seconds":        nil,
	"outbox_cdc_in_flight_events":       nil,
	"outbox_cdc_in_flight_bytes":        nil,
	"outbox_cdc_oldest_unacked_seconds": nil,
	"outbox_cdc_slot_lag_bytes":         nil,
	"outbox_cdc_slot_retained_bytes":    nil,
	"outbox_cdc_slot_safe_bytes":        nil,
	"outbox_cdc_confirmed_lsn":          nil,
	"outbox_cdc_order_violations_total": nil,
	"outbox_cdc_reconnects_total":       {"side"},
	"outbox_cdc_state":                  {"state"},
	"outbox_cdc_build_info":             {"goversion", "revision", "version"},
}

func TestEveryNameOfTheContractIsExportedWithItsLabelsAndAHelpText(t *testing.T) {
	m := New("v1.2.3", "abcdef")
	setEverything(m)
	got := gather(t, m)
	for name, labels := range contractNames {
		f, ok := got[name]
		if !ok {
			t.Errorf("%s is missing", name)
			continue
		}
		if f.GetHelp() == "" {
			t.Errorf("%s has no help text", name)
		}
		if have := labelNames(f.GetMetric()[0]); !slices.Equal(have, labels) {
			t.Errorf("%s has labels %v, want %v", name, have, labels)
		}
	}
	for name := range got {
		if _, ok := contractNames[name]; !ok && strings.HasPrefix(name, namespace) {
			t.Errorf("%s is exported and not in the contract", name)
		}
	}
}

func TestWhatIsNotKnownIsAbsentAndNeverZero(t *testing.T) {
	m := New("v", "r")
	unknown := []string{"slot_lag_bytes", "slot_retained_bytes", "slot_safe_bytes", "confirmed_lsn", "dead_letters"}
	absent := func(names ...string) {
		t.Helper()
		got := gather(t, m)
		for _, n := range names {
			if f, ok := got[namespace+n]; ok {
				t.Errorf("%s is %v, want it absent", n, f.GetMetric())
			}
		}
	}
	absent(unknown...)

	lag, zero := 4096.0, 0.0
	m.SetSlot(&lag, &zero, nil)
	absent("slot_safe_bytes")
	if v := value(t, m, "slot_lag_bytes"); v != lag {
		t.Errorf("slot_lag_bytes is %v, want %v", v, lag)
	}
	if v := value(t, m, "slot_retained_bytes"); v != 0 {
		t.Errorf("slot_retained_bytes is %v; a known 0 must be shown", v)
	}

	m.SetSlot(nil, nil, nil) // the server went away
	absent("slot_lag_bytes", "slot_retained_bytes", "slot_safe_bytes")
}

func TestTheAgeOfTheOldestUnackedEventGrowsWhileNothingMoves(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	m := newMetrics("v", "r", func() time.Time { return now })
	if v := value(t, m, "oldest_unacked_seconds"); v != 0 {
		t.Fatalf("with nothing unacknowledged it is %v, want 0", v)
	}
	m.SetOldestUnacked(now.Add(-1500 * time.Millisecond))
	if v := value(t, m, "oldest_unacked_seconds"); v != 1.5 {
		t.Fatalf("it is %v, want 1.5", v)
	}
	now = now.Add(time.Minute)
	if v := value(t, m, "oldest_unacked_seconds"); v != 61.5 {
		t.Fatalf("a minute later it is %v, want 61.5", v)
	}
	m.SetOldestUnacked(now.Add(time.Second)) // the server's clock is ahead
	if v := value(t, m, "oldest_unacked_seconds"); v != 0 {
		t.Fatalf("with a commit time in the future it is %v, want 0", v)
	}
	m.SetOldestUnacked(time.Time{})
	now = now.Add(time.Minute)
	if v := value(t, m, "oldest_unacked_seconds"); v != 0 {
		t.Fatalf("after the ack it is %v, want 0", v)
	}
}

func TestExactlyOneStateIsOne(t *testing.T) {
	m := New("v", "r")
	for _, name := range States() {
		m.SetState(name)
		var on []string
		for _, s := range gather(t, m)[namespace+"state"].GetMetric() {
			if s.GetGauge().GetValue() == 1 {
				on = append(on, s.GetLabel()[0].GetValue())
			}
		}
		if !slices.Equal(on, []string{name}) {
			t.Errorf("in state %q the gauge is 1 for %q", name, on)
		}
	}
	m.SetState("something new")
	if f := gather(t, m)[namespace+"state"]; len(f.GetMetric()) != len(States()) {
		t.Errorf("an unknown state made a series of its own: %v", f)
	}
}

// 50,000 events with 10,000 ids and 1,000 types, of which a part fails, leave the
// number of series as it was.
func TestTheNumberOfSeriesDoesNotDependOnTheData(t *testing.T) {
	m := New("v", "r")
	setEverything(m)
	before := series(t, m)
	for i := range 50_000 {
		m.AddPublished(1)
		m.ObserveCommitToAck(float64(i) / 1000)
		m.ObservePublish(float64(i) / 100_000)
		m.SetInFlight(i%4096, int64(i))
		m.SetConfirmedLSN(uint64(i))
		m.AddDeadLetter(fmt.Sprintf("reason of aggregate %d, type %d", i%10_000, i%1000))
		m.SetState(fmt.Sprintf("state %d", i))
		m.AddSkipped(SkippedDuplicate, 1)
		m.AddReconnect(SideNATS)
	}
	if after := series(t, m); after != before {
		t.Errorf("%d series before, %d after", before, after)
	}
	for _, s := range gather(t, m)[namespace+"dead_letters_total"].GetMetric() {
		if s.GetLabel()[0].GetValue() == otherReason && s.GetCounter().GetValue() != 50_001 {
			t.Errorf("unlisted reasons were counted %v times, want 50001", s.GetCounter().GetValue())
		}
	}
}

func TestNoCallCanPanicOrTurnACounterBack(t *testing.T) {
	m := New("v", "r")
	m.AddPublished(3)
	m.AddPublished(-1)
	m.AddRetries(-1)
	m.ObserveCommitToAck(-2)
	m.ObservePublish(-2)
	m.SetSlot(nil, nil, nil)
	m.SetConfirmedLSN(math.MaxUint64)
	if v := gather(t, m)[namespace+"events_published_total"].GetMetric()[0].GetCounter().GetValue(); v != 3 {
		t.Errorf("published is %v, want 3", v)
	}
}

func TestTheHistogramsReachFromUnderAMillisecondToMinutes(t *testing.T) {
	m := New("v", "r")
	got := gather(t, m)
	for _, name := range []string{"commit_to_ack_seconds", "publish_seconds"} {
		b := got[namespace+name].GetMetric()[0].GetHistogram().GetBucket()
		if first, last := b[0].GetUpperBound(), b[len(b)-1].GetUpperBound(); first >= 0.001 || last < 60 {
			t.Errorf("%s has buckets from %v to %v", name, first, last)
		}
	}
}

func TestTwoForwardersInOneProcessDoNotShareFigures(t *testing.T) {
	a, b := New("a", "r"), New("b", "r")
	a.AddPublished(7)
	if v := gather(t, b)[namespace+"events_published_total"].GetMetric()[0].GetCounter().GetValue(); v != 0 {
		t.Errorf("the other one shows %v", v)
	}
}

func TestTheHandlerServesTheTextFormat(t *testing.T) {
	m := New("v1.2.3", "abcdef")
	m.SetState("backing off")
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	body := rec.Body.String()
	for _, want := range []string{
		`outbox_cdc_state{state="backing off"} 1`,
		`outbox_cdc_events_skipped_total{reason="already-stored"} 0`,
		`outbox_cdc_reconnects_total{side="nats"} 0`,
		`revision="abcdef",version="v1.2.3"} 1`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the output lacks %s", want)
		}
	}
	if rec.Code != http.StatusOK {
		t.Errorf("status is %d", rec.Code)
	}
}

func BenchmarkWhatOneEventCosts(b *testing.B) {
	m := New("v", "r")
	b.ReportAllocs()
	for i := range b.N {
		m.AddPublished(1)
		m.ObserveCommitToAck(0.003)
		m.ObservePublish(0.001)
		m.SetInFlight(i, int64(i))
	}
}

func setEverything(m *Metrics) {
	one := 1.0
	m.SetSlot(&one, &one, &one)
	m.SetConfirmedLSN(1)
	m.SetDeadLetters(1)
	m.AddDeadLetter("something else")
	m.SetState("streaming")
}

func gather(t *testing.T, m *Metrics) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]*dto.MetricFamily, len(families))
	for _, f := range families {
		out[f.GetName()] = f
	}
	return out
}

func value(t *testing.T, m *Metrics, name string) float64 {
	t.Helper()
	f, ok := gather(t, m)[namespace+name]
	if !ok {
		t.Fatalf("%s is absent", name)
	}
	return f.GetMetric()[0].GetGauge().GetValue()
}

func series(t *testing.T, m *Metrics) int {
	t.Helper()
	n := 0
	for name, f := range gather(t, m) {
		if strings.HasPrefix(name, namespace) {
			n += len(f.GetMetric())
		}
	}
	return n
}

func labelNames(m *dto.Metric) []string {
	var names []string
	for _, l := range m.GetLabel() {
		names = append(names, l.GetName())
	}
	slices.Sort(names)
	return names
}
