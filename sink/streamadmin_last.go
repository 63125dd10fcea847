package sink

import (
	"context"
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

// lastEventLookback bounds how many newer messages of others are passed over, one
// request each.
const lastEventLookback = 256

// LastEvent finds the newest first delivery of a source ("<system identifier>/<name>").
// It asks the leader, since replicas may lag. It returns nil when there is none, or none among the newest
// 256 messages nor at the end of the template's subjects.
func (c *Client) LastEvent(ctx context.Context, stream, source, template string) (*LastEvent, error) {
	return lastEvent(ctx, c, stream, source, template)
}

func lastEvent(ctx context.Context, r fetcher, stream, source, template string) (*LastEvent, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*apiTimeout)
	defer cancel()
	newest, err := r.Message(ctx, stream, MessageQuery{LastBySubject: ">"})
	if err != nil || newest == nil {
		return nil, err
	}
	if newest.isFrom(source) {
		return newest.event(), nil
	}
	for _, subject := range SubjectsFor(template) {
		m, err := r.Message(ctx, stream, MessageQuery{LastBySubject: subject})
		if err != nil {
			return nil, err
		}
		if m != nil && m.isFrom(source) {
			return m.event(), nil
		}
	}
	for back := uint64(1); back < lastEventLookback && newest.Sequence > back; back++ {
		m, err := r.Message(ctx, stream, MessageQuery{Seq: newest.Sequence - back})
		if err != nil {
			return nil, err
		}
		if m != nil && m.isFrom(source) {
			return m.event(), nil
		}
	}
	return nil, nil
}

func (m *Fetched) event() *LastEvent {
	return &LastEvent{
		EventID: m.Header.Get(HeaderEventID), Subject: m.Subject, Sequence: m.Sequence,
		Position: m.Header.Get(HeaderPosition), StoredAt: m.Time,
	}
}
