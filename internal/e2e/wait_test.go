package e2e

import (
	"encoding/json"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestWaitReturnsOnceAllThatIsCommittedIsInTheStream(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming()
	for range 3 {
		o.insertTx(testenv.UniqueName("huge"), 3000)
		o.run("wait").WaitExit(0, testenv.Deadline)
		o.expectEvents(o.ours(), o.rows())
	}
	// A transaction that is still open was not committed when the command began.
	tx := o.connect()
	ctx := testenv.Context(t, testenv.Deadline)
	if _, err := tx.Exec(ctx, "BEGIN; INSERT INTO "+o.table+" (aggregate_type, aggregate_id, event_type) VALUES ('order', 'open', 'placed')"); err != nil {
		t.Fatal(err)
	}
	o.run("wait").WaitExit(0, testenv.Deadline)
	// Nothing comes after an idle stop either.
	p.Kill()
	if _, err := tx.Exec(ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	w := o.run("wait", "--json")
	w.WaitExit(0, testenv.Deadline)
	var document struct {
		Delivered bool   `json:"delivered"`
		LSN       string `json:"lsn"`
	}
	if err := json.Unmarshal([]byte(w.Stdout()), &document); err != nil || !document.Delivered || document.LSN == "" {
		t.Errorf("document %s: %v", w.Stdout(), err)
	}
}

func TestWaitNamesWhatHoldsDeliveryUp(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("backlog", 3)
	for _, tc := range []struct {
		name       string
		arrange    func()
		code       int
		what, hint string
	}{
		{"no forwarder", func() {}, 1, "no forwarder holds slot " + o.slot, "outbox-cdc start --slot " + o.slot},
		{"stream full", func() { o.fillStream(1); o.startStreaming() }, 1, "slot " + o.slot + " has confirmed .* behind by", "readyz"},
		{"no slot", func() { o.slot = "nobody" }, 3, "slot nobody does not exist", "outbox-cdc setup --slot nobody"},
		{"no table", func() { o.table = "nosuch.t" }, 3, "table nosuch.t does not exist", "--table"},
	} {
		tc.arrange()
		p := o.run("wait", "--timeout", "500ms")
		if code := p.Wait(testenv.Deadline); code != tc.code {
			t.Errorf("%s: exit code %d, want %d", tc.name, code, tc.code)
		}
		expectRefusal(t, p, tc.what, tc.hint)
	}
}

func TestWaitGoesOnUntilAForwarderHasComeAndDelivered(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("backlog", 10)
	w := o.run("wait")
	o.start()
	w.WaitExit(0, testenv.Deadline)
	o.expectEvents(o.ours(), o.rows())
}
