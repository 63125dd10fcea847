package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// apiTimeout bounds one request to the JetStream API.
const apiTimeout = 3 * time.Second

// streamLimits is what a message must fit into.
type streamLimits struct {
	subjects      []string
	maxPayload    int // of the server, headers included
	maxMsgSize    int // of the stream, headers included; <= 0 is none
	subjectsKnown bool
}

// covers tells whether the stream listens on a subject.
func (l streamLimits) covers(subject string) bool {
	for _, f := range l.subjects {
		if subjectMatches(f, subject) {
			return true
		}
	}
	return false
}

// StreamUnusableError says that a stream's configuration rules out publishing
// with acknowledgements.
type StreamUnusableError struct {
	Stream string
	Reason string
	Hint   string
}

// Error names the stream and the reason.
func (e *StreamUnusableError) Error() string {
	return fmt.Sprintf("stream %q %s", e.Stream, e.Reason)
}

// readTail asks the stream's leader for configuration and newest message. A
// replica's answer would not do, since replicas lag.
func (c *Client) readTail(ctx context.Context, stream, source string) (tail, streamLimits, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	s, err := c.js.Stream(ctx, stream)
	if err != nil {
		return tail{}, streamLimits{}, fmt.Errorf("read stream %q: %w", stream, err)
	}
	info := s.CachedInfo()
	limits := streamLimits{
		subjects: info.Config.Subjects, subjectsKnown: true,
		maxPayload: int(c.nc.MaxPayload()), maxMsgSize: int(info.Config.MaxMsgSize),
	}
	if err := usable(stream, info); err != nil {
		return tail{}, limits, err
	}
	t := tail{lastSeq: info.State.LastSeq, batched: info.Config.AllowBatchPublish, own: true}
	if info.State.Msgs == 0 {
		return t, limits, nil
	}
	last, err := c.lastMessage(ctx, stream)
	if err != nil {
		return tail{}, limits, err
	}
	if last != nil {
		t.lastSeq = max(t.lastSeq, last.seq)
		t.own = last.header.Get(HeaderSource) == source
	}
	return t, limits, nil
}

func usable(stream string, info *jetstream.StreamInfo) error {
	switch {
	case info.Config.NoAck:
		return &StreamUnusableError{stream, "acknowledges nothing (no_ack)", "make the stream anew without no_ack: without acknowledgements nothing can be confirmed"}
	case info.Config.Sealed:
		return &StreamUnusableError{stream, "is sealed", "use another stream: a sealed one takes nothing any more"}
	case info.Config.Mirror != nil:
		return &StreamUnusableError{stream, "is a mirror", "publish to the stream that it mirrors"}
	}
	return nil
}

type storedMessage struct {
	seq     uint64
	subject string
	header  nats.Header
}

// lastMessage returns the newest message of the stream without its body, or nil
// when there is none. It asks the leader (not a direct get, which a replica may
// answer).
func (c *Client) lastMessage(ctx context.Context, stream string) (*storedMessage, error) {
	reply, err := c.nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+stream, []byte(`{"last_by_subj":">"}`))
	if err != nil {
		return nil, fmt.Errorf("read newest message of stream %q: %w", stream, err)
	}
	var res struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Header  []byte `json:"hdrs"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &res); err != nil {
		return nil, fmt.Errorf("read newest message of stream %q: %w", stream, err)
	}
	if res.Error != nil {
		if res.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, nil //nolint:nilnil // no message is a normal answer here
		}
		return nil, fmt.Errorf("read newest message of stream %q: %w", stream, res.Error)
	}
	m := &storedMessage{seq: res.Message.Seq, subject: res.Message.Subject}
	if len(res.Message.Header) > 0 {
		if m.header, err = nats.DecodeHeadersMsg(res.Message.Header); err != nil {
			return nil, fmt.Errorf("read headers of newest message of stream %q: %w", stream, err)
		}
	}
	return m, nil
}

// ErrorCode returns the JetStream error code (err_code) in err's chain, or 0.
func ErrorCode(err error) int {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return int(api.ErrorCode)
	}
	return 0
}
