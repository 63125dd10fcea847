package demo

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// subscriber watches the stream from its end as it was when the subscriber was made.
type subscriber struct {
	nc       *nats.Conn
	stream   jetstream.Stream
	messages jetstream.MessagesContext
	seen     atomic.Uint64 // sequence of the newest message that was counted
	tally    *tally
	report   func(Arrival)
}

func newSubscriber(ctx context.Context, cfg Config, t *tally) (*subscriber, error) {
	nc, err := nats.Connect(cfg.NATSURL, nats.Name("outbox-cdc dev subscriber"), nats.MaxReconnects(-1))
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	s := &subscriber{nc: nc, tally: t, report: cfg.OnArrival}
	if err := s.follow(ctx, cfg.Stream); err != nil {
		nc.Close()
		return nil, fmt.Errorf("subscribe to stream %s: %w", cfg.Stream, err)
	}
	return s, nil
}

func (s *subscriber) follow(ctx context.Context, name string) error {
	js, err := jetstream.New(s.nc)
	if err != nil {
		return fmt.Errorf("open JetStream: %w", err)
	}
	if s.stream, err = js.Stream(ctx, name); err != nil {
		return fmt.Errorf("look at it: %w", err)
	}
	last := s.stream.CachedInfo().State.LastSeq
	s.seen.Store(last)
	consumer, err := s.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:   last + 1,
	})
	if err != nil {
		return fmt.Errorf("make consumer: %w", err)
	}
	if s.messages, err = consumer.Messages(); err != nil {
		return fmt.Errorf("read messages: %w", err)
	}
	return nil
}

// run reports messages until ctx is done.
func (s *subscriber) run(ctx context.Context) error {
	for {
		msg, err := s.messages.Next(jetstream.NextContext(ctx))
		if ctx.Err() != nil {
			return nil //nolint:nilerr // asked to stop
		}
		if errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoHeartbeat) {
			continue // the ordered consumer makes itself anew
		}
		if err != nil {
			return fmt.Errorf("read message: %w", err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("read message: %w", err)
		}
		id := msg.Headers().Get(nats.MsgIdHdr)
		s.seen.Store(meta.Sequence.Stream)
		s.tally.arrive(id)
		s.report(Arrival{
			Sequence: meta.Sequence.Stream, Subject: msg.Subject(), EventID: id,
			Position: msg.Headers().Get("Outbox-Position"), Body: msg.Data(),
		})
	}
}

// atEnd returns a function that tells whether all was counted that the stream holds now.
func (s *subscriber) atEnd(ctx context.Context) (func() bool, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("look at the end of the stream: %w", err)
	}
	return func() bool { return s.seen.Load() >= info.State.LastSeq }, nil
}

func (s *subscriber) close() {
	s.messages.Stop()
	s.nc.Close()
}
