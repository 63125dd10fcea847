package testenv_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// echoServer sends back all that it gets and counts the connections that are open to it.
type echoServer struct {
	address string
	mu      sync.Mutex
	open    int
}

func startEcho(t *testing.T) *echoServer {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &echoServer{address: listener.Addr().String()}
	var running sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			running.Go(func() {
				s.count(1)
				defer s.count(-1)
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return s
}

func (s *echoServer) count(change int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open += change
}

func (s *echoServer) wantOpen(want int) func() error {
	return func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open != want {
			return fmt.Errorf("%d connections are open, want %d", s.open, want)
		}
		return nil
	}
}

func dial(t *testing.T, p *testenv.Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp4", p.Address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(testenv.Deadline)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func send(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

func wantReply(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != text {
		t.Fatalf("reply = %q, %v, want %q", got, err, text)
	}
}

func wantBytes(t *testing.T, p *testenv.Proxy, d testenv.Direction, want int64) {
	t.Helper()
	testenv.Eventually(t, testenv.Deadline, func() error {
		if got := p.Bytes(d); got != want {
			return fmt.Errorf("%d bytes, want %d", got, want)
		}
		return nil
	})
}

func TestBytesPassAndAreCounted(t *testing.T) {
	proxy := testenv.NewProxy(t, startEcho(t).address)
	conn := dial(t, proxy)
	text := string(bytes.Repeat([]byte("0123456789"), 10_000))
	send(t, conn, text)
	wantReply(t, conn, text)
	wantBytes(t, proxy, testenv.ToServer, int64(len(text)))
	wantBytes(t, proxy, testenv.ToClient, int64(len(text)))
	if proxy.Accepted() != 1 || proxy.Open() != 1 {
		t.Errorf("accepted %d, open %d, want 1 and 1", proxy.Accepted(), proxy.Open())
	}
}

func TestCutClosesBothSidesAndRefusesUntilHealed(t *testing.T) {
	server := startEcho(t)
	proxy := testenv.NewProxy(t, server.address)
	conn := dial(t, proxy)
	send(t, conn, "a")
	wantReply(t, conn, "a")
	proxy.Cut()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the client's connection lives on")
	}
	testenv.Eventually(t, testenv.Deadline, server.wantOpen(0))
	if late, err := net.Dial("tcp4", proxy.Address()); err == nil {
		_ = late.Close()
		t.Error("a cut proxy takes connections")
	}
	proxy.Heal()
	again := dial(t, proxy)
	send(t, again, "b")
	wantReply(t, again, "b")
}

func TestBlackHoleSwallowsAndTellsNobody(t *testing.T) {
	server := startEcho(t)
	proxy := testenv.NewProxy(t, server.address)
	lost := dial(t, proxy)
	send(t, lost, "a")
	wantReply(t, lost, "a")

	proxy.BlackHole()
	send(t, lost, "swallowed")
	wantBytes(t, proxy, testenv.ToServer, 1+9)
	if err := lost.Close(); err != nil {
		t.Fatal(err)
	}
	during := dial(t, proxy)
	send(t, during, "too")
	wantBytes(t, proxy, testenv.ToServer, 1+9+3)
	wantBytes(t, proxy, testenv.ToClient, 1)

	proxy.Heal()
	healed := dial(t, proxy)
	send(t, healed, "b")
	wantReply(t, healed, "b")
	if err := server.wantOpen(3)(); err != nil {
		t.Errorf("the server learned of a lost client: %v", err)
	}
	proxy.Drop()
	testenv.Eventually(t, testenv.Deadline, server.wantOpen(0))
}

func TestBlackHoleInOneDirectionLosesOnlyTheReplies(t *testing.T) {
	proxy := testenv.NewProxy(t, startEcho(t).address)
	conn := dial(t, proxy)
	proxy.BlackHole(testenv.ToClient)
	send(t, conn, "abc")
	wantBytes(t, proxy, testenv.ToClient, 3) // the server answered, the client does not see it
}

func TestPauseHoldsBytesBackWithoutLosingAny(t *testing.T) {
	proxy := testenv.NewProxy(t, startEcho(t).address)
	conn := dial(t, proxy)
	send(t, conn, "a")
	wantReply(t, conn, "a")
	proxy.Pause()
	send(t, conn, "held")
	wantBytes(t, proxy, testenv.ToServer, 5)
	if got := proxy.Bytes(testenv.ToClient); got != 1 {
		t.Errorf("%d bytes came back during the pause, want 1", got)
	}
	proxy.Resume()
	wantReply(t, conn, "held")
}

func TestActionComesAfterExactlyTheBytesAskedFor(t *testing.T) {
	proxy := testenv.NewProxy(t, startEcho(t).address)
	conn := dial(t, proxy)
	proxy.After(testenv.ToClient, 4, proxy.Cut)
	send(t, conn, "0123456789")
	got, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Logf("the cut came as %v", err) // a reset is as good as an end
	}
	if string(got) != "0123" {
		t.Errorf("got %q, want 0123", got)
	}
}
