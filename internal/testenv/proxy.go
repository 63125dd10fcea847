package testenv

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
)

// Direction is one way through a Proxy.
type Direction int

// The two ways. ToServer is what the client sends.
const (
	ToServer Direction = iota
	ToClient
)

// Proxy is a TCP proxy on 127.0.0.1 whose network can fail. Its methods may be called
// from any goroutine and do not block.
type Proxy struct {
	tb     testing.TB
	target string
	port   int

	mu       sync.Mutex
	listener net.Listener       // nil while cut
	links    map[*link]struct{} // open connections
	swallow  [2]bool            // for new connections
	trigger  [2]*trigger
	resumed  chan struct{} // closed unless paused
	closed   bool

	running  sync.WaitGroup
	accepted atomic.Int64
	bytes    [2]atomic.Int64
}

// trigger is an action that waits for a number of bytes.
type trigger struct {
	bytesLeft int64
	do        func()
}

// NewProxy starts a proxy to a server's host:port, for this test alone.
func NewProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	port, err := devstack.FreePort(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{tb: tb, target: target, port: port, links: map[*link]struct{}{}, resumed: make(chan struct{})}
	close(p.resumed)
	p.mu.Lock()
	err = p.listen()
	p.mu.Unlock()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.Cut()
		p.Resume()
		p.running.Wait()
	})
	return p
}

// Address is the host:port that clients connect to. It stays the same.
func (p *Proxy) Address() string { return devstack.Address(p.port) }

// URL returns a server's URL with the proxy's address in it.
func (p *Proxy) URL(serverURL string) string {
	p.tb.Helper()
	return WithAddress(p.tb, serverURL, p.Address())
}

// Bytes is how many bytes have come in from one side, swallowed ones included.
func (p *Proxy) Bytes(d Direction) int64 { return p.bytes[d].Load() }

// Accepted is how many connections clients have made.
func (p *Proxy) Accepted() int64 { return p.accepted.Load() }

// Open is how many connections are open now, black holes included.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Cut closes all connections and refuses new ones, as a server that has ended.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener != nil {
		_ = p.listener.Close() // it only accepts
		p.listener = nil
	}
	p.dropAll()
}

// Drop closes all connections; new ones pass.
func (p *Proxy) Drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropAll()
}

// Heal lets new connections pass after Cut or BlackHole. Connections that were in a
// black hole stay there, as those of a machine that has vanished: they end when
// both sides have given them up, or with Drop.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.swallow = [2]bool{}
	if p.listener != nil || p.closed {
		return
	}
	if err := p.listen(); err != nil {
		p.tb.Errorf("heal proxy: %v", err)
	}
}

// BlackHole swallows all bytes from now on, of open and of new connections, without
// closing anything; a side that closes is not reported to the other. With directions, only
// bytes of these are swallowed.
func (p *Proxy) BlackHole(directions ...Direction) {
	if len(directions) == 0 {
		directions = []Direction{ToServer, ToClient}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range directions {
		p.swallow[d] = true
		for l := range p.links {
			l.swallow[d].Store(true)
		}
	}
}

// Pause holds all bytes back, without losing any, until Resume. The senders come to
// stand when the buffers are full.
func (p *Proxy) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.resumed:
		p.resumed = make(chan struct{})
	default:
	}
}

// Resume ends Pause.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.resumed:
	default:
		close(p.resumed)
	}
}

// After lets exactly bytes more bytes through in a direction, over all connections
// together, and then calls do, before the next byte. do may be any method of the
// proxy, such as p.Cut. It replaces an earlier After of the direction.
func (p *Proxy) After(d Direction, bytes int64, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trigger[d] = &trigger{bytesLeft: bytes, do: do}
}

// listen starts accepting; mu is held.
func (p *Proxy) listen() error {
	listener, err := net.Listen("tcp4", p.Address())
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	p.listener = listener
	// Accepts until its listener is closed by Cut; waited for by the test's cleanup.
	p.running.Go(func() { p.accept(listener) })
	return nil
}

func (p *Proxy) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return // closed by Cut
		}
		p.accepted.Add(1)
		// Connects and copies one way; stops when the connection ends; waited for by the test's cleanup.
		p.running.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp4", p.target)
	if err != nil {
		_ = client.Close() // as the server refuses, so do we
		return
	}
	l := &link{proxy: p, ends: [2]net.Conn{ToServer: server, ToClient: client}, gone: make(chan struct{})}
	if !p.add(l) {
		l.close()
		return
	}
	// Copies the other way; stops when the connection ends; waited for by the test's cleanup.
	p.running.Go(func() { l.copy(ToClient) })
	l.copy(ToServer)
}

// add makes a link known, unless the proxy was cut while it was made.
func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listener == nil {
		return false
	}
	for d, swallow := range p.swallow {
		l.swallow[d].Store(swallow)
	}
	p.links[l] = struct{}{}
	return true
}

// dropAll closes all links; mu is held.
func (p *Proxy) dropAll() {
	for l := range p.links {
		l.close()
		delete(p.links, l)
	}
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// whenResumed is closed while the proxy is not paused.
func (p *Proxy) whenResumed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resumed
}

// take counts bytes of a direction against its trigger. It returns how many may pass
// before the action, and the action when it is due after them.
func (p *Proxy) take(d Direction, count int) (pass int, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.trigger[d]
	if t == nil {
		return count, nil
	}
	if int64(count) <= t.bytesLeft {
		t.bytesLeft -= int64(count)
		return count, nil
	}
	pass = int(t.bytesLeft)
	p.trigger[d] = nil
	return pass, t.do
}
