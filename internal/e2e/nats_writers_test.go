package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// foreignWriter publishes into the outbox's stream as fast as the stream stores, without
// any regard to the forwarder.
type foreignWriter struct {
	stop  context.CancelFunc
	group sync.WaitGroup
}

// startForeignWriter keeps pendingMax publishes on their way until it is stopped, with
// a pause between them.
func (o *outbox) startForeignWriter(pendingMax int, pause time.Duration) *foreignWriter {
	o.tb.Helper()
	nc := testenv.ConnectNATS(o.tb, o.natsURL)
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(pendingMax))
	if err != nil {
		o.tb.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w := &foreignWriter{stop: stop}
	// Publishes until it is stopped; waited for by end.
	w.group.Go(func() {
		for ctx.Err() == nil {
			_, _ = js.PublishAsync(o.stream+".foreign", []byte("not ours")) // what is lost here is nobody's
			if pause > 0 {
				wait(ctx, pause)
			}
		}
	})
	o.tb.Cleanup(w.end)
	return w
}

func (w *foreignWriter) end() {
	w.stop()
	w.group.Wait()
}

// waitOurs waits until n of the outbox's own events are stored.
func (o *outbox) waitOurs(n int) {
	o.tb.Helper()
	js := testenv.JetStream(o.tb, o.natsURL)
	testenv.Eventually(o.tb, 4*testenv.Deadline, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s, err := js.Stream(ctx, o.stream)
		if err != nil {
			return err
		}
		info, err := s.Info(ctx, jetstream.WithSubjectFilter(o.stream+".order.>"))
		if err != nil {
			return err
		}
		var got uint64
		for _, count := range info.State.Subjects {
			got += count
		}
		if got < uint64(n) {
			return fmt.Errorf("stream %s holds %d events of this outbox, want %d", o.stream, got, n)
		}
		return nil
	})
}

func TestForeignWriterAtFullLoadCausesNeitherLossNorDisorder(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	_, health := o.startHTTPStreaming()
	refused := listenForRefusals(t, o.natsURL)
	w := o.startForeignWriter(64, 0)
	l := o.startLoad(3, 5*time.Millisecond)
	l.waitWritten(4000)
	l.end()
	o.waitOurs(len(o.rows())) // while the other one writes on
	w.end()
	o.expectCommitOrder()
	if n, _ := health.metric("outbox_cdc_order_violations_total"); n != 0 {
		t.Errorf("%v events count as out of order, and none is", n)
	}
	if err := refused.expect("10071"); err != nil {
		t.Error(err)
	}
	if foreign := len(o.stored()) - len(o.ours()); foreign < 1000 {
		t.Errorf("only %d foreign messages: this proves nothing", foreign)
	}
}

// inversions counts the messages that stand behind one of a later position.
func inversions(tb testing.TB, messages []testenv.Message) int {
	tb.Helper()
	count := 0
	var newest decode.Position
	for _, m := range messages {
		p := position(tb, m)
		if p.Compare(newest) < 0 {
			count++
		} else {
			newest = p
		}
	}
	return count
}

func TestForeignWriterWithoutBatchesCausesNoLossAndItsDisorderIsCounted(t *testing.T) {
	server := testenv.NATS(t)
	// Whether the other one hits a gap is luck; the sink's own tests see to it that some do.
	found := 0
	for range 2 {
		found += foreignWriterWithoutBatches(t, newOutbox(t, server.URL()))
	}
	t.Logf("%d events out of order", found)
}

// foreignWriterWithoutBatches checks what is stored and counted, and returns how many
// events are out of order.
func foreignWriterWithoutBatches(t *testing.T, o *outbox) int {
	t.Helper()
	o.withoutBatches()
	p, health := o.startHTTPStreaming()
	defer p.Kill()
	// One message now and then shifts the sequences by one, so that the event behind a
	// refused one lines up again.
	w := o.startForeignWriter(1, 2*time.Millisecond)
	l := o.startLoad(3, time.Millisecond)
	l.waitWritten(3000)
	l.end()
	want := o.rows()
	o.waitOurs(len(want))
	w.end()
	messages := o.ours()
	ids := map[string]int{}
	for _, id := range testenv.MessageIDs(messages) {
		ids[id]++
	}
	for _, id := range want {
		if ids[id] != 1 {
			t.Fatalf("event %s is stored %d times; stream holds %s", id, ids[id], summary(testenv.MessageIDs(messages)))
		}
	}
	found := inversions(t, messages)
	if counted, _ := health.metric("outbox_cdc_order_violations_total"); int(counted) != found {
		t.Errorf("%v events count as out of order, %d are", counted, found)
	}
	return found
}

func TestStreamWithoutBatchesKeepsOrderAlsoWhenNATSIsKilled(t *testing.T) {
	server := testenv.NATSProcess(t)
	o := newOutbox(t, server.URL())
	o.withoutBatches()
	_, health := o.startHTTPStreaming()
	l := o.startLoad(3, 5*time.Millisecond)
	for range 2 * soakFactor(t) {
		l.waitWritten(1000)
		server.Kill()
		l.waitWritten(300)
		server.Start()
	}
	l.waitWritten(1000)
	l.end()
	o.expectCommitOrder()
	if n, _ := health.metric("outbox_cdc_order_violations_total"); n != 0 {
		t.Errorf("%v events count as out of order, and none is", n)
	}
}
