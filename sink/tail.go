package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// apiTimeout bounds one request to the JetStream API.
const apiTimeout = 3 * time.Second

// streamLimits is what a message must fit into.
type streamLimits struct {
	subjects   []string
	maxPayload int // of the server, headers included
	maxMsgSize int // of the stream, headers included; <= 0 is none
	// maxBytes is the size of a stream that makes room by dropping the oldest messages: what
	// is larger is acknowledged and dropped. <= 0 is none.
	maxBytes      int64
	dropsPerSubj  bool // it drops the oldest messages of a subject, however new
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
func readTail(ctx context.Context, b Broker, stream, source string) (tail, streamLimits, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	st, err := b.StreamStatus(ctx, stream)
	if err != nil {
		return tail{}, streamLimits{}, err
	}
	if !st.Exists {
		return tail{}, streamLimits{}, fmt.Errorf("read stream %q: %w", stream, jetstream.ErrStreamNotFound)
	}
	limits := streamLimits{
		subjects: st.Subjects, subjectsKnown: true,
		maxPayload: b.MaxPayload(), maxMsgSize: int(st.MaxMsgSize),
	}
	if st.Discard == discardOld {
		limits.maxBytes, limits.dropsPerSubj = st.MaxBytes, st.MaxMsgsPerSubj > 0
	}
	if err := usable(st); err != nil {
		return tail{}, limits, err
	}
	t := tail{
		madeAt: st.Created, firstSeq: st.FirstSequence, lastSeq: st.LastSequence, batched: st.AllowBatched, own: true,
		replicated: st.Replicas > 1,
		keeps:      st.Retention == retentionLimits,
	}
	if st.Messages == 0 {
		return t, limits, nil
	}
	newest, err := newestMessage(ctx, b, stream)
	if err != nil {
		return tail{}, limits, err
	}
	if newest != nil {
		t.lastSeq = max(t.lastSeq, newest.Sequence)
		t.own = newest.Header.Get(HeaderSource) == source
		t.newest = newest
	}
	return t, limits, nil
}

func usable(st StreamStatus) error {
	switch {
	case st.NoAck:
		return &StreamUnusableError{st.Name, "acknowledges nothing (no_ack)", "make the stream anew without no_ack: without acknowledgements nothing can be confirmed"}
	case st.Sealed:
		return &StreamUnusableError{st.Name, "is sealed", "use another stream: a sealed one takes nothing any more"}
	case st.Mirror:
		return &StreamUnusableError{st.Name, "is a mirror", "publish to the stream that it mirrors"}
	}
	return nil
}

// ErrorCode returns the JetStream error code (err_code) in err's chain, or 0.
func ErrorCode(err error) int {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		return int(api.ErrorCode)
	}
	return 0
}
