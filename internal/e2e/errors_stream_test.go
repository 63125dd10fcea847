package e2e

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestQueueOfTheStreamThatOverflowsCostsNeitherEventsNorOrder(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSProcess(t, jetStreamLimits("max_buffered_msgs: 8", ""))
			o := newOutbox(t, testenv.WithUser(t, server.URL(), "fwd", "fwd"))
			if mode.noBatches {
				o.withoutBatches()
			}
			refused := listenForRefusals(t, o.natsURL)
			o.insertTx("a", 100)
			o.startStreaming()
			o.expectAll()
			if err := refused.expect("10167"); err != nil {
				t.Error(err)
			}
			o.waitConfirmed()
		})
	}
}

// batch is a fast batch of somebody else's.
type batch struct {
	tb      testing.TB
	nc      *nats.Conn
	answers *nats.Subscription
	subject string
	id      string
}

func newBatch(tb testing.TB, o *outbox) *batch {
	tb.Helper()
	b := &batch{tb: tb, nc: testenv.ConnectNATS(tb, o.natsURL), subject: o.stream + ".other", id: testenv.UniqueName("theirs")}
	var err error
	if b.answers, err = b.nc.SubscribeSync("_INBOX." + b.id + ".>"); err != nil {
		tb.Fatal(err)
	}
	return b
}

// The operations of a fast batch.
const (
	batchStart  = 0
	batchCommit = 2 // with this message
	batchEnd    = 3 // without one
)

// send sends one message of the batch and returns the answer.
func (b *batch) send(sequence, operation int) string {
	b.tb.Helper()
	reply := fmt.Sprintf("_INBOX.%s.%s.1.fail.%d.%d.$FI", b.id, b.id, sequence, operation)
	if err := b.nc.PublishRequest(b.subject, reply, nil); err != nil {
		b.tb.Fatal(err)
	}
	answer, err := b.answers.NextMsg(testenv.Deadline)
	if err != nil {
		b.tb.Fatal(err)
	}
	return string(answer.Data)
}

func TestTooManyOpenBatchesAreWaitedFor(t *testing.T) {
	t.Parallel()
	server := testenv.NATSProcess(t, jetStreamLimits("limits: { batch: { max_inflight_per_stream: 1 } }", ""))
	o := newOutbox(t, testenv.WithUser(t, server.URL(), "fwd", "fwd"))
	p, health := o.startHTTPStreaming("--status-interval", "100ms")
	refused := listenForRefusals(t, o.natsURL)
	theirs := newBatch(t, o)
	theirs.send(1, batchStart)
	o.insert("a", 10)
	expectUnpassed := o.expectHeldUp(health, "error 10211")
	refused.wait("10211")
	theirs.send(2, batchEnd)
	o.waitStored(11)
	o.expectEvents(o.ours(), o.rows())
	expectUnpassed()
	o.waitConfirmed()
	health.waitReady()
	expectFewLines(t, p)
}

// The server gives a batch up when nothing comes for a while, as when the forwarder is frozen.
func TestBatchThatTheServerGaveUpIsBegunAnewWhereItEnded(t *testing.T) {
	t.Parallel()
	server := testenv.NATSProcess(t, jetStreamLimits(`limits: { batch: { max_inflight_per_stream: 1, timeout: "100ms" } }`, ""))
	o := newOutbox(t, testenv.WithUser(t, server.URL(), "fwd", "fwd"))
	o.insertTx("a", 50_000)
	refused := listenForRefusals(t, o.natsURL)
	p := o.startStreaming("--max-in-flight", "256", "--takeover-after", "off")
	o.waitStored(100)
	testenv.Eventually(t, 2*testenv.Deadline, func() error {
		p.Signal(syscall.SIGSTOP)
		testenv.Eventually(t, testenv.Deadline, func() error { // another batch has room once the forwarder's is gone
			if answer := newBatch(t, o).send(1, batchCommit); strings.Contains(answer, "10211") {
				return errors.New(answer)
			}
			return nil
		})
		p.Signal(syscall.SIGCONT)
		return refused.expect("10208")
	})
	o.waitStored(len(o.rows()))
	o.waitConfirmed()
	o.expectEvents(o.ours(), o.rows())
}

func TestBatchesThatAreForbiddenAndAllowedAgainUnderLoadCostNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming()
	refused := listenForRefusals(t, o.natsURL)
	l := o.startLoad(2, 0)
	testenv.Eventually(t, 2*testenv.Deadline, func() error { // whether a batch is open at that moment is luck
		for _, allowed := range []bool{false, true} {
			l.waitWritten(200)
			o.updateStream(func(cfg *jetstream.StreamConfig) { cfg.AllowBatchPublish = allowed })
		}
		return refused.expect("10205")
	})
	l.waitWritten(200)
	l.end()
	o.expectCommitOrder()
	o.waitConfirmed()
}
