package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// hbaFirst puts lines before all others of pg_hba.conf.
func hbaFirst(tb testing.TB, cluster *testenv.Cluster, lines ...string) {
	tb.Helper()
	file := filepath.Join(cluster.DataDir(), "pg_hba.conf")
	rules, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append([]byte(strings.Join(lines, "\n")+"\n"), rules...), 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
	testenv.Exec(tb, cluster.URL("postgres"), "SELECT pg_reload_conf()")
}

func TestPostgresThatRefusesTheConnectionIsAnExitWithTheServersReason(t *testing.T) {
	t.Parallel()
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	database := testenv.DatabaseName(t, o.databaseURL)
	o.exec("CREATE ROLE locked LOGIN REPLICATION PASSWORD 'right'", "CREATE ROLE barred LOGIN REPLICATION", "CREATE ROLE closed REPLICATION",
		"CREATE ROLE plain LOGIN", "CREATE ROLE outside LOGIN REPLICATION", "REVOKE CONNECT ON DATABASE "+database+" FROM PUBLIC")
	hbaFirst(t, cluster, "host all locked all scram-sha-256", "host all barred all reject")
	as := func(user string) string { return testenv.WithUser(t, o.databaseURL, user, "wrong") }
	for _, test := range []struct{ name, url, state, hint string }{
		{"wrong password", as("locked"), "28P01", "password"},
		{"role that pg_hba.conf rejects", as("barred"), "28000", "pg_hba.conf"},
		{"role that may not log in", as("closed"), "28000", "LOGIN"},
		{"role that does not exist", as("nobody"), "28000", "role"},
		{"database that does not exist", strings.Replace(o.databaseURL, "/"+database, "/nowhere", 1), "3D000", "--database-url"},
		{"role without REPLICATION", as("plain"), "42501", "setup --dry-run"},
		{"role without CONNECT", as("outside"), "42501", "setup --dry-run"},
		{"setting with a wrong value", o.databaseURL + "&work_mem=much", "22023", "--database-url"},
		{"setting that does not exist", o.databaseURL + "&sslmod=disable", "42704", "--database-url"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o.forwarderDatabaseURL = test.url
			p := o.start()
			p.WaitExit(3, testenv.Deadline)
			expectRefusal(t, p, `SQLSTATE `+test.state, test.hint)
			if strings.Contains(p.Stderr(), "backing off") {
				t.Errorf("it was tried again:\n%s", p.Stderr())
			}
			if test.state == "42704" && strings.Contains(p.Stderr(), "slot") {
				t.Errorf("a setting is taken for a slot:\n%s", p.Stderr())
			}
		})
	}
}
