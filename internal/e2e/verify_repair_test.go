package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func expectRepaired(tb testing.TB, d verified, want int) {
	tb.Helper()
	if d.Repaired == nil || *d.Repaired != want {
		tb.Errorf("repaired is not %d: %+v", want, d)
	}
}

func TestRepairLetsTheRunningForwarderPublishWhatIsMissingInTheOrderOfTheTable(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	o.startStreaming()
	o.insert("a", 30)
	o.run("wait").WaitExit(0, testenv.Deadline)
	for _, sequence := range []uint64{17, 3, 25, 4} {
		o.deleteMessage(sequence)
	}
	beyondTheWindow()
	d, _ := o.verify(3)
	o.expectVerified(d, "checked 30, in stream 26, missing 4")
	d, _ = o.verify(0, "--repair")
	o.expectVerified(d, "checked 30, in stream 30")
	expectRepaired(t, d, 4)
	rows := o.rows()
	o.expectAgain([]string{rows[2], rows[3], rows[16], rows[24]})
	for _, m := range again(o.stored()) {
		if m.Header.Get("Outbox-Republished") != "repair" || m.Header.Get("Outbox-Position") != "" {
			t.Errorf("headers of what was repaired: %v", m.Header)
		}
	}
	// There is nothing left to do, and the order goes on behind it.
	d, _ = o.verify(0, "--repair")
	expectRepaired(t, d, 0)
	o.insert("b", 3)
	o.run("wait").WaitExit(0, testenv.Deadline)
	d, _ = o.verify(0)
	o.expectVerified(d, "checked 33, in stream 33")
	o.expectEvents(firsts(o.stored()), slices.DeleteFunc(o.rows(), func(id string) bool {
		return slices.Contains([]string{rows[2], rows[3], rows[16], rows[24]}, id)
	}))
}

// Within the duplicate window the stream takes what it has lost for a duplicate; since it
// is known not to be there, it is sent under another message id.
func TestRepairWithoutAForwarderHoldsTheSlotAndMovesNothing(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insertTx("lost", 1500)
	o.deliver()
	o.purge()
	o.insert("backlog", 7)
	stoodAt := o.confirmed()
	d, _ := o.verify(0, "--repair")
	o.expectVerified(d, "checked 1507, in stream 1500, pending 7")
	expectRepaired(t, d, 1500)
	o.expectAgain(o.rows()[:1500])
	if got, want := o.requests(), []string{"repair done 0 of 1000", "repair done 0 of 500", "repair done 1000 of 1000", "repair done 500 of 500"}; !slices.Equal(got, want) {
		t.Errorf("requests %q, want %q", got, want)
	}
	if now := o.confirmed(); now != stoodAt {
		t.Errorf("the slot went from %s to %s", stoodAt, now)
	}
	o.startStreaming()
	o.run("wait").WaitExit(0, testenv.Deadline)
	o.expectEvents(firsts(o.stored()), o.rows()[1500:])
}

func TestRepairSaysWhatCanNeverBePublishedAndWhatItNeeds(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	o.insert("small", 3)
	o.exec(fmt.Sprintf("INSERT INTO %s (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'large', 'placed', to_jsonb(repeat('x', 3000)))", o.table))
	o.deliver()
	o.purge()
	o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgSize = 2000 })
	beyondTheWindow()
	d, p := o.verify(3, "--repair")
	o.expectVerified(d, "checked 4, in stream 3, missing 1")
	expectRepaired(t, d, 3)
	if large := o.rows()[3]; !slices.Equal(d.missing(), []string{large}) || !strings.Contains(p.Stderr(), "refused "+large) {
		t.Errorf("missing %v\n%s", d.missing(), p.Stderr())
	}
	o.exec("SELECT pg_drop_replication_slot('" + o.slot + "')")
	p = o.run("verify", "--repair")
	p.WaitExit(3, testenv.Deadline)
	expectRefusal(t, p, "slot "+o.slot+" does not exist", "setup")
}

// A lost slot is not a lost event: the table still holds the rows.
func TestRepairPublishesTheRowsBetweenALostSlotAndTheNewOne(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("before", 5)
	o.deliver()
	o.insert("gap", 5)
	o.exec("SELECT pg_drop_replication_slot('" + o.slot + "')")
	o.insert("gap without a slot", 5)
	o.setup()
	o.insert("after", 5)
	d, _ := o.verify(0, "--repair")
	o.expectVerified(d, "checked 20, in stream 15, pending 5")
	expectRepaired(t, d, 10)
	o.deliver()
	d, _ = o.verify(0)
	o.expectVerified(d, "checked 20, in stream 20")
	if got := eventIDs(o.stored()); !slices.Equal(got, o.rows()) {
		t.Errorf("the stream holds %s", summary(got))
	}
}
