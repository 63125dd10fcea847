package sink_test

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// benchSubjects is how many subjects the messages of BenchmarkStart are spread over.
const benchSubjects = 100_000

// BenchmarkStart measures how long a publisher takes from nothing to the first message
// that it may take, in a stream of BENCH_MESSAGES messages on 100,000 subjects.
func BenchmarkStart(b *testing.B) {
	messages := 1_000_000
	if text := os.Getenv("BENCH_MESSAGES"); text != "" {
		var err error
		if messages, err = strconv.Atoi(text); err != nil {
			b.Fatalf("BENCH_MESSAGES=%q is not a number", text)
		}
	}
	natsURL := testenv.NATSProcess(b).URL()
	stream := makeStream(b, natsURL, func(c *jetstream.StreamConfig) { c.Duplicates = 100 * time.Millisecond })
	fill(b, natsURL, stream, messages)
	for _, c := range []struct {
		name string
		back int // how many of the newest messages the slot has not confirmed
	}{
		{"AllConfirmed", 0}, {"NewestThousandUnconfirmed", 1000}, {"HalfUnconfirmed", messages / 2},
	} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				start(b, natsURL, stream, messages-c.back)
			}
		})
	}
}

func fill(b *testing.B, natsURL, stream string, messages int) {
	b.Helper()
	enc, p := newEncoder(b), newPublisher(b, natsURL, stream)
	ctx := b.Context()
	for added, settled := 0, 0; settled < messages; settled += len(p.Settled()) {
		now := time.Now()
		for added < messages && p.Room(now) {
			if taken, err := p.Add(ctx, topicMessage(b, enc, added), now); err != nil {
				b.Fatal(err)
			} else if !taken {
				break
			}
			added++
		}
		if err := p.Step(ctx, now, added < messages); err != nil {
			b.Fatal(err)
		}
	}
}

func topicMessage(b *testing.B, enc *sink.Encoder, n int) *sink.Message {
	b.Helper()
	var v decode.Values
	v.Fields[decode.FieldEventID] = fmt.Appendf(nil, "%08d-0000-4000-8000-000000000000", n)
	v.Kinds[decode.FieldEventID] = decode.KindUUID
	v.Fields[decode.FieldTopic] = fmt.Appendf(nil, "ours.%d", n%benchSubjects)
	v.Fields[decode.FieldPayload], v.Kinds[decode.FieldPayload] = []byte(`{"n":1}`), decode.KindJSON
	m, err := enc.Encode(decode.NewEvent(decode.Position{Timeline: 1, CommitLSN: 100, Ordinal: uint64(n)}, time.Now(), decode.TableName{}, v))
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// start connects a publisher whose slot has confirmed all before the n-th message.
func start(b *testing.B, natsURL, stream string, n int) {
	b.Helper()
	p := sink.NewPublisher(sink.PublisherConfig{
		Client: sink.ClientConfig{URL: natsURL, Name: "bench"}, Stream: stream, Subject: "ours.{aggregate_type}.{event_type}",
		InFlightMax: 4096, AckTimeout: 2 * time.Second, Log: slog.New(slog.DiscardHandler),
	})
	defer p.Close()
	p.Begin(sink.Origin{
		SystemID: "7000", Name: "outbox", Timeline: 1, WALEndLSN: 1000,
		From: decode.Position{Timeline: 1, CommitLSN: 100, Ordinal: uint64(n)},
	})
	for !p.Room(time.Now()) {
		if err := p.Step(b.Context(), time.Now(), false); err != nil {
			b.Fatal(err)
		}
	}
}
