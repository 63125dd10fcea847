package sink

import (
	"context"
	"crypto/tls"
	"errors"
	"math"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

// Close drops the connection. What is in flight stays unanswered.
func (p *Publisher) Close() {
	if p.broker != nil {
		p.broker.Close()
		p.broker = nil
	}
}

// Abort drops the connection from another goroutine, so that a blocked Step returns.
func (p *Publisher) Abort() {
	if b := p.abort.Load(); b != nil {
		(*b).Close()
	}
}

func (p *Publisher) takeAnswers(now time.Time) {
	p.mu.Lock()
	p.answers, p.spare = p.spare[:0], p.answers
	p.mu.Unlock()
	for _, a := range p.spare {
		p.seq.handle(a, now)
	}
}

// watchConnection notices that the connection broke since the last look.
func (p *Publisher) watchConnection() {
	if p.broker == nil {
		return
	}
	if e := p.epoch.Load(); e != p.seenEpo {
		p.seenEpo = e
		p.reconnect++
		p.seq.disconnected()
		p.judged, p.reading = false, false
	}
	select {
	case <-p.broker.Closed(): // it gave up, as nats.go does after two refused logins
		p.broker = nil
		p.seq.disconnected()
		p.judged, p.reading = false, false
	default:
	}
}

func (p *Publisher) connect(ctx context.Context, now time.Time) error {
	b, err := p.cfg.Dial(ctx, Answers{
		Inbox: p.seq.inbox, Take: p.onAnswer, Disconnected: func() { p.epoch.Add(1); p.signal() }, Reconnected: p.signal,
	})
	if err != nil {
		var cfgErr *ConfigError
		var untrusted *tls.CertificateVerificationError
		switch {
		case errors.As(err, &cfgErr) && !p.everConn:
			return fault.NewOperator("nats-config", cfgErr.Error(), cfgErr.Hint, nil)
		case errors.Is(err, nats.ErrAuthorization) && !p.everConn:
			return fault.NewOperator("nats-authorization", "", "check the user and password or the credentials file for --nats-url", err)
		case errors.As(err, &untrusted) && !p.everOpen:
			return fault.NewOperator("nats-certificate", "", "give --nats-ca the authority that signed the server's certificate, and in --nats-url a name that it holds", err)
		}
		p.wait(now, err)
		return nil
	}
	p.broker, p.everConn = b, true
	p.abort.Store(&b)
	p.seenEpo = p.epoch.Load()
	return nil
}

// onAnswer runs in a goroutine of the connection.
func (p *Publisher) onAnswer(subject, status string, body []byte) {
	a, ok := parseAnswer(subject, p.seq.inbox, p.seq.nonce, status, body)
	if !ok {
		return
	}
	p.mu.Lock()
	p.answers = append(p.answers, a)
	p.mu.Unlock()
	p.signal()
}

// publish implements wire. The message is copied before it returns.
func (p *Publisher) publish(m *Message, reply []byte, expectedLastSeq uint64, expect bool) error {
	if p.broker == nil {
		return nats.ErrConnectionClosed
	}
	return p.broker.Publish(m, reply, p.cfg.Stream, expectedLastSeq, expect && expectedLastSeq < math.MaxUint64)
}

// endBatch implements wire.
func (p *Publisher) endBatch(subject string, reply []byte) error {
	if p.broker == nil {
		return nats.ErrConnectionClosed
	}
	return p.broker.PublishEmpty(subject, reply)
}

// flush sends what publish and endBatch have gathered.
func (p *Publisher) flush() error {
	if p.broker == nil {
		return nil
	}
	return p.broker.Flush()
}
