package e2e

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// second is another slot and stream for the same table, under the same source name.
func (o *outbox) second() *outbox {
	o.tb.Helper()
	o.extra = append(o.extra, "--source", "shop")
	other := *o
	other.slot, other.stream = testenv.UniqueName("ob"), testenv.UniqueName("OB")
	other.extra = append([]string{"--publication", o.slot}, o.extra...)
	other.run("slot", "create").WaitExit(0, testenv.Deadline)
	other.run("stream", "create").WaitExit(0, testenv.Deadline)
	return &other
}

// copyStream publishes the messages of one stream into another one, each changed.
func copyStream(o, other *outbox, change func(nats.Header)) {
	o.tb.Helper()
	js := testenv.JetStream(o.tb, o.natsURL)
	for _, m := range o.stored() {
		header := nats.Header{}
		for name, values := range m.Header {
			if strings.HasPrefix(name, "Outbox-") {
				header[name] = values
			}
		}
		change(header)
		msg := &nats.Msg{Subject: strings.Replace(m.Subject, o.stream, other.stream, 1), Header: header, Data: m.Data}
		if _, err := js.PublishMsg(testenv.Context(o.tb, testenv.Deadline), msg); err != nil {
			o.tb.Fatal(err)
		}
	}
}

func TestStreamFilledFromACloneIsRefusedWithBothEventsNamed(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	other := o.second()
	o.startStreaming()
	o.insert("a", 3)
	o.waitStored(3)
	copyStream(o, other, func(h nats.Header) { h.Set("Outbox-Event-Id", "of-the-clone-"+h.Get("Outbox-Event-Id")) })
	p := other.start()
	p.WaitExit(3, testenv.Deadline)
	id := o.rows()[0]
	for _, want := range []string{"of-the-clone-" + id, "is event " + id, "hint:"} {
		if !strings.Contains(p.Stderr(), want) {
			t.Errorf("no %q in: %s", want, p.Stderr())
		}
	}
	if n := len(other.stored()); n != 3 {
		t.Errorf("the stream holds %d messages, want the 3 of before", n)
	}
}

func TestSourceOfAnotherServerIsRefusedWithBothNamedUntilItIsAdopted(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	other := o.second()
	o.startStreaming()
	o.insert("a", 3)
	o.waitStored(3)
	system := testenv.Query(t, o.databaseURL, "SELECT system_identifier::text FROM pg_control_system()")[0]
	copyStream(o, other, func(h nats.Header) { h.Set("Outbox-Source", "42/shop") })
	p := other.start()
	p.WaitExit(3, testenv.Deadline)
	for _, want := range []string{"system identifier 42", system, "--adopt"} {
		if !strings.Contains(p.Stderr(), want) {
			t.Errorf("no %q in: %s", want, p.Stderr())
		}
	}
	other.startStreaming("--adopt")
	other.waitStored(6) // the three rows again, under their own server's name
	other.waitConfirmed()
	// Once its own messages are the newest, nothing has to be adopted any more.
	if got := other.stored()[5].Header.Get("Outbox-Source"); got != system+"/shop" {
		t.Errorf("source %q", got)
	}
}
