package testenv

import (
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
)

// standbySlot is the physical slot that holds WAL for the standby.
const standbySlot = "standby"

// PairOptions say how to run a primary and its standby.
type PairOptions struct {
	// Settings are for both servers.
	Settings map[string]string
	// Synchronized lets the primary send nothing to failover slots that the standby has
	// not got (synchronized_standby_slots, PostgreSQL 17 and newer).
	Synchronized bool
}

// Pair is a primary and a hot standby that follows it by streaming. On PostgreSQL 17 and
// newer the standby also mirrors failover slots.
type Pair struct {
	Primary *Cluster
	Standby *Cluster
	// Link is what the standby's replication goes through: cut it, and the standby stays behind.
	Link *Proxy
}

// PostgresPair starts a primary and a standby for this test alone. It takes some two seconds.
func PostgresPair(tb testing.TB, opts PairOptions) *Pair {
	tb.Helper()
	ofPrimary := map[string]string{}
	maps.Copy(ofPrimary, opts.Settings)
	if opts.Synchronized {
		ofPrimary["synchronized_standby_slots"] = standbySlot
	}
	primary := NewPostgres(tb, devstack.PostgresOptions{Settings: ofPrimary})
	Exec(tb, primary.URL("postgres"), "select pg_create_physical_replication_slot('"+standbySlot+"', true)")

	// A cold copy needs no tool of the right version, as pg_basebackup would.
	if err := primary.Stop(Context(tb, Deadline), devstack.StopFast); err != nil {
		tb.Fatal(err)
	}
	home := copyCluster(tb, primary)
	if err := primary.Start(Context(tb, Deadline)); err != nil {
		tb.Fatal(err)
	}

	link := NewProxy(tb, devstack.Address(primary.Port()))
	standby := NewPostgres(tb, devstack.PostgresOptions{Dir: home, Settings: standbySettings(tb, opts, link, primary.Major())})
	return &Pair{Primary: primary, Standby: standby, Link: link}
}

func standbySettings(tb testing.TB, opts PairOptions, link *Proxy, major int) map[string]string {
	tb.Helper()
	host, port, err := net.SplitHostPort(link.Address())
	if err != nil {
		tb.Fatal(err)
	}
	settings := map[string]string{
		"primary_conninfo": fmt.Sprintf("host=%s port=%s user=postgres dbname=postgres application_name=%s", host, port, standbySlot),

		"primary_slot_name":            standbySlot,
		"hot_standby_feedback":         "on",
		"wal_receiver_status_interval": "1s",
		"wal_retrieve_retry_interval":  "100ms",
		"fsync":                        "off",
	}
	if major >= 17 {
		settings["sync_replication_slots"] = "on"
	}
	maps.Copy(settings, opts.Settings)
	return settings
}

// copyCluster copies the data of a stopped server into a new home, as a standby's.
func copyCluster(tb testing.TB, from *Cluster) (home string) {
	tb.Helper()
	home, err := os.MkdirTemp("", "outbox-cdc-standby-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(home); err != nil {
			tb.Errorf("remove standby: %v", err)
		}
	})
	if err := os.Chmod(home, 0o755); err != nil { // PostgreSQL runs as another user than root
		tb.Fatal(err)
	}
	data := filepath.Join(home, "data")
	for _, command := range [][]string{
		{"cp", "-a", from.DataDir(), data},
		{"find", filepath.Join(data, "pg_replslot"), "-mindepth", "1", "-delete"},
		{"cp", "-a", filepath.Join(data, "PG_VERSION"), filepath.Join(data, "standby.signal")}, // its content does not matter, its owner does
	} {
		if out, err := exec.CommandContext(Context(tb, Deadline), command[0], command[1:]...).CombinedOutput(); err != nil {
			tb.Fatalf("%v: %v: %s", command, err, out)
		}
	}
	return home
}

// WaitCaughtUp waits until the standby has replayed all that the primary has written so far.
func (p *Pair) WaitCaughtUp(tb testing.TB) {
	tb.Helper()
	written := Query(tb, p.Primary.URL("postgres"), "select pg_current_wal_lsn()")[0]
	Eventually(tb, Deadline, func() error {
		replayed, err := TryQuery(Context(tb, Deadline), p.Standby.URL("postgres"),
			"select pg_last_wal_replay_lsn() >= $1::pg_lsn", written)
		if err == nil && replayed[0] != "t" {
			err = fmt.Errorf("the standby has not replayed %s", written)
		}
		return err
	})
}

// WaitSlotSynced waits until the standby holds a usable copy of a failover slot
// (PostgreSQL 17 and newer). That takes a slot which moves: one that nobody reads from
// may need older rows than the standby has kept.
func (p *Pair) WaitSlotSynced(tb testing.TB, slot string) {
	tb.Helper()
	// the standby looks each 0.2 s, and seldom, up to each 30 s, when nothing changes
	Eventually(tb, 3*Deadline, func() error {
		usable, err := TryQuery(Context(tb, Deadline), p.Standby.URL("postgres"),
			"select 1 from pg_replication_slots where slot_name = $1 and synced and not temporary and invalidation_reason is null", slot)
		if err == nil && len(usable) == 0 {
			err = fmt.Errorf("the standby has no usable copy of slot %s", slot)
		}
		return err
	})
}

// Promote makes the standby a primary and returns when it takes writes. It does not stop
// the old primary.
func (p *Pair) Promote(tb testing.TB) {
	tb.Helper()
	if got := Query(tb, p.Standby.URL("postgres"), "select pg_promote(true, 30)")[0]; got != "t" {
		tb.Fatalf("pg_promote = %s", got)
	}
}
