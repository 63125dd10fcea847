package sink

import (
	"context"
	"slices"
	"strconv"
	"time"
)

// LastEvent is the newest message of one source in a stream.
type LastEvent struct {
	EventID  string
	Subject  string
	Sequence uint64
	Position string
	StoredAt time.Time
}

// lastEventLookback is how many of the newest messages are looked through for one of ours.
const lastEventLookback = 2 * chunkSize

// LastEvent finds the newest first delivery of a source ("<system identifier>/<name>"),
// behind any number of messages that were republished. It asks the leader, since replicas
// may lag. It returns nil when there is none, or none among the newest 256 messages nor at
// the end of the template's subjects; in the latter case there may be a newer one on
// another subject.
func (c *Client) LastEvent(ctx context.Context, stream, source, template string) (*LastEvent, error) {
	n, err := findNewest(ctx, c, stream, source, template)
	return n.event, err
}

// newestEvent is what a stream tells of the newest first delivery of a source.
type newestEvent struct {
	event *LastEvent // nil when there is none, or none was found
	// sure says that event is the newest one, or that there is none.
	sure bool
	// acked is the highest sequence that the publisher had seen acknowledged by then.
	acked uint64
}

// findNewest looks through the newest messages of a stream, in few round trips.
//
// Where that shows none, it looks at the end of the template's subjects; on others there
// may be a newer one.
func findNewest(ctx context.Context, r messages, stream, source, template string) (newestEvent, error) {
	newest, err := newestMessage(ctx, r, stream)
	if err != nil || newest == nil {
		return newestEvent{sure: err == nil}, err
	}
	n, below, err := leadToNewest(ctx, r, stream, source, newest)
	if err != nil || below == 0 {
		return n, err
	}
	for back := 0; back < lastEventLookback && below > 1; back += chunkSize {
		first := max(1, below-min(below, chunkSize))
		chunk, err := r.Chunk(ctx, stream, first, below-1)
		if err != nil {
			return newestEvent{}, err
		}
		below = first
		for _, m := range slices.Backward(chunk) {
			n, before, err := leadToNewest(ctx, r, stream, source, m)
			if err != nil || before == 0 {
				return n, err
			}
			if before < first { // a republished one, and what it points to is gone
				below = before
				break
			}
		}
	}
	if below <= 1 {
		return newestEvent{sure: true}, nil
	}
	for _, subject := range SubjectsFor(template) {
		m, err := r.Message(ctx, stream, MessageQuery{LastBySubject: subject})
		if err != nil {
			return newestEvent{}, err
		}
		if m == nil {
			continue
		}
		if n, _, err := leadToNewest(ctx, r, stream, source, m); err != nil || n.event != nil {
			return newestEvent{event: n.event}, err
		}
	}
	return newestEvent{}, nil
}

// leadToNewest follows a message to the newest first delivery of a source at or before
// it: the message is that one itself, or was republished by the source, and points to it.
// below is 0 when that leads to an end; else only messages before it can be the one.
func leadToNewest(ctx context.Context, r messages, stream, source string, m *Fetched) (n newestEvent, below uint64, err error) {
	if m.isFrom(source) {
		return newestEvent{event: m.event(), sure: true}, 0, nil
	}
	seq, ok := m.lastSequence(source)
	if !ok {
		return newestEvent{}, m.Sequence, nil
	}
	if seq == 0 {
		return newestEvent{sure: true}, 0, nil
	}
	target, err := r.Message(ctx, stream, MessageQuery{Seq: seq})
	if err != nil {
		return newestEvent{}, 0, err
	}
	if target != nil && target.isFrom(source) {
		return newestEvent{event: target.event(), sure: true}, 0, nil
	}
	// It is gone: with all before it, or it alone.
	first, err := r.Message(ctx, stream, MessageQuery{Seq: 1, NextBySubject: ">"})
	if err != nil {
		return newestEvent{}, 0, err
	}
	if first == nil || first.Sequence > seq {
		return newestEvent{sure: true}, 0, nil
	}
	return newestEvent{}, seq, nil
}

// lastSequence returns where the newest first delivery of a source was when a message was
// republished, 0 when there was none; ok is false for every other message.
func (m *Fetched) lastSequence(source string) (seq uint64, ok bool) {
	if m.Header.Get(HeaderSource) != source || m.Header.Get(HeaderRepublished) == "" {
		return 0, false
	}
	seq, err := strconv.ParseUint(m.Header.Get(HeaderLastSequence), 10, 64)
	return seq, err == nil && seq < m.Sequence
}

func (m *Fetched) event() *LastEvent {
	return &LastEvent{
		EventID: m.Header.Get(HeaderEventID), Subject: m.Subject, Sequence: m.Sequence,
		Position: m.Header.Get(HeaderPosition), StoredAt: m.Time,
	}
}
