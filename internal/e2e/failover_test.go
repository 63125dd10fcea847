package e2e

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// carrySlot puts the slot as the primary has it on disk onto the standby, as failover
// slots do from PostgreSQL 17 on and as people did by hand before.
func carrySlot(t *testing.T, pair *testenv.Pair, slot string) {
	t.Helper()
	testenv.Exec(t, pair.Primary.URL("postgres"), "CHECKPOINT")
	pair.WaitCaughtUp(t)
	ctx := testenv.Context(t, 2*testenv.Deadline)
	if err := pair.Standby.Stop(ctx, devstack.StopFast); err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(pair.Primary.DataDir(), "pg_replslot", slot)
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, filepath.Join(pair.Standby.DataDir(), "pg_replslot")).CombinedOutput(); err != nil {
		t.Fatalf("copy slot: %v: %s", err, out)
	}
	if err := pair.Standby.Start(ctx); err != nil {
		t.Fatal(err)
	}
	pair.WaitCaughtUp(t)
}

// bothHosts is the URL by which the forwarder reaches whichever of the two is primary.
func bothHosts(t *testing.T, pair *testenv.Pair, databaseURL string) string {
	t.Helper()
	first := testenv.AddressOf(t, databaseURL)
	return strings.Replace(databaseURL, first, first+","+testenv.AddressOf(t, pair.Standby.URL("postgres")), 1)
}

// The promoted standby lacks the last transactions, which are published already, and writes
// its own at the same LSNs. What it has is neither missing nor twice, what it lacks is named.
func TestPromotionOfALaggingStandbyLosesNothingItHasAndNamesWhatItLacks(t *testing.T) {
	pair := testenv.PostgresPair(t, testenv.PairOptions{})
	o := newOutboxOn(t, pair.Primary, testenv.NATS(t).URL(), shortWindow)
	o.forwarderDatabaseURL = bothHosts(t, pair, o.databaseURL)
	p := o.startStreaming()
	o.insert("kept", 50)
	o.waitStored(50)
	o.waitConfirmed()
	carrySlot(t, pair, o.slot)
	o.insert("replicated", 10)
	pair.WaitCaughtUp(t)

	pair.Link.Cut() // from here on the standby stays behind
	o.insert("phantom", 20)
	o.waitStored(80)
	phantoms := testenv.Query(t, o.databaseURL, "SELECT event_id::text FROM public.outbox WHERE aggregate_id = 'phantom' ORDER BY id")
	if err := pair.Primary.Stop(testenv.Context(t, testenv.Deadline), devstack.StopImmediate); err != nil {
		t.Fatal(err)
	}
	pair.Promote(t)
	o.databaseURL = testenv.WithAddress(t, o.databaseURL, testenv.AddressOf(t, pair.Standby.URL("postgres")))
	o.insert("after", 30)
	o.waitStored(110)
	o.waitConfirmed()

	rows := o.rows()
	if len(rows) != 90 {
		t.Fatalf("the promoted standby holds %d rows, want 90", len(rows))
	}
	want := slices.Concat(rows[:60], phantoms, rows[60:])
	o.expectEvents(o.ours(), want)
	line := p.WaitLine(`"msg":"the stream holds events that this server does not have`, testenv.Deadline)
	if !strings.Contains(line, phantoms[0]) {
		t.Errorf("the line does not name event %s: %s", phantoms[0], line)
	}
	// A restart finds the same, from the stream alone.
	p.Kill()
	o.startStreaming()
	o.insert("restarted", 5)
	o.waitStored(115)
	o.waitConfirmed()
	o.expectEvents(o.ours(), slices.Concat(rows[:60], phantoms, o.rows()[60:]))
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 95, in stream 95, unknown 20")
}
