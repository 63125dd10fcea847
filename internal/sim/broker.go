package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outbox-cdc/outbox-cdc/sink"
)

const (
	apiTimeout    = 3 * time.Second // of one request, as the real client has it
	dialTimeout   = 5 * time.Second
	reconnectWait = 250 * time.Millisecond
	pingTimeout   = 10 * time.Second // after which a connection without a sign of life is given up
)

// natsConn is one connection of a client. It comes back by itself, with the same inbox.
type natsConn struct {
	js     *jetStream
	w      *world
	p      *process
	number int
	a      sink.Answers
	out    []*publish // gathered, not sent
	closed chan struct{}
	gone   bool // closed, or its process is
	up     bool // as far as the client knows

	// Of the present session:
	toServer, toClient *lane
}

// dialer returns what connects a process.
func (js *jetStream) dialer(p *process) func(context.Context, sink.Answers) (sink.Broker, error) {
	return func(ctx context.Context, a sink.Answers) (sink.Broker, error) {
		c := &natsConn{js: js, w: js.w, p: p, a: a, closed: make(chan struct{})}
		if err := p.pass(); err != nil {
			return nil, err
		}
		js.w.mu.Lock()
		latency := js.latency()
		js.w.mu.Unlock()
		wait(ctx, latency)
		if err := p.pass(); err != nil {
			return nil, err
		}
		js.w.mu.Lock()
		defer js.w.mu.Unlock()
		if js.down {
			return nil, nats.ErrNoServers
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		js.made++
		c.number = js.made
		js.conn[c] = true
		p.kills = append(p.kills, c.vanish)
		c.begin()
		return c, nil
	}
}

// wait waits for a fake while.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// latency draws how long something takes through the network.
func (js *jetStream) latency() time.Duration {
	if js.w.chance(50) {
		return js.w.between(time.Millisecond, 30*time.Millisecond)
	}
	return js.w.between(20*time.Microsecond, 400*time.Microsecond)
}

func (c *natsConn) begin() {
	c.toServer, c.toClient = &lane{w: c.w}, &lane{w: c.w}
	c.up = true
}

// take carries an answer to the client.
func (c *natsConn) take(reply, status string, body []byte) {
	c.toClient.send(c.js.latency(), func() { c.p.reach(func() { c.a.Take(reply, status, body) }) })
}

// snap breaks the connection: a first part of what is on its way arrives on each side.
// The client notices a moment later, and returns.
func (c *natsConn) snap() {
	if c.gone || c.toServer.broken {
		return
	}
	c.w.tracef("%s: connection to the stream breaks", c.p.name)
	c.toServer.snap()
	c.toClient.snap()
	c.w.after(c.w.between(time.Microsecond, 2*time.Millisecond), func() { c.p.reach(c.lost) })
}

// lost is the client's noticing.
func (c *natsConn) lost() {
	if c.gone || !c.up {
		return
	}
	c.up = false
	c.a.Disconnected()
	if c.w.chance(30) { // it gives up, as nats.go does after two refused logins
		c.w.tracef("%s: connection to the stream is closed for good", c.p.name)
		c.close()
		return
	}
	c.w.after(c.w.between(time.Millisecond, reconnectWait), c.again)
}

func (c *natsConn) again() {
	if c.gone {
		return
	}
	if c.js.down || c.p.frozen != nil {
		c.w.after(c.w.between(reconnectWait/2, reconnectWait), c.again)
		return
	}
	c.begin()
	c.a.Reconnected()
}

// cut lets nothing through for a while; then what was on its way arrives, or, when it
// lasted too long, both sides have given up.
func (c *natsConn) cut(d time.Duration) {
	if c.gone || c.toServer.broken {
		return
	}
	c.w.tracef("%s: nothing gets through to the stream for %s", c.p.name, d)
	toServer := c.toServer
	c.toServer.stall(d)
	c.toClient.stall(d)
	if d < pingTimeout {
		return
	}
	c.w.after(pingTimeout, func() {
		if c.toServer != toServer {
			return
		}
		c.toServer.items, c.toClient.items = nil, nil // was never delivered
		c.snap()
	})
}

// vanish is what becomes of the connection when its process is killed: what is in the
// kernel still goes out.
func (c *natsConn) vanish() {
	c.toServer.snap()
	c.close()
}

func (c *natsConn) close() {
	if c.gone {
		return
	}
	c.gone, c.up = true, false
	delete(c.js.conn, c)
	c.toClient.broken = true
	c.toServer.broken = true
	close(c.closed)
}

// Prepare implements sink.Broker.
func (c *natsConn) Prepare() { c.out = nil }

// Publish implements sink.Broker.
func (c *natsConn) Publish(m *sink.Message, reply []byte, stream string, expectedLastSeq uint64, expect bool) error {
	id, _ := m.Header("Nats-Msg-Id")
	return c.gather(&publish{
		conn: c, subject: m.Subject, reply: string(reply), msg: m, id: id, stream: stream,
		expected: expectedLastSeq, expect: expect, size: wireSize(m, stream, expectedLastSeq, expect),
	})
}

// wireSize is what the message has in bytes, headers included.
func wireSize(m *sink.Message, stream string, expected uint64, expect bool) int {
	n := len("NATS/1.0\r\n\r\n") + len(m.Body())
	line := func(name, value string) bool {
		n += len(name) + len(": \r\n") + len(value)
		return true
	}
	m.Headers(line)
	line("Nats-Expected-Stream", stream)
	if expect {
		line("Nats-Expected-Last-Sequence", fmt.Sprint(expected))
	}
	return n
}

// PublishEmpty implements sink.Broker.
func (c *natsConn) PublishEmpty(subject string, reply []byte) error {
	return c.gather(&publish{conn: c, subject: subject, reply: string(reply)})
}

func (c *natsConn) gather(p *publish) error {
	if err := c.p.pass(); err != nil {
		return err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if !c.up {
		return nats.ErrConnectionClosed
	}
	p.sentAt = time.Now()
	c.out = append(c.out, p)
	if c.w.chance(60) { // the buffer was full
		c.flush()
	}
	return nil
}

// Flush implements sink.Broker.
func (c *natsConn) Flush() error {
	if err := c.p.pass(); err != nil {
		return err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if !c.up && len(c.out) > 0 {
		c.out = nil
		return nats.ErrConnectionClosed
	}
	c.flush()
	return nil
}

func (c *natsConn) flush() {
	latency := c.js.latency()
	for _, p := range c.out {
		c.toServer.send(latency, func() { c.js.arrive(p) })
		if c.w.chance(8) { // in several packets
			latency = c.js.latency()
		}
	}
	c.out = nil
}

// Connected implements sink.Broker.
func (c *natsConn) Connected() bool {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return c.up
}

// Closed implements sink.Broker.
func (c *natsConn) Closed() <-chan struct{} { return c.closed }

// AsyncError implements sink.Broker: everything is permitted here.
func (c *natsConn) AsyncError() (time.Time, error) { return time.Time{}, nil }

// Close implements sink.Broker.
func (c *natsConn) Close() {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.close()
}

// MaxPayload implements sink.Broker.
func (c *natsConn) MaxPayload() int { return c.js.cfg.maxPayload }
