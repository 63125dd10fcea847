package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestBlackHoleBeforePostgresTurnsHealthRedAndIsLeftBehind(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	proxy := testenv.NewProxy(t, testenv.AddressOf(t, o.databaseURL))
	o.forwarderDatabaseURL = proxy.URL(o.databaseURL) + "&connect_timeout=2"
	p, health := o.startHTTPStreaming("--status-interval", "200ms", "--takeover-after", "1s")
	o.insert("before", 100)
	o.expectAll()
	health.waitMetric("outbox_cdc_slot_lag_bytes", func(float64) bool { return true })

	proxy.BlackHole()
	o.insert("during", 50)
	health.waitRed()
	p.WaitLine(`"msg":"backing off"`, testenv.Deadline)
	testenv.Eventually(t, testenv.Deadline, func() error {
		if lag, known := health.metric("outbox_cdc_slot_lag_bytes"); known {
			return fmt.Errorf("lag of %v bytes is shown while the server cannot be asked", lag)
		}
		return nil
	})
	if code, body := health.get("/livez"); code != 200 {
		t.Errorf("GET /livez: %d %s", code, body)
	}

	proxy.Heal()
	o.expectAll()
	o.waitConfirmed()
	health.waitReady()
	expectFewLines(t, p)
}

func TestBlackHoleBeforeNATSTurnsHealthRedAndIsLeftBehind(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	o := newOutbox(t, server.URL())
	proxy := testenv.NewProxy(t, testenv.AddressOf(t, server.URL()))
	o.forwarderNATSURL = proxy.URL(server.URL())
	p, health := o.startHTTPStreaming("--ack-timeout", "1s", "--status-interval", "200ms")
	o.insert("before", 100)
	o.expectAll()
	o.waitConfirmed()

	proxy.BlackHole()
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
		SELECT 'order', 'during', i, 'placed', to_jsonb(repeat(md5(i::text), 500)) FROM generate_series(1, 50) i`)
	health.waitRed()
	p.WaitLine(`"msg":"backing off"`, testenv.Deadline)
	// The lag is the server's: the forwarder has been sent all of these events.
	health.waitMetric("outbox_cdc_slot_lag_bytes", func(bytes float64) bool { return bytes > 50*16000/4 })
	health.waitMetric("outbox_cdc_oldest_unacked_seconds", func(seconds float64) bool { return seconds > 0 })
	told := o.waitStatusMessages(3)

	proxy.Heal()
	o.expectAll()
	expectNotPast(t, told, commitLSN(t, o.ours()[100]))
	o.waitConfirmed()
	health.waitReady()
	expectFewLines(t, p)
}

func TestIdleForwarderNoticesABlackHoleBeforeNATS(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t)
	o := newOutbox(t, server.URL())
	proxy := testenv.NewProxy(t, testenv.AddressOf(t, server.URL()))
	o.forwarderNATSURL = proxy.URL(server.URL())
	_, health := o.startHTTPStreaming()
	o.insert("before", 1)
	o.expectAll()
	proxy.BlackHole()
	health.waitRed()
	proxy.Heal()
	health.waitReady()
	o.insert("after", 10)
	o.expectAll()
}

// expectFewLines checks that waiting is said now and then, not at each attempt.
func expectFewLines(tb testing.TB, p *testenv.Program) {
	tb.Helper()
	const linesMax = 15
	if lines := p.Lines(); len(lines) > linesMax {
		tb.Errorf("%d lines, want at most %d:\n%s", len(lines), linesMax, strings.Join(lines, "\n"))
	}
}

// attemptsMin is how many attempts to connect an outage has to last.
const attemptsMin = 6

func TestServerThatIsAwayIsSpokenOfOnceAndOnItsReturn(t *testing.T) {
	t.Parallel()
	for _, side := range []string{"PostgreSQL", "NATS"} {
		t.Run(side, func(t *testing.T) {
			t.Parallel()
			o := newOutbox(t, testenv.NATS(t).URL())
			url := &o.forwarderNATSURL
			if side == "PostgreSQL" {
				url = &o.forwarderDatabaseURL
			}
			// The inner proxy is cut, the outer one counts the attempts.
			inner := testenv.NewProxy(t, testenv.AddressOf(t, *url))
			outer := testenv.NewProxy(t, inner.Address())
			*url = outer.URL(*url)
			p := o.startStreaming("--takeover-after", "1s")
			o.insert("before", 10)
			o.expectAll()

			lines, attempts := len(p.Lines()), outer.Accepted()
			inner.Cut()
			o.insert("during", 10)
			testenv.Eventually(t, 2*testenv.Deadline, func() error {
				if made := outer.Accepted() - attempts; made < attemptsMin {
					return fmt.Errorf("%d attempts to connect, want %d", made, attemptsMin)
				}
				return nil
			})
			if during := p.Lines()[lines:]; len(during) < 1 || len(during) > 3 {
				t.Errorf("%d lines over %d attempts, want 1 to 3:\n%s", len(during), attemptsMin, strings.Join(during, "\n"))
			}
			inner.Heal()
			o.expectAll()
			down := logLine(t, p.WaitLine(`"msg":"backing off"`, testenv.Deadline))
			if reason := fmt.Sprint(down["reason"]); !strings.HasPrefix(reason, side+": ") {
				t.Errorf("reason %q does not name %s", reason, side)
			}
			up := logLine(t, p.WaitLine(`"msg":"(streaming|standby)"`, testenv.Deadline))
			if up["after"] == nil {
				t.Errorf("the line of the recovery does not say how long it took: %v", up)
			}
		})
	}
}

const (
	nkeySeed      = "SUAL46OPIBDUPKEE6QPI3CHL54R7SFY2ZOPFZO2Q7774YODKBAELJRE4NY"
	nkeyPublic    = "UDPOXFECZHRCAVMAY27TM2NG7HWMKBCF3U4PFVURK6MU3TBAQRUCNVWJ"
	nkeySeedNew   = "SUAO2FGV7Q52PR7ECIMHP7L4XAYHANWCUN4JI5BNRA2H5WRPBPLI7PDCCM"
	nkeyPublicNew = "UC7MKVJ4N2GIMHJ6HHC4CNFOIGVD26HQYMIRX3JPGJNXPLQBMQGY2HSG"
)

// natsUsers is the server's configuration of an administrator and more users.
func natsUsers(more ...string) string {
	return "authorization { users: [ {user: admin, password: admin}, " + strings.Join(more, ", ") + " ] }"
}

func TestNATSPasswordTakenAwayAndPutBackIsWaitedOut(t *testing.T) {
	t.Parallel()
	for name, events := range map[string]int{"after events": 20, "before the first event": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			right := natsUsers("{user: fwd, password: right}")
			server := testenv.NATSProcess(t, right)
			o := newOutbox(t, testenv.WithUser(t, server.URL(), "admin", "admin"))
			o.forwarderNATSURL = testenv.WithUser(t, server.URL(), "fwd", "right")
			p, health := o.startHTTPStreaming()
			if events > 0 {
				o.insert("before", events)
				o.expectAll()
			}
			server.Reload(natsUsers("{user: fwd, password: other}"))
			server.Kill()
			server.Start()
			o.insert("during", 20)
			health.waitRedFor("uthorization")
			server.Reload(right)
			o.insert("after", 20)
			o.expectAll()
			o.waitConfirmed()
			health.waitReady()
			expectFewLines(t, p)
		})
	}
}

func TestNATSCredentialsAreReadAgainWhenTheServerRefusesThem(t *testing.T) {
	t.Parallel()
	server := testenv.NATSProcess(t, natsUsers("{nkey: "+nkeyPublic+"}"))
	o := newOutbox(t, testenv.WithUser(t, server.URL(), "admin", "admin"))
	o.forwarderNATSURL = server.URL()
	file := filepath.Join(t.TempDir(), "user.nk")
	write := func(seed string) {
		if err := os.WriteFile(file, []byte(seed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(nkeySeed)
	_, health := o.startHTTPStreaming("--nats-nkey-file", file)
	o.insert("before", 5)
	o.expectAll()
	server.Reload(natsUsers("{nkey: " + nkeyPublicNew + "}"))
	o.insert("during", 5)
	health.waitRedFor("uthorization")
	write(nkeySeedNew)
	o.expectAll()
	health.waitReady()
}

func TestWrongNATSPasswordAtTheStartIsNotRetried(t *testing.T) {
	t.Parallel()
	server := testenv.NATS(t, natsUsers("{user: fwd, password: right}"))
	o := newOutbox(t, testenv.WithUser(t, server.URL(), "admin", "admin"))
	o.forwarderNATSURL = testenv.WithUser(t, server.URL(), "fwd", "wrong")
	expectStop(t, o.start(), "NATS", "uthorization")
}
