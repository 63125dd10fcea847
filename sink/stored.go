package sink

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// stored is a first delivery of ours, as the stream holds it.
type stored struct {
	seq      uint64
	position decode.Position
	eventID  string // as in the header
}

// messages reads stored messages of a stream, as a Broker does.
type messages interface {
	Message(ctx context.Context, stream string, query MessageQuery) (*Fetched, error)
	Chunk(ctx context.Context, stream string, first, last uint64) ([]*Fetched, error)
}

// newestMessage returns the newest message that a stream holds, nil when it holds none.
// Asked for ">", nats-server looks at the stream's last sequence alone: with that message
// deleted it finds nothing, however many there are before it.
func newestMessage(ctx context.Context, r messages, stream string) (*Fetched, error) {
	newest, err := r.Message(ctx, stream, MessageQuery{LastBySubject: ">"})
	if err != nil || newest != nil {
		return newest, err
	}
	from := func(seq uint64) (*Fetched, error) {
		return r.Message(ctx, stream, MessageQuery{Seq: seq, NextBySubject: ">"})
	}
	if newest, err = from(1); err != nil || newest == nil {
		return nil, err
	}
	end, step := uint64(math.MaxUint64), uint64(1) // nothing lies at end or behind it
	for newest.Sequence+1 < end {
		probe := newest.Sequence + step
		if end < math.MaxUint64 {
			probe = newest.Sequence + 1 + (end-newest.Sequence-1)/2
		}
		m, err := from(probe)
		switch {
		case err != nil:
			return nil, err
		case m == nil:
			end = probe
		default:
			newest, step = m, 2*step
		}
	}
	return newest, nil
}

// isFrom tells whether the message is a first delivery of a source.
func (m *Fetched) isFrom(source string) bool {
	return m.Header.Get(HeaderSource) == source && m.Header.Get(HeaderPosition) != ""
}

// stored returns what resuming needs of a first delivery of ours.
func (m *Fetched) stored() (stored, error) {
	p, err := decode.ParsePosition(m.Header.Get(HeaderPosition))
	if err != nil {
		return stored{}, fmt.Errorf("message %d of the stream: header %s: %w", m.Sequence, HeaderPosition, err)
	}
	return stored{seq: m.Sequence, position: p, eventID: m.Header.Get(HeaderEventID)}, nil
}

// Message fetches one stored message from the leader; nil when there is none.
func (c *Client) Message(ctx context.Context, stream string, query MessageQuery) (*Fetched, error) {
	request, err := json.Marshal(query)
	if err != nil {
		return nil, fmt.Errorf("ask for a message of stream %q: %w", stream, err)
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout) // the answer is lost with a connection or a leader
	defer cancel()
	reply, err := c.nc.RequestWithContext(ctx, messageAPI+stream, request)
	if err != nil {
		return nil, fmt.Errorf("read message of stream %q: %w", stream, err)
	}
	return parseFetched(stream, reply.Data)
}

// messageAPI is asked for stored messages: the leader answers, not a replica.
const messageAPI = "$JS.API.STREAM.MSG.GET."

// parseFetched reads the answer of the JetStream API.
func parseFetched(stream string, data []byte) (*Fetched, error) {
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject  string    `json:"subject"`
			Sequence uint64    `json:"seq"`
			Headers  []byte    `json:"hdrs"`
			Time     time.Time `json:"time"`
		} `json:"message"`
	}
	err := json.Unmarshal(data, &answer)
	if err != nil {
		return nil, fmt.Errorf("read message of stream %q: %w", stream, err)
	}
	if answer.Error != nil {
		if answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, nil
		}
		return nil, fmt.Errorf("read message of stream %q: %w", stream, answer.Error)
	}
	m := Fetched{Subject: answer.Message.Subject, Sequence: answer.Message.Sequence, Time: answer.Message.Time}
	if len(answer.Message.Headers) > 0 {
		// nats-server stores any bytes as headers. What cannot be read is not ours.
		m.Header, _ = nats.DecodeHeadersMsg(answer.Message.Headers)
	}
	return &m, nil
}

// chunkSize is how many messages are asked for at once: one round trip, and little
// enough for the server's queue of API requests.
const chunkSize = 128

const (
	// chunkBytes bounds the answers on their way: nats.go drops what exceeds 64 MB in a
	// subscription without a word, and the server disconnects whom it owes as much.
	chunkBytes = 16 << 20
	// chunkStart is how many are asked for before the size of one is known.
	chunkStart = 4
)

// Chunk fetches the messages with sequences first to last, at most chunkSize, in one
// round trip. Those that are gone are left out.
func (c *Client) Chunk(ctx context.Context, stream string, first, last uint64) ([]*Fetched, error) {
	n := int(min(last-first+1, chunkSize))
	inbox := c.nc.NewRespInbox()
	sub, err := c.nc.SubscribeSync(inbox + ".*")
	if err != nil {
		return nil, fmt.Errorf("read messages of stream %q: %w", stream, err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("read messages of stream %q: %w", stream, err)
	}
	answers := make([]*Fetched, n)
	asked, largest := 0, chunkBytes/chunkStart
	for got := range n {
		// Answers hold whole bodies: no more are asked for than both ends can hold.
		for ; asked < n && asked-got < max(1, chunkBytes/largest); asked++ {
			request := strconv.AppendUint([]byte(`{"seq":`), first+uint64(asked), 10)
			if err := c.nc.PublishRequest(messageAPI+stream, inbox+"."+strconv.Itoa(asked), append(request, '}')); err != nil {
				return nil, fmt.Errorf("read messages of stream %q: %w", stream, err)
			}
		}
		wait, cancel := context.WithTimeout(ctx, apiTimeout) // for each: large messages take their time
		reply, err := sub.NextMsgWithContext(wait)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("read messages of stream %q: %w", stream, err)
		}
		if got == 0 {
			largest = 1
		}
		largest = max(largest, len(reply.Data))
		i, err := strconv.Atoi(reply.Subject[len(inbox)+1:])
		if err != nil || i < 0 || i >= n {
			return nil, fmt.Errorf("read messages of stream %q: unexpected reply on %q", stream, reply.Subject)
		}
		if answers[i], err = parseFetched(stream, reply.Data); err != nil {
			return nil, err
		}
	}
	out := answers[:0]
	for _, m := range answers {
		if m != nil {
			out = append(out, m)
		}
	}
	return out, nil
}
