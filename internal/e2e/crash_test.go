package e2e

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// soakFactor multiplies the rounds of the crash tests; make soak sets it.
func soakFactor(tb testing.TB) int {
	tb.Helper()
	text := os.Getenv("OUTBOX_CDC_SOAK")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		tb.Fatalf("OUTBOX_CDC_SOAK=%q is not a positive number", text)
	}
	return n
}

func TestForwarderKilledUnderLoadLosesNothingAndStoresNothingTwice(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming()
	l := o.startLoad(4, 5*time.Millisecond)
	for range 5 * soakFactor(t) {
		l.waitWritten(2000)
		p.Kill()
		p = o.start()
	}
	l.waitWritten(2000)
	l.end()
	o.expectCommitOrder()
}

func TestNATSKilledUnderLoadLosesNothingAndStoresNothingTwice(t *testing.T) {
	server := testenv.NATSProcess(t)
	o := newOutbox(t, server.URL())
	p := o.startStreaming()
	l := o.startLoad(4, 5*time.Millisecond)
	for range 3 * soakFactor(t) {
		l.waitWritten(2000)
		server.Kill()
		l.waitWritten(500)
		server.Start()
	}
	l.waitWritten(2000)
	l.end()
	o.expectCommitOrder()
	if lines := len(p.Lines()); lines > 100 {
		t.Errorf("the forwarder printed %d lines", lines)
	}
}

func TestPostgresStoppedImmediatelyUnderLoadLosesNothingAndStoresNothingTwice(t *testing.T) {
	cluster := testenv.NewPostgres(t, devstack.PostgresOptions{})
	o := newOutboxOn(t, cluster, testenv.NATS(t).URL())
	o.startStreaming()
	l := o.startLoad(4, 5*time.Millisecond)
	for range 2 * soakFactor(t) {
		l.waitWritten(2000)
		ctx := testenv.Context(t, testenv.Deadline)
		if err := cluster.Stop(ctx, devstack.StopImmediate); err != nil {
			t.Fatal(err)
		}
		if err := cluster.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	l.waitWritten(2000)
	l.end()
	o.expectCommitOrder()
}
