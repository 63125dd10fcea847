package request_test

import (
	"os"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/request"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
	"github.com/outbox-cdc/outbox-cdc/migrations"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// newDatabase makes a database with all tables and returns its URL and a connection.
func newDatabase(t *testing.T) (string, *replication.Admin) {
	t.Helper()
	url := testenv.Postgres(t).NewDatabase(t)
	steps, err := migrations.Steps()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		testenv.Exec(t, url, step.Up(migrations.Target{Schema: "public", Table: "outbox"}))
	}
	return url, openAdmin(t, url)
}

func openAdmin(t *testing.T, url string) *replication.Admin {
	t.Helper()
	admin, err := replication.OpenAdmin(testenv.Context(t, testenv.Deadline), url, "request_test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	return admin
}

func TestARequestIsWorkedOnFromSubmitToFinish(t *testing.T) {
	url, admin := newDatabase(t)
	ctx := testenv.Context(t, testenv.Deadline)
	store := request.NewStore("public")
	since := time.Date(2026, 1, 2, 3, 4, 5, 600, time.UTC)
	selection := request.Selection{
		Target: request.Target{Slot: "a", Table: "public.outbox", Stream: "OUTBOX"}, Since: &since, FreshIDs: true,
		Aggregate: &request.Aggregate{Type: "order", ID: "a/b"},
	}
	id := must(store.Submit(ctx, admin, request.KindReplay, selection))(t)
	if waiting := must(store.Waiting(ctx, admin, "b"))(t); waiting {
		t.Error("a request for slot a is waiting for slot b")
	}
	if waiting := must(store.Waiting(ctx, admin, "a"))(t); !waiting {
		t.Error("no request is waiting for slot a")
	}
	if r := must(store.Next(ctx, admin, "b", "x"))(t); r != nil {
		t.Errorf("slot b got request %d of slot a", r.ID)
	}
	r := must(store.Next(ctx, admin, "a", "x"))(t)
	if r == nil || r.ID != id || r.Kind != request.KindReplay || r.State != request.StateRunning || !r.Selection.Since.Equal(since) ||
		r.Selection.Aggregate.ID != "a/b" || !r.Selection.FreshIDs {
		t.Fatalf("got %+v", r)
	}
	order := "17"
	r.Progress.Selected, r.Progress.Stored, r.Progress.Sequence = 3, 2, 9
	r.Progress.Place = &request.Place{Order: &order, EventID: "e"}
	r.Progress.Refuse(request.Refusal{EventID: "e", Code: "message-too-large"})
	if !must(store.SaveProgress(ctx, admin, r))(t) {
		t.Error("the progress was not saved")
	}
	// The next process goes on from there.
	r = must(store.Next(ctx, openAdmin(t, url), "a", "y"))(t)
	if p := r.Progress; p.Selected != 3 || p.Stored != 2 || p.Refused != 1 || p.Sequence != 9 || *p.Place.Order != "17" || p.Holder != "y" {
		t.Fatalf("got %+v", p)
	}
	if !must(store.Finish(ctx, admin, r, request.StateDone, ""))(t) {
		t.Error("the request was not finished")
	}
	if r = must(store.Get(ctx, admin, id))(t); !r.Finished() || r.State != request.StateDone || r.Progress.Stored != 2 {
		t.Errorf("got %+v", r)
	}
	if r := must(store.Next(ctx, admin, "a", "y"))(t); r != nil {
		t.Errorf("got the finished request %d", r.ID)
	}
}

func TestAProcessThatLostItsRequestCannotWriteToIt(t *testing.T) {
	_, admin := newDatabase(t)
	ctx := testenv.Context(t, testenv.Deadline)
	store := request.NewStore("public")
	id := must(store.Submit(ctx, admin, request.KindReplay, request.Selection{Target: request.Target{Slot: "a"}}))(t)
	old := must(store.Next(ctx, admin, "a", "old"))(t)
	taken := must(store.Next(ctx, admin, "a", "new"))(t)
	taken.Progress.Stored = 5
	if !must(store.SaveProgress(ctx, admin, taken))(t) {
		t.Error("the new process cannot save its progress")
	}
	if must(store.SaveProgress(ctx, admin, old))(t) || must(store.Finish(ctx, admin, old, request.StateDone, ""))(t) {
		t.Error("the old process wrote to a request that another has taken")
	}
	if r := must(store.Get(ctx, admin, id))(t); r.Finished() || r.Progress.Stored != 5 {
		t.Errorf("got %+v", r)
	}
}

func TestACancelledRequestTakesNoProgressAndIsNotCancelledTwice(t *testing.T) {
	_, admin := newDatabase(t)
	ctx := testenv.Context(t, testenv.Deadline)
	store := request.NewStore("public")
	id := must(store.Submit(ctx, admin, request.KindReplay, request.Selection{Target: request.Target{Slot: "a"}}))(t)
	r := must(store.Next(ctx, admin, "a", "x"))(t)
	if !must(store.Cancel(ctx, admin, id))(t) || must(store.Cancel(ctx, admin, id))(t) {
		t.Error("want one cancellation")
	}
	if must(store.SaveProgress(ctx, admin, r))(t) || must(store.Finish(ctx, admin, r, request.StateDone, ""))(t) {
		t.Error("a cancelled request was written to")
	}
	if r := must(store.Get(ctx, admin, id))(t); r.State != request.StateCancelled {
		t.Errorf("got state %s", r.State)
	}
}

// must returns a function that returns what a call returned, unless it failed.
func must[T any](got T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
}
