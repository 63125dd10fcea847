package e2e

import (
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestStreamThatTheServerWillNotMakeIsAnExitThatSaysWhy(t *testing.T) {
	t.Parallel()
	server := testenv.NATSProcess(t, `jetstream { store_dir: "`+testenv.StoreDir+`", max_file_store: 1MB }
		accounts {
			ANY { jetstream: {}, users: [ {user: any, password: pw} ] }
			FEW { jetstream: { max_streams: 1 }, users: [ {user: few, password: pw} ] }
			SIZED { jetstream: { max_bytes_required: true }, users: [ {user: sized, password: pw} ] }
			SMALL { jetstream: { disk_max_stream_bytes: 1KB }, users: [ {user: small, password: pw} ] }
			NONE { users: [ {user: none, password: pw} ] }
		}`)
	bare := testenv.NATSProcess(t, "jetstream: false")
	create := func(t *testing.T, natsURL, user, stream string, args ...string) *testenv.Program {
		t.Helper()
		if user != "" {
			natsURL = testenv.WithUser(t, natsURL, user, "pw")
		}
		return testenv.Run(t, testenv.Binary(t), append([]string{"stream", "create", "--nats-url", natsURL, "--stream", stream}, args...)...)
	}
	create(t, server.URL(), "any", "TAKEN", "--subject", "taken.{event_type}").WaitExit(0, testenv.Deadline)
	create(t, server.URL(), "few", "ONE", "--subject", "one.{event_type}").WaitExit(0, testenv.Deadline)
	for _, test := range []struct {
		name       string
		natsURL    string
		user       string
		args       []string
		exit       int
		what, hint string
	}{
		{name: "replicas without a cluster", user: "any", args: []string{"--replicas", "3"}, exit: 3, what: "err_code=10074", hint: "--replicas 1"},
		{name: "more bytes than the server has", user: "any", args: []string{"--max-bytes", "1GiB"}, exit: 1, what: "err_code=10047", hint: "nats server report jetstream"},
		{name: "subjects of another stream", user: "any", args: []string{"--subject", "taken.{event_type}"}, exit: 3, what: "err_code=10065", hint: "nats stream ls --subject"},
		{name: "duplicate window beyond the age", user: "any", args: []string{"--max-age", "1m", "--duplicate-window", "2m"}, exit: 3, what: "err_code=10052.*window", hint: "setting"},
		{name: "too many streams", user: "few", exit: 3, what: "err_code=10027", hint: "max_streams"},
		{name: "no size", user: "sized", exit: 3, what: "err_code=10113", hint: "--max-bytes"},
		{name: "too large", user: "small", args: []string{"--max-bytes", "1MiB"}, exit: 3, what: "err_code=10122", hint: "--max-bytes"},
		{name: "account without JetStream", user: "none", exit: 3, what: "err_code=10039", hint: "enable JetStream"},
		{name: "server without JetStream", natsURL: bare.URL(), exit: 1, what: "no responders", hint: "JetStream is off"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.natsURL == "" {
				test.natsURL = server.URL()
			}
			p := create(t, test.natsURL, test.user, "NEW", test.args...)
			p.WaitExit(test.exit, testenv.Deadline)
			expectRefusal(t, p, test.what, test.hint)
		})
	}
}

func TestJetStreamThatIsOffIsAnExitAtTheStartAndWaitedForWhileRunning(t *testing.T) {
	t.Parallel()
	const off = `accounts { OUTBOX { users: [ {user: fwd, password: fwd} ] } }`
	on := jetStreamLimits("", "")
	server := testenv.NATSProcess(t, on)
	o := newOutbox(t, testenv.WithUser(t, server.URL(), "fwd", "fwd"))
	p, health := o.startHTTPStreaming("--status-interval", "100ms", "--ack-timeout", "500ms")
	o.insert("before", 3)
	o.expectAll()
	server.Reload(off)
	refused := listenForRefusals(t, o.natsURL)
	o.insert("during", 3)
	refused.wait("10039")
	health.waitRedFor("10039")
	told := o.waitStatusMessages(3)

	second := newOutbox(t, testenv.NATS(t).URL())
	second.forwarderNATSURL, second.stream = o.natsURL, o.stream
	expectStop(t, second.start(), "10039")

	server.Reload(on)
	o.expectAll()
	expectNotPast(t, told, commitLSN(t, o.ours()[3]))
	o.waitConfirmed()
	health.waitReady()
	expectFewLines(t, p)
}
