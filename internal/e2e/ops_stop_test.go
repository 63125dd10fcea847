package e2e

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestSIGTERMAtRandomMomentsUnderLoadLosesNothing(t *testing.T) {
	server := testenv.NATSProcess(t)
	o := newOutbox(t, server.URL())
	l := o.startLoad(2, 10*time.Millisecond)
	for round := range 8 * soakFactor(t) {
		p := o.start("--shutdown-timeout", "3s")
		p.WaitLine(`"msg":"connecting"`, testenv.Deadline)
		if round%3 != 2 { // else while it still connects
			p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
			l.waitWritten(rand.Int64N(600))
		}
		down := round%4 == 3
		if down {
			server.Kill()
			l.waitWritten(100)
		}
		p.Signal(syscall.SIGTERM)
		p.WaitExit(0, testenv.Deadline)
		p.WaitLine(`"msg":"draining"`, testenv.Deadline)
		p.WaitLine(`"msg":"stopped"`, testenv.Deadline)
		if down {
			server.Start()
		}
	}
	l.waitWritten(200)
	l.end()
	o.startStreaming()
	o.expectCommitOrder()
}

func TestSIGTERMConfirmsWhatIsAcknowledgedBeforeItLeaves(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, testenv.NATS(t).URL())
			// Only the last status message can tell PostgreSQL.
			p := o.startStreaming("--status-interval", "10m", "--takeover-after", "off")
			o.insertTx("many", 500)
			o.insert("single", 5)
			o.waitStored(505)
			p.Signal(signal)
			p.WaitExit(0, testenv.Deadline)
			messages := o.ours()
			if last := commitLSN(t, messages[len(messages)-1]); o.confirmedLSN() <= last {
				t.Errorf("slot stands at %s: the last stored event, committed at %s, is not confirmed", o.confirmedLSN(), last)
			}
			_, health := o.startHTTPStreaming()
			o.insert("after", 5)
			o.expectAll()
			if n, _ := health.metric(`outbox_cdc_events_skipped_total{reason="duplicate"}`); n != 0 {
				t.Errorf("%v events were published again after a clean stop", n)
			}
		})
	}
}

func TestSecondSignalEndsTheDrainingAtOnce(t *testing.T) {
	t.Parallel()
	server := testenv.NATSProcess(t)
	o := newOutbox(t, server.URL())
	p, acknowledged := o.frozenInFlight(server, "--shutdown-timeout", "10m")
	p.Signal(syscall.SIGTERM)
	p.WaitLine(`"msg":"draining"`, testenv.Deadline)
	told := o.waitStatusMessages(3)
	p.Signal(syscall.SIGTERM)
	p.WaitExit(130, testenv.Deadline)
	told = append(told, o.confirmedLSN())
	server.Thaw()
	o.startStreaming("--takeover-after", "1s")
	o.expectAll()
	expectNotPast(t, told, commitLSN(t, o.ours()[acknowledged]))
}

func TestDrainingEndsWithItsTimeAndConfirmsNothingUnacknowledged(t *testing.T) {
	t.Parallel()
	server := testenv.NATSProcess(t)
	o := newOutbox(t, server.URL())
	p, acknowledged := o.frozenInFlight(server, "--shutdown-timeout", "300ms")
	p.Signal(syscall.SIGTERM)
	p.WaitExit(0, testenv.Deadline)
	line := logLine(t, p.WaitLine(`"msg":"stopped"`, testenv.Deadline))
	if line["events_unacknowledged"] == 0.0 {
		t.Errorf("the last line does not say that events are not acknowledged: %v", line)
	}
	told := []pglogrepl.LSN{o.confirmedLSN()}
	server.Thaw()
	o.startStreaming()
	o.expectAll()
	expectNotPast(t, told, commitLSN(t, o.ours()[acknowledged]))
}

// frozenInFlight runs a forwarder whose events are sent to a server that does not
// answer. It returns how many events have been acknowledged before.
func (o *outbox) frozenInFlight(server *testenv.NATSServer, args ...string) (p *testenv.Program, acknowledged int) {
	o.tb.Helper()
	p, health := o.startHTTPStreaming(append(args, "--ack-timeout", "1m", "--status-interval", "100ms")...)
	o.insert("before", 5)
	o.expectAll()
	o.waitConfirmed()
	server.Freeze()
	// Threads stop one after the other: the first of these may still be answered.
	testenv.Eventually(o.tb, testenv.Deadline, func() error {
		o.insert(testenv.UniqueName("unanswered"), 1)
		if n, _ := health.metric("outbox_cdc_in_flight_events"); n < 1 {
			return fmt.Errorf("%v events are in flight", n)
		}
		return nil
	})
	o.waitStatusMessages(3)
	published, _ := health.metric("outbox_cdc_events_published_total")
	return p, int(published)
}

func TestSIGTERMWhileItStillConnectsEndsTheForwarder(t *testing.T) {
	t.Parallel()
	nats := testenv.NATS(t)
	blackHole := func(t *testing.T, url string) string {
		t.Helper()
		proxy := testenv.NewProxy(t, testenv.AddressOf(t, url))
		proxy.BlackHole()
		return proxy.URL(url)
	}
	refused := func(t *testing.T, url string) string {
		t.Helper()
		proxy := testenv.NewProxy(t, testenv.AddressOf(t, url))
		proxy.Cut()
		return proxy.URL(url)
	}
	for name, through := range map[string]func(*testing.T, string) string{"black hole": blackHole, "refused": refused} {
		for _, side := range []string{"PostgreSQL", "NATS", "both"} {
			t.Run(side+" "+name, func(t *testing.T) {
				t.Parallel()
				o := newOutbox(t, nats.URL())
				if side != "NATS" {
					o.forwarderDatabaseURL = through(t, o.databaseURL)
				}
				if side != "PostgreSQL" {
					o.forwarderNATSURL = through(t, o.natsURL)
				}
				o.insert("waiting", 3)
				p := o.start("--shutdown-timeout", "500ms")
				p.WaitLine(`"msg":"connecting"`, testenv.Deadline)
				if side == "NATS" {
					p.WaitLine(`"msg":"(streaming|backing off)"`, testenv.Deadline)
				}
				p.Signal(syscall.SIGTERM)
				p.WaitExit(0, testenv.Deadline)
			})
		}
	}
}

func TestSIGTERMEndsAStandbyAndLeavesTheLeaderAlone(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	leader := o.startStreaming()
	standby := o.start()
	standby.WaitLine(`"msg":"standby"`, testenv.Deadline)
	standby.Signal(syscall.SIGTERM)
	standby.WaitExit(0, testenv.Deadline)
	o.insert("a", 10)
	o.expectAll()
	leader.Signal(syscall.SIGTERM)
	leader.WaitExit(0, testenv.Deadline)
}
