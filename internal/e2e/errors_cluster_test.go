package e2e

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

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
	nc := testenv.ConnectNATS(t, group.URL())
	first, left := leaderNumber(t, single.leader()), leaderNumber(t, triple.leader())
	for ; left == first; left = leaderNumber(t, triple.leader()) {
		triple.stepDown(nc)
	}
	second := 1 + 2 + 3 - first - left
	remaining := group.Servers[left-1].URL()
	single.forwarderNATSURL, triple.forwarderNATSURL = remaining, remaining
	refused := listenForRefusals(t, remaining)

	_, singleHealth := single.startHTTPStreaming("--status-interval", "100ms", "--ack-timeout", "500ms")
	_, tripleHealth := triple.startHTTPStreaming("--status-interval", "100ms", "--ack-timeout", "500ms")
	for _, o := range []*outbox{single, triple} {
		o.insert("before", 5)
		o.expectAll()
		o.waitConfirmed()
	}
	group.Servers[first-1].Stop()
	single.insert("during", 5)
	singleHealth.waitRedFor("10118")
	triple.insert("during", 5)
	triple.expectAll()
	triple.waitConfirmed()

	group.Servers[second-1].Stop()
	triple.insert("later", 5)
	refused.wait("10158") // what was sent is proposed and cannot be stored
	tripleHealth.waitRed()
	refused.wait("10008")
	tripleHealth.waitRedFor("10008")
	told := triple.waitStatusMessages(3)
	toldSingle := single.waitStatusMessages(1)

	for _, number := range []int{first, second} {
		if err := group.Servers[number-1].Start(testenv.Context(t, testenv.Deadline)); err != nil {
			t.Fatal(err)
		}
	}
	single.expectAll()
	triple.expectAll()
	expectNotPast(t, toldSingle, commitLSN(t, single.ours()[5]))
	expectNotPast(t, told, commitLSN(t, triple.ours()[10]))
	for _, o := range []*outbox{single, triple} {
		o.waitConfirmed()
	}
}
