package sink

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// frameBufferSize is how much is gathered before it is written; what Step has
	// gathered is written in any case.
	frameBufferSize = 32 << 10
	frameBufferKeep = 1 << 20 // a buffer that one huge message made larger is dropped
)

// dialer dials the connections of one Client and remembers the newest, which the
// publisher may write to beside nats.go.
type dialer struct {
	net.Dialer
	newest atomic.Pointer[sharedConn]
	gaveUp atomic.Bool
}

// abort ends a connection attempt from another goroutine.
func (d *dialer) abort() {
	d.gaveUp.Store(true)
	if conn := d.newest.Load(); conn != nil {
		_ = conn.Conn.Close()
	}
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	if d.gaveUp.Load() {
		return nil, net.ErrClosed
	}
	conn, err := d.Dialer.Dial(network, address)
	if err != nil {
		return nil, err //nolint:wrapcheck // nats.go looks at it
	}
	shared := &sharedConn{Conn: conn}
	d.newest.Store(shared)
	if d.gaveUp.Load() {
		_ = conn.Close()
	}
	return shared, nil
}

// sharedConn lets nats.go and the publisher write to one connection in turns. That
// works because each of them hands over whole protocol operations at each Write:
// nats.go appends an operation to its buffer in one piece and writes the whole buffer.
type sharedConn struct {
	net.Conn
	mu sync.Mutex
}

// Write writes all of b or closes the connection. It blocks for at most natsFlusherLimit.
func (c *sharedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.Conn.SetWriteDeadline(time.Now().Add(natsFlusherLimit)); err != nil {
		return 0, err //nolint:wrapcheck // nats.go looks at it
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Conn.Close() // half an operation may be on its way: nothing may follow it
	}
	return n, err //nolint:wrapcheck // nats.go looks at it
}

// SetWriteDeadline does nothing: each Write sets its own, and one side's deadline must
// not end the other's write.
func (c *sharedConn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets the deadline of reads; see SetWriteDeadline.
func (c *sharedConn) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

// plainConn returns the connection if it carries the protocol as it is, without TLS or
// WebSocket around it; else nil. It may be closed already.
func (c *Client) plainConn() *sharedConn {
	conn := c.dialer.newest.Load() // first: then what is asked next is true of this connection or of a later one
	if _, err := c.nc.TLSConnectionState(); !errors.Is(err, nats.ErrConnectionNotTLS) || !c.nc.HeadersSupported() {
		return nil
	}
	if u, err := url.Parse(c.nc.ConnectedUrl()); err != nil || u.Scheme != "nats" {
		return nil
	}
	return conn
}

// frames writes publishes to a connection as protocol text, which costs a third of
// nats.Conn.PublishMsg with its map of headers.
//
// Protocol: https://docs.nats.io/reference/reference-protocols/nats-protocol#hpub
type frames struct {
	conn *sharedConn // nil: nats.go publishes
	buf  []byte
}

// use takes a connection, or nil. What was gathered for another one is dropped.
func (f *frames) use(conn *sharedConn) {
	if f.conn != conn {
		f.conn, f.buf = conn, f.buf[:0]
	}
}

// publish gathers a message. The error is that of an earlier message's writing too.
func (f *frames) publish(m *Message, reply []byte, stream string, expectedLastSeq uint64, expect bool) error {
	var digits [maxUint64Digits]byte
	expected := strconv.AppendUint(digits[:0], expectedLastSeq, 10)
	size := headerStart + len(m.lines) + len(hdrExpectedStream) + headerLine + len(stream) + headerEnd
	if expect {
		size += len(hdrExpectedLastSeq) + headerLine + len(expected)
	}
	b := append(f.buf, "HPUB "...)
	b = append(b, m.Subject...)
	b = append(b, ' ')
	b = append(b, reply...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(size), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(size+len(m.body)), 10)
	b = append(b, lineEnd+headerVersion...)
	b = append(b, m.lines...)
	b = append(b, hdrExpectedStream+separator...)
	b = append(b, stream...)
	if expect {
		b = append(b, lineEnd+hdrExpectedLastSeq+separator...)
		b = append(b, expected...)
	}
	b = append(b, lineEnd+lineEnd...)
	b = append(b, m.body...)
	f.buf = append(b, lineEnd...)
	if len(f.buf) >= frameBufferSize {
		return f.flush()
	}
	return nil
}

// publishEmpty gathers a message without headers and body.
func (f *frames) publishEmpty(subject string, reply []byte) {
	b := append(f.buf, "PUB "...)
	b = append(b, subject...)
	b = append(b, ' ')
	b = append(b, reply...)
	f.buf = append(b, " 0"+lineEnd+lineEnd...)
}

// flush writes what was gathered. It blocks until the kernel has taken it.
func (f *frames) flush() error {
	if len(f.buf) == 0 {
		return nil
	}
	_, err := f.conn.Write(f.buf)
	f.buf = f.buf[:0]
	if cap(f.buf) > frameBufferKeep {
		f.buf = nil
	}
	if err != nil {
		return fmt.Errorf("write to NATS: %w", err)
	}
	return nil
}
