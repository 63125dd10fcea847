package testenv_test

import (
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestPromotedStandbyHasWhatItHadReceivedAndNoMore(t *testing.T) {
	pair := testenv.PostgresPair(t, testenv.PairOptions{})
	primary, standby := pair.Primary.URL("postgres"), pair.Standby.URL("postgres")
	testenv.Exec(t, primary, "create table t as select 'replicated' as a")
	if pair.Standby.Major() >= 17 {
		testenv.Exec(t, primary, "select pg_create_logical_replication_slot('s', 'pgoutput', false, false, true)")
		// the slot moves with the second record of running transactions that it passes
		for range 3 {
			testenv.Exec(t, primary, "select pg_current_xact_id()", "select pg_log_standby_snapshot()",
				"select pg_switch_wal()", "select pg_replication_slot_advance('s', pg_current_wal_lsn())")
		}
		pair.WaitSlotSynced(t, "s")
	}
	pair.WaitCaughtUp(t)
	pair.Link.Cut()
	testenv.Exec(t, primary, "insert into t values ('lost')")
	if err := pair.Primary.Stop(testenv.Context(t, testenv.Deadline), devstack.StopImmediate); err != nil {
		t.Fatal(err)
	}
	pair.Promote(t)
	testenv.Exec(t, standby, "insert into t values ('after')")
	rows := testenv.Query(t, standby, "select a from t order by a")
	if len(rows) != 2 || rows[0] != "after" || rows[1] != "replicated" {
		t.Errorf("rows = %v, want [after replicated]", rows)
	}
	if got := testenv.Query(t, standby, "select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)")[0]; got != "00000002" {
		t.Errorf("timeline = %s, want 00000002", got)
	}
}
