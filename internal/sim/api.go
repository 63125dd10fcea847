package sim

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/sink"
)

// chunkMost is how many messages are read at once.
const chunkMost = 128

// ask lets the servers answer, and returns when the client has the answer.
func ask[T any](ctx context.Context, c *natsConn, answer func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if err := c.p.pass(); err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	done := make(chan result, 1)
	c.w.mu.Lock()
	if !c.up {
		c.w.mu.Unlock()
		return none, nats.ErrConnectionClosed
	}
	back := c.toClient
	c.toServer.send(c.js.latency(), func() {
		var r result
		switch c.js.api() {
		case apiSilent:
			return
		case apiLeaderless:
			r.err = apiError(errNotLeader)
		case apiAnswers:
			r.value, r.err = answer()
		}
		back.send(c.js.latency(), func() { done <- r })
	})
	c.w.mu.Unlock()
	var r result
	select {
	case r = <-done:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	if err := c.p.pass(); err != nil {
		return none, err
	}
	return r.value, r.err
}

type apiState int

const (
	apiAnswers apiState = iota
	apiSilent
	apiLeaderless
)

// api says what becomes of a request to the API.
func (js *jetStream) api() apiState {
	switch {
	case js.down, js.mute, js.leader < 0 && js.w.chance(2):
		return apiSilent
	case js.leader < 0:
		return apiLeaderless
	default:
		return apiAnswers
	}
}

func apiError(code int) error {
	return &jetstream.APIError{Code: 503, ErrorCode: jetstream.ErrorCode(code), Description: "simulated"}
}

// StreamStatus implements sink.Broker.
func (c *natsConn) StreamStatus(ctx context.Context, stream string) (sink.StreamStatus, error) {
	return ask(ctx, c, func() (sink.StreamStatus, error) {
		js := c.js
		return sink.StreamStatus{
			Exists: stream == js.cfg.name, Name: stream, Subjects: js.cfg.subjects,
			Messages: js.lastSeq() - uint64(js.deleted), FirstSequence: js.firstSeq(), LastSequence: js.lastSeq(),
			Replicas: js.cfg.replicas, DuplicateWindow: js.cfg.window, MaxMsgSize: int32(js.cfg.maxMsgSize),
			AllowBatched: js.cfg.batched, Retention: "limits", Discard: "new", Storage: "file",
		}, nil
	})
}

// Message implements sink.Broker.
func (c *natsConn) Message(ctx context.Context, _ string, q sink.MessageQuery) (*sink.Fetched, error) {
	return ask(ctx, c, func() (*sink.Fetched, error) { return c.js.find(q).fetched(), nil })
}

// Chunk implements sink.Broker.
func (c *natsConn) Chunk(ctx context.Context, _ string, first, last uint64) ([]*sink.Fetched, error) {
	return ask(ctx, c, func() ([]*sink.Fetched, error) {
		var found []*sink.Fetched
		for seq := first; seq <= min(last, first+chunkMost-1); seq++ {
			if m := c.js.at(seq).fetched(); m != nil {
				found = append(found, m)
			}
		}
		return found, nil
	})
}

// find returns the message that is asked for, or nil.
func (js *jetStream) find(q sink.MessageQuery) *stored {
	matches := func(m *stored, filter string) bool {
		return m != nil && (&jetStream{cfg: streamConfig{subjects: []string{filter}}}).covers(m.subject)
	}
	switch {
	case q.LastBySubject == ">": // the server looks at the last sequence alone
		return js.at(js.lastSeq())
	case q.LastBySubject != "":
		for seq := js.lastSeq(); seq > 0; seq-- {
			if m := js.at(seq); matches(m, q.LastBySubject) {
				return m
			}
		}
	case q.NextBySubject != "":
		for seq := max(1, q.Seq); seq <= js.lastSeq(); seq++ {
			if m := js.at(seq); matches(m, q.NextBySubject) {
				return m
			}
		}
	default:
		return js.at(q.Seq)
	}
	return nil
}

// fetched is the message as the API shows it; nil for none.
func (s *stored) fetched() *sink.Fetched {
	if s == nil {
		return nil
	}
	if s.header == nil && s.msg != nil {
		s.header = map[string][]string{}
		for name, value := range s.msg.Headers {
			s.header[name] = append(s.header[name], value)
		}
	}
	return &sink.Fetched{Subject: s.subject, Sequence: s.seq, Time: s.at, Header: s.header}
}
