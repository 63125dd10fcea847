package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// sharedStream is one in which others publish on subjects below T, and topics may lie there too.
func sharedStream(t *testing.T, natsURL string) *outbox {
	t.Helper()
	o := newOutbox(t, natsURL, shortWindow)
	o.updateStream(func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "T.>") })
	return o
}

// publishForeign publishes messages of somebody else.
func (o *outbox) publishForeign(subject string, n int) {
	o.tb.Helper()
	js := testenv.JetStream(o.tb, o.natsURL)
	body := make([]byte, 300)
	for range n {
		if _, err := js.PublishAsync(subject, body); err != nil {
			o.tb.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-testenv.Context(o.tb, testenv.Deadline).Done():
		o.tb.Fatal("the messages of others are not all acknowledged")
	}
}

// storeUnconfirmed leaves one event in the stream that the slot has not confirmed.
func (o *outbox) storeUnconfirmed(topic string) {
	o.tb.Helper()
	before := len(o.ours())
	p := o.startStreaming("--status-interval", "10m", "--takeover-after", "off")
	o.exec(fmt.Sprintf(`INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, topic, payload)
		VALUES ('order', 'x', 'placed', nullif('%s', ''), '{}')`, topic))
	o.waitStored(before + 1)
	p.Kill()
}

func TestAnEventOnATopicIsFoundAgainBehindMessagesOfOthers(t *testing.T) {
	for _, foreign := range []int{1, 300, 10000} { // within the newest ones that are looked at, behind them, in several slices
		o := sharedStream(t, testenv.NATS(t).URL())
		p := o.startStreaming()
		o.insert("before", 1)
		o.waitConfirmed()
		p.Kill()
		o.storeUnconfirmed("T.x")
		o.publishForeign("T.foreign", foreign)
		beyondTheWindow()
		o.startStreaming()
		o.insert("after", 3)
		o.waitConfirmed()
		if got := summary(testenv.MessageIDs(o.ours())); !strings.HasPrefix(got, "5 events (5 distinct") {
			t.Errorf("behind %d messages of others: %s", foreign, got)
		}
	}
}

// nats-server stores any bytes as headers; nothing of ours can be read while a client
// stumbles over them.
func TestAForeignMessageWithHeadersThatCannotBeReadIsPassedOver(t *testing.T) {
	server := testenv.NATS(t)
	o := sharedStream(t, server.URL())
	p := o.startStreaming()
	o.insert("a", 1)
	o.waitStored(1)
	p.Kill()
	conn, err := net.Dial("tcp", strings.TrimPrefix(server.URL(), "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const header = "NATS/1.0\r\nno colon here\r\n\r\n"
	if _, err := fmt.Fprintf(conn, "CONNECT {\"headers\":true,\"verbose\":false}\r\nHPUB T.x %d %d\r\n%shi\r\nPING\r\n", len(header), len(header)+2, header); err != nil {
		t.Fatal(err)
	}
	o.waitStored(2)
	o.startStreaming()
	o.insert("b", 1)
	o.waitStored(3)
	o.waitConfirmed()
}

// Asked for its newest message, nats-server looks at the last sequence alone.
func TestAStreamWhoseLastMessageWasDeletedTellsWhatItHoldsAllTheSame(t *testing.T) {
	o := sharedStream(t, testenv.NATS(t).URL())
	p := o.startStreaming("--status-interval", "10m", "--takeover-after", "off")
	o.insert("a", 10)
	o.waitStored(10)
	o.publishForeign("T.foreign", 3)
	p.Kill()
	js := testenv.JetStream(t, o.natsURL)
	s, err := js.Stream(testenv.Context(t, testenv.Deadline), o.stream)
	if err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{13, 12, 11} {
		if err := s.DeleteMsg(testenv.Context(t, testenv.Deadline), seq); err != nil {
			t.Fatal(err)
		}
	}
	o.run("verify").WaitExit(0, testenv.Deadline)
	beyondTheWindow()
	o.startStreaming()
	o.insert("b", 3)
	o.waitConfirmed()
	if got := summary(testenv.MessageIDs(o.ours())); !strings.HasPrefix(got, "13 events (13 distinct") {
		t.Error(got)
	}
}
