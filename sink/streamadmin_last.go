package sink

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// LastEvent is the newest message of one source in a stream.
type LastEvent struct {
	EventID  string
	Subject  string
	Sequence uint64
	Position string
	StoredAt time.Time
}

// lastEventLookback bounds how many newer messages of others are passed over, one
// request each.
const lastEventLookback = 256

// LastEvent finds the newest first delivery of a source ("<system identifier>/<name>").
// It asks the leader, since replicas may lag. It returns nil when there is none, or none among the newest
// 256 messages nor at the end of the template's subjects.
func (c *Client) LastEvent(ctx context.Context, stream, source, template string) (*LastEvent, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*apiTimeout)
	defer cancel()
	newest, err := c.message(ctx, stream, `{"last_by_subj":">"}`)
	if err != nil || newest == nil {
		return nil, err
	}
	if newest.isFrom(source) {
		return newest.event(), nil
	}
	for _, subject := range SubjectsFor(template) {
		request, err := json.Marshal(map[string]string{"last_by_subj": subject})
		if err != nil {
			return nil, fmt.Errorf("ask for newest message on %q: %w", subject, err)
		}
		m, err := c.message(ctx, stream, string(request))
		if err != nil {
			return nil, err
		}
		if m != nil && m.isFrom(source) {
			return m.event(), nil
		}
	}
	for back := uint64(1); back < lastEventLookback && newest.Sequence > back; back++ {
		m, err := c.message(ctx, stream, fmt.Sprintf(`{"seq":%d}`, newest.Sequence-back))
		if err != nil {
			return nil, err
		}
		if m != nil && m.isFrom(source) {
			return m.event(), nil
		}
	}
	return nil, nil
}

type fetched struct {
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"seq"`
	Headers  []byte    `json:"hdrs"`
	Time     time.Time `json:"time"`
	header   nats.Header
}

func (m *fetched) isFrom(source string) bool {
	return m.header.Get(HeaderSource) == source && m.header.Get(HeaderPosition) != ""
}

func (m *fetched) event() *LastEvent {
	return &LastEvent{
		EventID: m.header.Get(HeaderEventID), Subject: m.Subject, Sequence: m.Sequence,
		Position: m.header.Get(HeaderPosition), StoredAt: m.Time,
	}
}

// message fetches one stored message from the leader; nil when there is none.
func (c *Client) message(ctx context.Context, stream, request string) (*fetched, error) {
	reply, err := c.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, []byte(request))
	if err != nil {
		return nil, fmt.Errorf("read message of stream %q: %w", stream, err)
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message fetched             `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return nil, fmt.Errorf("read message of stream %q: %w", stream, err)
	}
	if answer.Error != nil {
		if answer.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, nil
		}
		return nil, fmt.Errorf("read message of stream %q: %w", stream, answer.Error)
	}
	m := answer.Message
	if len(m.Headers) > 0 {
		if m.header, err = nats.DecodeHeadersMsg(m.Headers); err != nil {
			return nil, fmt.Errorf("read headers of message %d of stream %q: %w", m.Sequence, stream, err)
		}
	}
	return &m, nil
}
