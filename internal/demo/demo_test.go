package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func TestAnEventCountsOnceItsOrderIsCommittedAndItIsHere(t *testing.T) {
	count := newTally()
	count.begin("before")
	count.arrive("before") // the stream may be faster than the answer to COMMIT
	count.commit("before")
	count.begin("after")
	count.commit("after")
	if count.outstanding() != 1 || count.summary().OK() {
		t.Errorf("with one event outstanding: %d, %+v", count.outstanding(), count.summary())
	}
	count.arrive("after")
	want := Summary{Committed: 2, Arrived: 2}
	if got := count.summary(); got != want || !got.OK() || count.outstanding() != 0 {
		t.Errorf("summary = %+v, want %+v", got, want)
	}
}

func TestWhatShouldNotArriveIsToldApart(t *testing.T) {
	count := newTally()
	for _, id := range []string{"late", "twice early"} {
		count.begin(id)
		count.arrive(id)
		count.arrive(id)
		count.commit(id)
	}
	count.arrive("late")
	count.begin("early phantom")
	count.arrive("early phantom")
	count.rollBack("early phantom")
	count.begin("late phantom")
	count.rollBack("late phantom")
	count.arrive("late phantom")
	count.arrive("a visitor's")
	want := Summary{Committed: 2, Arrived: 2, Repeated: 3, RolledBack: 2, Phantoms: 2, Others: 1}
	if got := count.summary(); got != want || got.OK() {
		t.Errorf("summary = %+v, want %+v and not OK", got, want)
	}
}

func TestSummaryIsOKOnlyWithoutAnyDefect(t *testing.T) {
	good := Summary{Committed: 5, Arrived: 5, RolledBack: 1, Others: 3}
	if !good.OK() {
		t.Errorf("%+v is not OK", good)
	}
	missing, repeated, phantom := good, good, good
	missing.Arrived--
	repeated.Repeated++
	phantom.Phantoms++
	for _, bad := range []Summary{missing, repeated, phantom} {
		if bad.OK() {
			t.Errorf("%+v is OK", bad)
		}
	}
}

func TestSettledIdsAreForgottenInTheEnd(t *testing.T) {
	recent := newRecentIDs(2)
	for _, id := range []string{"a", "b", "c"} {
		recent.add(id)
	}
	if recent.has("a") || !recent.has("b") || !recent.has("c") || len(recent.ids) != 2 {
		t.Errorf("remembered %v, want b and c", recent.ids)
	}
}

// fixture returns a configuration with a table and a stream, and a way to publish.
func fixture(t *testing.T) (cfg Config, publish func(id string)) {
	t.Helper()
	url := testenv.Postgres(t).NewDatabase(t)
	testenv.Exec(t, url, `create table outbox (event_id uuid default gen_random_uuid(), aggregate_type text,
		aggregate_id text, aggregate_version bigint, event_type text, payload jsonb)`)
	server := testenv.NATS(t)
	js := testenv.JetStream(t, server.URL())
	_, err := js.CreateStream(testenv.Context(t, testenv.Deadline), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}})
	if err != nil {
		t.Fatal(err)
	}
	publish = func(id string) {
		if _, err := js.Publish(testenv.Context(t, testenv.Deadline), "s", []byte("{}"), jetstream.WithMsgID(id)); err != nil {
			t.Errorf("publish: %v", err)
		}
	}
	return Config{
		DatabaseURL: url, NATSURL: server.URL(), Table: "public.outbox", Stream: "S",
		OrdersMax: 20, SettleMax: time.Millisecond, OnArrival: func(Arrival) {}, OnRollBack: func(RolledBack) {},
	}, publish
}

func untilDone(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func TestEventsThatNobodyForwardsAreMissing(t *testing.T) {
	cfg, _ := fixture(t)
	sum, err := Run(t.Context(), cfg, untilDone)
	if want := (Summary{Committed: 20, RolledBack: 2}); err != nil || sum != want || sum.OK() {
		t.Errorf("summary = %+v, %v, want %+v and not OK", sum, err, want)
	}
}

func TestEventOfARolledBackOrderIsCaughtEvenAtTheVeryEnd(t *testing.T) {
	cfg, publish := fixture(t)
	cfg.SettleMax = testenv.Deadline
	refused := make(chan string, cfg.OrdersMax)
	cfg.OnRollBack = func(r RolledBack) { refused <- r.EventID }
	sum, err := Run(t.Context(), cfg, func(ctx context.Context) error {
		// Forwards what is committed, and as its last act what was rolled back.
		forwarded := map[string]bool{}
		testenv.Eventually(t, testenv.Deadline, func() error {
			ids, err := testenv.TryQuery(ctx, cfg.DatabaseURL, "select event_id from outbox")
			for _, id := range ids {
				if !forwarded[id] {
					forwarded[id] = true
					publish(id)
				}
			}
			if err == nil && len(forwarded) < cfg.OrdersMax {
				err = fmt.Errorf("%d orders", len(forwarded))
			}
			return err
		})
		<-ctx.Done()
		for i := range 500 {
			publish(fmt.Sprint("in front of it ", i))
		}
		publish(<-refused)
		return nil
	})
	if want := (Summary{Committed: 20, Arrived: 20, RolledBack: 2, Phantoms: 1, Others: 500}); err != nil || sum != want {
		t.Errorf("summary = %+v, %v, want %+v", sum, err, want)
	}
}

func TestRunEndsWithTheErrorOfTheForwarder(t *testing.T) {
	cfg, _ := fixture(t)
	cfg.OrdersMax, cfg.SettleMax = 0, testenv.Deadline
	broken := errors.New("it broke")
	if _, err := Run(t.Context(), cfg, func(context.Context) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error = %v, want that of the forwarder", err)
	}
}

func TestRunEndsInTimeAndWhenAsked(t *testing.T) {
	cfg, _ := fixture(t)
	cfg.OrdersMax, cfg.DurationMax = 0, 100*time.Millisecond
	if sum, err := Run(t.Context(), cfg, untilDone); err != nil || sum.Committed == 0 {
		t.Errorf("after a time: %+v, %v", sum, err)
	}
	cfg.DurationMax = 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg.OnRollBack = func(RolledBack) { cancel() }
	if sum, err := Run(ctx, cfg, untilDone); err != nil || sum.Committed < rollBackEvery-1 {
		t.Errorf("after a signal: %+v, %v", sum, err)
	}
}
