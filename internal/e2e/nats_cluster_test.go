package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// nats-server 2.15.2 takes message ids that a former leader left "in process" for
// duplicates, and counts them as persisted in a fast batch: the answer alone must not
// settle an event that was sent before.
func TestLeaderStepDownsAndALostNodeUnderLoadLoseNothingAndStoreNothingTwice(t *testing.T) {
	group := testenv.NATSCluster(t, 3)
	o := newOutbox(t, group.URL())
	o.remakeStream(func(cfg *jetstream.StreamConfig) { cfg.Replicas, cfg.Duplicates = 3, shortestWindow })
	p := o.startStreaming()
	nc := testenv.ConnectNATS(t, group.URL())
	l := o.startLoad(3, 5*time.Millisecond)
	for range 2 * soakFactor(t) {
		l.waitWritten(700)
		o.stepDown(nc)
	}
	for range soakFactor(t) {
		leader := group.Servers[leaderNumber(t, o.leader())-1]
		l.waitWritten(500)
		leader.Stop()
		l.waitWritten(1000)
		if err := leader.Start(testenv.Context(t, testenv.Deadline)); err != nil {
			t.Fatal(err)
		}
	}
	l.waitWritten(1000)
	l.end()
	o.expectCommitOrder()
	o.waitConfirmed()
	if lines := len(p.Lines()); lines > 60 {
		t.Errorf("the forwarder printed %d lines", lines)
	}
}

// leaderNumber reads the name that testenv.NATSCluster gives to a server.
func leaderNumber(tb testing.TB, name string) int {
	tb.Helper()
	var number int
	if _, err := fmt.Sscanf(name, "n%d", &number); err != nil {
		tb.Fatalf("server %q: %v", name, err)
	}
	return number
}

// leader returns the name of the server that leads the stream.
func (o *outbox) leader() string {
	o.tb.Helper()
	js := testenv.JetStream(o.tb, o.natsURL)
	var name string
	testenv.Eventually(o.tb, 2*testenv.Deadline, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		s, err := js.Stream(ctx, o.stream)
		if err != nil {
			return err
		}
		if info := s.CachedInfo().Cluster; info != nil {
			name = info.Leader
		}
		if name == "" {
			return fmt.Errorf("stream %s has no leader", o.stream)
		}
		return nil
	})
	return name
}

// stepDown makes another server lead the stream.
func (o *outbox) stepDown(nc *nats.Conn) {
	o.tb.Helper()
	before := o.leader()
	testenv.Eventually(o.tb, 2*testenv.Deadline, func() error {
		if _, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+o.stream, nil, 2*time.Second); err != nil {
			return err
		}
		if now := o.leader(); now == before {
			return fmt.Errorf("%s leads the stream still", now)
		}
		return nil
	})
}
