package sink

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

// Close drops the connection. What is in flight stays unanswered.
func (p *Publisher) Close() {
	if p.client != nil {
		p.client.Close()
		p.client = nil
	}
}

// Abort drops the connection from another goroutine, so that a blocked Step returns.
func (p *Publisher) Abort() {
	if c := p.abort.Load(); c != nil {
		c.Close()
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
	if p.client == nil {
		return
	}
	if e := p.epoch.Load(); e != p.seenEpo {
		p.seenEpo = e
		p.reconnect++
		p.seq.disconnected()
		p.judged = false
	}
	select {
	case <-p.client.closed: // it gave up, as nats.go does after two refused logins
		p.client = nil
		p.seq.disconnected()
		p.judged = false
	default:
	}
}

func (p *Publisher) connect(ctx context.Context, now time.Time) error {
	c, err := Dial(ctx, p.cfg.Client, p.cfg.Log)
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
	c.nc.SetDisconnectErrHandler(func(*nats.Conn, error) { p.epoch.Add(1); p.signal() })
	c.nc.SetReconnectHandler(func(*nats.Conn) { p.signal() })
	sub, err := c.nc.Subscribe(p.seq.inbox+".>", p.onAnswer)
	if err == nil {
		err = sub.SetPendingLimits(-1, -1) // an answer that is dropped here would be a timeout
	}
	if err != nil {
		c.Close()
		p.wait(now, fmt.Errorf("subscribe to answers: %w", err))
		return nil
	}
	p.client, p.sub, p.everConn = c, sub, true
	p.abort.Store(c)
	p.seenEpo = p.epoch.Load()
	return nil
}

// onAnswer runs in the subscription's goroutine of nats.go.
func (p *Publisher) onAnswer(m *nats.Msg) {
	a, ok := parseAnswer(m.Subject, p.seq.inbox, p.seq.nonce, m.Header.Get("Status"), m.Data)
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
	if p.client == nil {
		return nats.ErrConnectionClosed
	}
	expect = expect && expectedLastSeq < math.MaxUint64
	if p.frames.conn != nil {
		return p.frames.publish(m, reply, p.cfg.Stream, expectedLastSeq, expect)
	}
	clear(p.header)
	n := 0
	set := func(name, value string) {
		if n == len(p.values) {
			p.values = append(p.values, make([]string, 1))
		}
		p.values[n][0] = value
		p.header[name] = p.values[n]
		n++
	}
	for name, value := range m.Headers {
		set(name, value)
	}
	set(hdrExpectedStream, p.cfg.Stream)
	if expect {
		set(hdrExpectedLastSeq, strconv.FormatUint(expectedLastSeq, 10))
	}
	p.msg.Subject, p.msg.Reply, p.msg.Header, p.msg.Data = m.Subject, string(reply), p.header, m.body
	return p.client.nc.PublishMsg(&p.msg)
}

// endBatch implements wire.
func (p *Publisher) endBatch(subject string, reply []byte) error {
	if p.client == nil {
		return nats.ErrConnectionClosed
	}
	if p.frames.conn != nil {
		p.frames.publishEmpty(subject, reply)
		return nil
	}
	return p.client.nc.PublishRequest(subject, string(reply), nil)
}
