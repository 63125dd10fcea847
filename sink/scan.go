package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

// Scanned is a stored message by its headers. Texts are empty where it has no such header.
type Scanned struct {
	Sequence    uint64
	Subject     string
	StoredAt    time.Time
	Source      string
	Position    string // of a first delivery
	EventID     string // in the form of AppendEventID
	AggregateID string
	Republished bool
}

const (
	scanAhead   = 4096             // messages asked for before they are needed
	scanIdle    = 2 * time.Second  // after which the leader is asked whether there is more
	scanIdleMax = 30 * time.Second // after which the stream counts as silent
	scanLinger  = time.Minute      // the server drops our consumer when we are gone for that long
)

// AppendEventID appends an event id to dst in the form that its header has.
func AppendEventID(dst, id []byte) []byte { return appendHeaderValue(dst, id) }

// Newest returns the sequence of the newest message that the stream's leader holds, 0
// when it holds none.
func (c *Client) Newest(ctx context.Context, stream string) (uint64, error) {
	m, err := newestMessage(ctx, c, stream)
	if err != nil || m == nil {
		return 0, err
	}
	return m.Sequence, nil
}

// MessageAt returns the message with that sequence, nil when it is gone.
func (c *Client) MessageAt(ctx context.Context, stream string, sequence uint64) (*Scanned, error) {
	m, err := c.Message(ctx, stream, MessageQuery{Seq: sequence})
	if err != nil || m == nil {
		return nil, err
	}
	s := scanned(m.Sequence, m.Subject, m.Time, m.Header)
	return &s, nil
}

// MessageFrom returns the first message with that sequence or a higher one, nil when
// there is none.
func (c *Client) MessageFrom(ctx context.Context, stream string, sequence uint64) (*Scanned, error) {
	m, err := c.Message(ctx, stream, MessageQuery{Seq: sequence, NextBySubject: ">"})
	if err != nil || m == nil {
		return nil, err
	}
	s := scanned(m.Sequence, m.Subject, m.Time, m.Header)
	return &s, nil
}

// Scan calls each with every message of the stream up to lastSeq, in order of their
// sequences, over headers alone. Its memory does not depend on how many there are. It makes a
// consumer that is gone by itself. It blocks until the end, an error of each, ctx ends, or the
// stream has been silent for half a minute.
func (c *Client) Scan(ctx context.Context, stream string, lastSeq uint64, each func(*Scanned) error) error {
	began := time.Now()
	next := uint64(1)
	if more, err := c.anyBetween(ctx, stream, next, lastSeq); err != nil || !more {
		return err
	}
	messages, err := c.consume(ctx, stream)
	if err != nil {
		return c.scanError(stream, began, err)
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for silent := time.Duration(0); next <= lastSeq; {
		msg, err := messages.Next(jetstream.NextMaxWait(scanIdle))
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, nats.ErrTimeout) && silent < scanIdleMax:
			silent += scanIdle
			if more, err := c.anyBetween(ctx, stream, next, lastSeq); err == nil && !more {
				return nil // the last ones are gone by now
			}
			continue
		default:
			return c.scanError(stream, began, err)
		}
		silent = 0
		at, err := msg.Metadata()
		if err != nil {
			return c.scanError(stream, began, err)
		}
		if at.Sequence.Stream > lastSeq {
			return nil
		}
		next = at.Sequence.Stream + 1
		s := scanned(at.Sequence.Stream, msg.Subject(), at.Timestamp, msg.Headers())
		if err := each(&s); err != nil {
			return err
		}
	}
	return nil
}

// consume begins to read the headers of a stream.
func (c *Client) consume(ctx context.Context, stream string) (jetstream.MessagesContext, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*apiTimeout)
	defer cancel()
	consumer, err := c.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverAllPolicy, HeadersOnly: true, InactiveThreshold: scanLinger, MaxResetAttempts: 5,
	})
	if err != nil {
		return nil, err
	}
	return consumer.Messages(jetstream.PullMaxMessages(scanAhead))
}

// anyBetween asks the leader whether the stream holds a message with a sequence from
// first to last.
func (c *Client) anyBetween(ctx context.Context, stream string, first, last uint64) (bool, error) {
	if first > last {
		return false, nil
	}
	m, err := c.MessageFrom(ctx, stream, first)
	return m != nil && m.Sequence <= last, err
}

func scanned(sequence uint64, subject string, at time.Time, h nats.Header) Scanned {
	return Scanned{
		Sequence: sequence, Subject: subject, StoredAt: at,
		Source: h.Get(HeaderSource), Position: h.Get(HeaderPosition), EventID: h.Get(HeaderEventID),
		AggregateID: h.Get(hdrAggregateID), Republished: h.Get(HeaderRepublished) != "",
	}
}

// scanError says what a failed scan was about. A refused permission is reported only
// outside of the call that it fails.
func (c *Client) scanError(stream string, began time.Time, err error) error {
	if at, refused := c.AsyncError(); errors.Is(refused, nats.ErrPermissionViolation) && at.After(began) {
		return fault.NewOperator("nats-permission", fmt.Sprintf("read the headers of stream %q", stream),
			fmt.Sprintf("allow this user to publish to $JS.API.CONSUMER.CREATE.%[1]s.>, $JS.API.CONSUMER.MSG.NEXT.%[1]s.> and $JS.API.CONSUMER.DELETE.%[1]s.>, and to subscribe to _INBOX.>", stream),
			fmt.Errorf("NATS refuses: %w", refused))
	}
	return fmt.Errorf("read the headers of stream %q: %w", stream, err)
}
