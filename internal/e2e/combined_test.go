package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// instance is one of several forwarders of an outbox, with links of its own to both
// servers.
type instance struct {
	name         string
	postgres     *testenv.Proxy
	nats         *testenv.Proxy
	program      *testenv.Program
	frozen, hung bool
}

// combined is an outbox whose servers and forwarders fail in any combination.
type combined struct {
	*outbox
	cluster   *testenv.Cluster
	server    *testenv.NATSServer
	instances []*instance
	rng       *rand.Rand
	stopped   bool // PostgreSQL is
	killed    bool // nats-server is
}

// fault is something that happens to one instance or to a server.
type fault struct {
	name string
	do   func(c *combined, i *instance)
}

var faults = []fault{
	{"kill", func(_ *combined, i *instance) { i.program.Kill() }},
	{"kill", func(_ *combined, i *instance) { i.program.Kill() }},
	{"terminate", func(_ *combined, i *instance) { i.program.Signal(syscall.SIGTERM) }},
	{"freeze", func(_ *combined, i *instance) { i.program.Signal(syscall.SIGSTOP); i.frozen = true }},
	{"freeze", func(_ *combined, i *instance) { i.program.Signal(syscall.SIGSTOP); i.frozen = true }},
	{"cut PostgreSQL", func(_ *combined, i *instance) { i.postgres.Cut(); i.hung = true }},
	{"cut NATS", func(_ *combined, i *instance) { i.nats.Cut(); i.hung = true }},
	{"lose what NATS answers", func(_ *combined, i *instance) { i.nats.BlackHole(testenv.ToClient); i.hung = true }},
	{"lose the way to PostgreSQL", func(_ *combined, i *instance) { i.postgres.BlackHole(); i.hung = true }},
	{"drop both links", func(_ *combined, i *instance) { i.nats.Drop(); i.postgres.Drop() }},
	{"end the walsender", func(c *combined, _ *instance) {
		if !c.stopped {
			c.exec("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '" + c.slot + "' AND active")
		}
	}},
	{"kill nats-server", func(c *combined, _ *instance) {
		if !c.killed {
			c.server.Kill()
			c.killed = true
		}
	}},
	{"stop PostgreSQL at once", func(c *combined, _ *instance) {
		if !c.stopped {
			c.must(c.cluster.Stop(testenv.Context(c.tb, testenv.Deadline), devstack.StopImmediate))
			c.stopped = true
		}
	}},
}

func (c *combined) must(err error) {
	c.tb.Helper()
	if err != nil {
		c.tb.Fatal(err)
	}
}

// run starts the instance's forwarder.
func (c *combined) run(i *instance) {
	c.forwarderDatabaseURL, c.forwarderNATSURL = i.postgres.URL(c.databaseURL), i.nats.URL(c.natsURL)
	i.program = c.start("--takeover-after", "2s", "--ack-timeout", "2s")
}

// heal ends all faults.
func (c *combined) heal() {
	if c.stopped {
		c.must(c.cluster.Start(testenv.Context(c.tb, testenv.Deadline)))
		c.stopped = false
	}
	if c.killed {
		c.server.Start()
		c.killed = false
	}
	for _, i := range c.instances {
		if i.hung {
			i.postgres.Heal()
			i.nats.Heal()
			i.hung = false
		}
		select {
		case <-i.program.Done():
			i.frozen = false
			c.run(i)
		default:
		}
	}
	if frozen := c.frozen(); len(frozen) == 1 && c.rng.IntN(2) == 0 {
		c.waitConfirmed() // by the other one, which has to take over
	}
	for _, i := range c.frozen() {
		i.program.Signal(syscall.SIGCONT)
		i.frozen = false
	}
}

func (c *combined) frozen() []*instance {
	var out []*instance
	for _, i := range c.instances {
		if i.frozen {
			out = append(out, i)
		}
	}
	return out
}

// seedOf returns the seed of a random test: OUTBOX_CDC_SEED, or a new one; it is logged.
func seedOf(tb testing.TB) uint64 {
	tb.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("OUTBOX_CDC_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			tb.Fatalf("OUTBOX_CDC_SEED=%q is not a number", text)
		}
		seed = n
	}
	tb.Logf("seed: OUTBOX_CDC_SEED=%d", seed)
	return seed
}

// Faults of both sides at once, with two forwarders and pauses longer than the stream
// remembers message ids. The seed repeats the choice of faults, not their exact moments.
func TestTwoForwardersUnderRandomCombinationsOfFaultsLoseNothingAndStoreNothingTwice(t *testing.T) {
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	server := testenv.NATSProcess(t)
	c := &combined{
		outbox: newOutboxOn(t, cluster, server.URL(), shortWindow), cluster: cluster, server: server,
		rng: rand.New(rand.NewPCG(seedOf(t), 0)),
	}
	for n := range 2 {
		i := &instance{
			name:     fmt.Sprintf("forwarder %d", n+1),
			postgres: testenv.NewProxy(t, testenv.AddressOf(t, c.databaseURL)),
			nats:     testenv.NewProxy(t, testenv.AddressOf(t, c.natsURL)),
		}
		c.instances = append(c.instances, i)
		c.run(i)
	}
	l := c.startLoad(4, 10*time.Millisecond)
	for round := range 3 * soakFactor(t) {
		l.waitWritten(int64(c.rng.IntN(1000)))
		var done []string
		for range 1 + c.rng.IntN(3) {
			f, i := faults[c.rng.IntN(len(faults))], c.instances[c.rng.IntN(len(c.instances))]
			done = append(done, f.name+" ("+i.name+")")
			f.do(c, i)
			wait(context.Background(), time.Duration(c.rng.IntN(300))*time.Millisecond)
		}
		t.Logf("round %d: %s", round, strings.Join(done, ", "))
		beyondTheWindow()
		c.heal()
		if round%3 == 2 {
			l.waitWritten(300)
			c.waitConfirmed()
		}
	}
	l.waitWritten(1000)
	l.end()
	c.expectCommitOrder()
	c.waitConfirmed()
}
