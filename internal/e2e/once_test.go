package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// shortestWindow is the least that nats-server takes.
const shortestWindow = 100 * time.Millisecond

// shortWindow makes the stream forget message ids almost at once, so that nothing but
// the stream itself tells what is stored.
func shortWindow(o *outbox) { o.setupArgs = []string{"--duplicate-window", shortestWindow.String()} }

// beyondTheWindow waits longer than the stream remembers message ids.
func beyondTheWindow() { wait(context.Background(), 150*time.Millisecond) }

func TestForwarderKilledForLongerThanTheDuplicateWindowStoresNothingTwice(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	p := o.startStreaming()
	l := o.startLoad(4, 5*time.Millisecond)
	for range 10 * soakFactor(t) {
		l.waitWritten(1000)
		p.Kill()
		beyondTheWindow()
		p = o.start()
	}
	l.waitWritten(1000)
	l.end()
	o.expectCommitOrder()
}

func TestNATSKilledForLongerThanTheDuplicateWindowStoresNothingTwice(t *testing.T) {
	server := testenv.NATSProcess(t)
	o := newOutbox(t, server.URL(), shortWindow)
	o.startStreaming()
	l := o.startLoad(4, 5*time.Millisecond)
	for range 3 * soakFactor(t) {
		l.waitWritten(1000)
		server.Kill()
		l.waitWritten(300)
		beyondTheWindow()
		server.Start()
	}
	l.waitWritten(1000)
	l.end()
	o.expectCommitOrder()
}

// A slot's position is not durable for each confirmation: after a crash the server
// sends again what was confirmed seconds ago.
func TestPostgresCrashBringsConfirmedEventsAgainAndTheyAreNotStoredTwice(t *testing.T) {
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL(), shortWindow)
	p := o.startStreaming()
	l := o.startLoad(4, 5*time.Millisecond)
	for range 2 * soakFactor(t) {
		l.waitWritten(1000)
		ctx := testenv.Context(t, testenv.Deadline)
		p.Kill() // so that nothing but the slot and the stream knows how far it got
		if err := cluster.Stop(ctx, devstack.StopImmediate); err != nil {
			t.Fatal(err)
		}
		beyondTheWindow()
		if err := cluster.Start(ctx); err != nil {
			t.Fatal(err)
		}
		p = o.start()
	}
	l.waitWritten(1000)
	l.end()
	o.expectCommitOrder()
}
