package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Message is one message as a stream holds it.
type Message struct {
	Subject  string
	Header   nats.Header // never nil
	Data     []byte
	Sequence uint64
}

// MessageIDs returns the Nats-Msg-Id of each message.
func MessageIDs(messages []Message) []string {
	ids := make([]string, len(messages))
	for i, m := range messages {
		ids[i] = m.Header.Get(nats.MsgIdHdr)
	}
	return ids
}

// DumpStream returns all messages that a stream holds when it is called, in order of
// their sequences.
func DumpStream(tb testing.TB, natsURL, stream string) []Message {
	tb.Helper()
	nc, err := nats.Connect(natsURL)
	if err != nil {
		tb.Fatal(err)
	}
	defer nc.Close()
	var messages []Message
	Eventually(tb, 2*Deadline, func() error {
		messages, err = dump(tb.Context(), nc, stream)
		return err
	})
	return messages
}

// dumpStep bounds each wait for an answer: a cluster that elects a leader gives none, and
// then it is best to begin again.
const dumpStep = 5 * time.Second

func dump(ctx context.Context, nc *nats.Conn, name string) ([]Message, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stuck := time.AfterFunc(dumpStep, cancel)
	defer stuck.Stop()

	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	state := stream.CachedInfo().State
	if state.Msgs == 0 {
		return nil, nil
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, err
	}
	iterator, err := consumer.Messages()
	if err != nil {
		return nil, err
	}
	defer iterator.Stop()
	messages := make([]Message, 0, state.Msgs)
	for {
		msg, err := iterator.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		stuck.Reset(dumpStep)
		meta, err := msg.Metadata()
		if err != nil {
			return nil, err
		}
		header := msg.Headers()
		if header == nil {
			header = nats.Header{}
		}
		messages = append(messages, Message{Subject: msg.Subject(), Header: header, Data: msg.Data(), Sequence: meta.Sequence.Stream})
		// By the leader's word: the replica that delivers may lag behind it.
		if meta.Sequence.Stream >= state.LastSeq || uint64(len(messages)) >= state.Msgs {
			return messages, nil
		}
	}
}
