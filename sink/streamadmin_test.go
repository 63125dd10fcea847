package sink_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

func TestCoverageTellsWholeFromPartAndNothing(t *testing.T) {
	for _, tc := range []struct {
		template string
		subjects string
		want     sink.Covered
	}{
		{"outbox.{aggregate_type}.{event_type}", "outbox.>", sink.CoveredWhole},
		{"outbox.{aggregate_type}.{event_type}", "other.>,>", sink.CoveredWhole},
		{"outbox.{aggregate_type}.{event_type}", "outbox.*.*", sink.CoveredPart}, // values keep their dots
		{"outbox.{aggregate_type}.{event_type}", "outbox.order.>", sink.CoveredPart},
		{"outbox.{aggregate_type}.{event_type}", "orders.>", sink.CoveredNot},
		{"outbox.{aggregate_type}.{event_type}", "outbox", sink.CoveredNot},
		{"outbox.{aggregate_type}.{event_type}", "", sink.CoveredNot},
		{"eu.shop-{aggregate_type}.x", "eu.*.x", sink.CoveredPart},
		{"{aggregate_type}.x", "orders.*", sink.CoveredPart},
		{"all.events", "all.events", sink.CoveredWhole},
		{"all.events", "all.*", sink.CoveredWhole},
		{"all.events", "all.events.>", sink.CoveredNot},
	} {
		var subjects []string
		if tc.subjects != "" {
			subjects = strings.Split(tc.subjects, ",")
		}
		if got := sink.Coverage(sink.SubjectsFor(tc.template), subjects); got != tc.want {
			t.Errorf("%s within %s: got %d, want %d", tc.template, tc.subjects, got, tc.want)
		}
	}
}

func dial(t *testing.T, url string) *sink.Client {
	t.Helper()
	c, err := sink.Dial(testenv.Context(t, testenv.Deadline), sink.ClientConfig{URL: url, Name: "test"}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var spec = sink.StreamSpec{
	Name: "OUTBOX", Subjects: []string{"outbox.>"}, Replicas: 1, DuplicateWindow: 2 * time.Minute, AllowBatched: true,
}

func TestAStreamThatWasMadeDoesNotDifferFromItsSpec(t *testing.T) {
	c := dial(t, testenv.NATS(t).URL())
	ctx := testenv.Context(t, testenv.Deadline)
	before, err := c.StreamStatus(ctx, spec.Name)
	if err != nil || before.Exists {
		t.Fatalf("got %+v, %v", before, err)
	}
	if err := c.CreateStream(ctx, spec); err != nil {
		t.Fatal(err)
	}
	after, err := c.StreamStatus(ctx, spec.Name)
	if err != nil {
		t.Fatal(err)
	}
	if diffs := sink.Diff(spec, after); !after.Exists || len(diffs) > 0 {
		t.Errorf("got %v for %+v", diffs, after)
	}
	if after.Retention != "limits" || after.Discard != "old" || after.Storage != "file" || !after.AllowBatched {
		t.Errorf("got %+v", after)
	}
}

func TestEachDifferenceOfAStreamIsNamed(t *testing.T) {
	c := dial(t, testenv.NATS(t).URL())
	ctx := testenv.Context(t, testenv.Deadline)
	made := spec
	made.Subjects, made.DuplicateWindow, made.AllowBatched, made.MaxBytes = []string{"orders.>"}, time.Minute, false, 1<<30
	if err := c.CreateStream(ctx, made); err != nil {
		t.Fatal(err)
	}
	have, err := c.StreamStatus(ctx, spec.Name)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range sink.Diff(spec, have) {
		got = append(got, d.String())
	}
	want := "subjects is orders.>, not outbox.>; duplicate_window is 1m0s, not 2m0s; allow_batched is false, not true"
	if strings.Join(got, "; ") != want {
		t.Errorf("got %q", got)
	}
	if err := c.CreateStream(ctx, spec); sink.ErrorCode(err) != 10058 {
		t.Errorf("got %v", err)
	}
}

func TestTheNewestEventOfASourceIsFoundBehindThoseOfOthers(t *testing.T) {
	server := testenv.NATS(t)
	c := dial(t, server.URL())
	ctx := testenv.Context(t, testenv.Deadline)
	if err := c.CreateStream(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if last, err := c.LastEvent(ctx, spec.Name, "1/mine", "outbox.{event_type}"); err != nil || last != nil {
		t.Fatalf("empty stream: got %+v, %v", last, err)
	}
	js := testenv.JetStream(t, server.URL())
	publish := func(subject, source, id, position string) {
		t.Helper()
		m := nats.NewMsg(subject)
		m.Header.Set(sink.HeaderSource, source)
		m.Header.Set(sink.HeaderEventID, id)
		m.Header.Set(sink.HeaderPosition, position)
		if _, err := js.PublishMsg(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	publish("outbox.a", "1/mine", "e1", "1:0/10:0")
	publish("outbox.b", "1/mine", "e2", "1:0/10:1")
	for range 3 {
		publish("outbox.c", "2/other", "x", "1:0/99:0")
	}
	last, err := c.LastEvent(ctx, spec.Name, "1/mine", "outbox.{event_type}")
	if err != nil || last == nil {
		t.Fatalf("got %+v, %v", last, err)
	}
	if last.EventID != "e2" || last.Sequence != 2 || last.Subject != "outbox.b" || last.Position != "1:0/10:1" || last.StoredAt.IsZero() {
		t.Errorf("got %+v", last)
	}
	if last, err := c.LastEvent(ctx, spec.Name, "3/nobody", "outbox.{event_type}"); err != nil || last != nil {
		t.Errorf("got %+v, %v", last, err)
	}
}
