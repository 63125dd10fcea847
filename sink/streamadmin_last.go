package sink

import (
	"context"
	"encoding/json"
	"fmt"
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

func (m *fetched) event() *LastEvent {
	return &LastEvent{
		EventID: m.header.Get(HeaderEventID), Subject: m.Subject, Sequence: m.Sequence,
		Position: m.header.Get(HeaderPosition), StoredAt: m.Time,
	}
}
