package devstack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
)

const (
	portSpan     = 12000 // ports below the ephemeral ones to choose from
	portLowest   = 10000
	portAttempts = 200
)

var handedOut = struct {
	sync.Mutex
	ports map[int]bool
}{ports: map[int]bool{}}

// FreePort returns a TCP port of 127.0.0.1 that nobody listens on and that this process
// has not been given before. The port lies below the range from which the kernel takes
// the ports of outgoing connections: otherwise a client could get it, or even connect to
// itself, while the server is down. Nothing is held open, so the caller must be ready to
// find the port taken. It may be called from several goroutines.
func FreePort(ctx context.Context) (int, error) {
	top := ephemeralPortsBegin()
	bottom := max(top-portSpan, portLowest)
	if bottom >= top {
		return 0, errors.New("choose a port: the system uses all ports for outgoing connections (net.ipv4.ip_local_port_range)")
	}
	handedOut.Lock()
	defer handedOut.Unlock()
	var listen net.ListenConfig
	var lastErr error
	for range portAttempts {
		port := bottom + rand.IntN(top-bottom)
		if handedOut.ports[port] {
			continue
		}
		listener, err := listen.Listen(ctx, "tcp4", Address(port))
		if err != nil {
			lastErr = err
			continue
		}
		if err := listener.Close(); err != nil {
			return 0, fmt.Errorf("choose a port: %w", err)
		}
		handedOut.ports[port] = true
		return port, nil
	}
	return 0, fmt.Errorf("choose a port between %d and %d: %w", bottom, top, lastErr)
}

// Address returns "127.0.0.1:port".
func Address(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// ephemeralPortsBegin returns the lowest port that the kernel gives to outgoing connections.
func ephemeralPortsBegin() int {
	const standard = 32768
	raw, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return standard
	}
	fields := strings.Fields(string(raw))
	if len(fields) == 0 {
		return standard
	}
	begin, err := strconv.Atoi(fields[0])
	if err != nil {
		return standard
	}
	return begin
}
