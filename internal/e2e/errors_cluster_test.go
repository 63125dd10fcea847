package e2e

import (
	"errors"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// Two servers of three go away one after the other: first a stream with one replica has
// none left, then a replicated one has no majority, then the whole cluster no leader.
func TestClusterThatFallsApartIsWaitedForAndNothingIsLostOrStoredTwice(t *testing.T) {
	t.Parallel()
	group := testenv.NATSCluster(t, 3)
	many := testenv.Run(t, testenv.Binary(t), "stream", "create", "--nats-url", group.URL(), "--replicas", "5")
	many.WaitExit(3, testenv.Deadline)
	expectRefusal(t, many, "err_code=10005", "--replicas")
	single, triple := newOutbox(t, group.URL()), newOutbox(t, group.URL())
	triple.remakeStream(func(cfg *jetstream.StreamConfig) { cfg.Replicas = 3 })
	p, singleHealth := single.startHTTPStreaming("--status-interval", "100ms", "--ack-timeout", "500ms")
	single.insert("before", 5)
	single.expectAll()
	single.waitConfirmed()

	first := leaderNumber(t, single.leader())
	group.Servers[first-1].Stop()
	single.insert("during", 5)
	singleHealth.waitRedFor("10118")
	toldSingle := single.waitStatusMessages(3)
	p.Kill() // the next one need not sit out a long wait

	// The server that stays leads the stream and the cluster, until it sees that it is alone.
	left := leaderOf(t, group)
	nc := testenv.ConnectNATS(t, group.URL())
	for leaderNumber(t, triple.leader()) != left {
		triple.stepDown(nc)
	}
	second := 1 + 2 + 3 - first - left
	triple.forwarderNATSURL = group.Servers[left-1].URL()
	refused := listenForRefusals(t, triple.forwarderNATSURL)
	p, tripleHealth := triple.startHTTPStreaming("--status-interval", "100ms", "--ack-timeout", "500ms")
	triple.insert("before", 5)
	triple.expectAll()
	triple.waitConfirmed()
	group.Servers[second-1].Stop()
	triple.insert("during", 5)
	refused.wait("10158") // what was sent is proposed and cannot be stored
	tripleHealth.waitRed()
	refused.wait("10008")
	tripleHealth.waitRedFor("10008")
	told := triple.waitStatusMessages(3)
	p.Kill()

	for _, number := range []int{first, second} {
		if err := group.Servers[number-1].Start(testenv.Context(t, testenv.Deadline)); err != nil {
			t.Fatal(err)
		}
	}
	for _, o := range []*outbox{single, triple} {
		o.startStreaming()
		o.expectAll()
		o.waitConfirmed()
	}
	expectNotPast(t, toldSingle, commitLSN(t, single.ours()[5]))
	expectNotPast(t, told, commitLSN(t, triple.ours()[5]))
}

// leaderOf waits for the number of the server that leads the cluster.
func leaderOf(tb testing.TB, group *testenv.NATSGroup) int {
	tb.Helper()
	var leader int
	testenv.Eventually(tb, testenv.Deadline, func() error {
		leader = 1 + slices.IndexFunc(group.Servers, (*devstack.NATS).LeadsJetStream)
		if leader == 0 {
			return errors.New("the cluster has no leader")
		}
		return nil
	})
	return leader
}
