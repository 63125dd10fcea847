package e2e

import (
	"context"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// printedRole makes the role that `setup --dry-run` prints, under a name and with a
// password of this test, and returns the URL for it.
func (o *outbox) printedRole() string {
	o.tb.Helper()
	p := o.run("setup", "--dry-run")
	p.WaitExit(0, testenv.Deadline)
	role := testenv.UniqueName("e2e_role")
	o.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testenv.Deadline)
		defer cancel()
		for _, sql := range []string{"DROP OWNED BY " + role, "DROP ROLE " + role} {
			if _, err := testenv.TryQuery(ctx, o.databaseURL, sql); err != nil {
				o.tb.Error(err)
			}
		}
	})
	create := regexp.MustCompile(`(?m)^CREATE ROLE outbox_cdc (.*);$`)
	grant := regexp.MustCompile(`(?m)^(GRANT .*) TO outbox_cdc;$`)
	created, granted := create.FindStringSubmatch(p.Stdout()), grant.FindAllStringSubmatch(p.Stdout(), -1)
	if created == nil || granted == nil {
		o.tb.Fatalf("setup --dry-run prints no role:\n%s", p.Stdout())
	}
	o.exec("CREATE ROLE " + role + " " + created[1] + " PASSWORD 'pw'")
	for _, statement := range granted {
		o.exec(statement[1] + " TO " + role)
	}
	return testenv.WithUser(o.tb, o.databaseURL, role, "pw")
}

func TestPrintedRoleForwardsAndTakesOverFromAFrozenLeader(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.forwarderDatabaseURL = o.printedRole()
	leader := o.startStreaming()
	frozen := o.waitHolder("")
	o.insert("leader", 10)
	o.waitStored(10)
	standby := o.start("--takeover-after", "2s")
	standby.WaitLine(standbyLine(frozen), testenv.Deadline)
	leader.Signal(syscall.SIGSTOP)
	standby.WaitLine(`"msg":"ended the silent walsender.*pid `+frozen+`\b`, testenv.Deadline)
	standby.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	taken := o.waitHolder(frozen)
	o.insert("standby", 10)
	leader.Signal(syscall.SIGCONT)
	leader.WaitLine(standbyLine(taken), testenv.Deadline)
	o.expectAll()
	o.waitConfirmed()
	d, _ := o.verify(0)
	o.expectVerified(d, "checked 20, in stream 20")
	for _, p := range []*testenv.Program{leader, standby} { // they hold the role's sessions
		p.Signal(syscall.SIGTERM)
		p.WaitExit(0, testenv.Deadline)
	}
}

func TestARequestThatPostgresRefusesFailsAndTheNextOneIsWorkedOn(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	owner := o.forwarderDatabaseURL
	o.forwarderDatabaseURL = o.printedRole()
	role, err := url.Parse(o.forwarderDatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	forwarder := o.startStreaming()
	o.forwarderDatabaseURL = owner
	o.insert("a", 5)
	o.waitStored(5)
	o.waitConfirmed()
	o.exec("REVOKE SELECT ON public.outbox FROM " + role.User.Username())
	o.purge() // so that there is something to repair, too
	for _, args := range [][]string{{"replay", "--aggregate", "order/a", "--fresh-ids"}, {"verify", "--repair"}} {
		p := o.run(args...)
		expectStop(t, p, "the role lacks a right", "SQLSTATE 42501", "table public.outbox")
		if !strings.Contains(p.Stderr(), "hint: outbox-cdc setup --dry-run") {
			t.Errorf("%v does not say what to do:\n%s", args, p.Stderr())
		}
	}
	o.exec("GRANT SELECT ON public.outbox TO " + role.User.Username())
	o.expectReport(0, requestReport{Selected: 5, Stored: 5}, "replay", "--aggregate", "order/a", "--fresh-ids")
	if got, want := o.requests(), []string{"replay failed 0 of 0", "repair failed 0 of 0", "replay done 5 of 5"}; !slices.Equal(got, want) {
		t.Errorf("requests: %q, want %q", got, want)
	}
	forwarder.Signal(syscall.SIGTERM) // it holds the role's sessions
	forwarder.WaitExit(0, testenv.Deadline)
}
