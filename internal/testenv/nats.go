package testenv

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
)

// NATS starts a nats-server with JetStream inside the test process, for this test alone.
// It takes some milliseconds. config is more server configuration text.
func NATS(tb testing.TB, config ...string) *devstack.NATS {
	tb.Helper()
	server, err := devstack.StartNATS(Context(tb, Deadline), devstack.NATSOptions{Config: strings.Join(config, "\n")})
	if err != nil {
		tb.Fatal(err)
	}
	closeNATS(tb, server)
	return server
}

func closeNATS(tb testing.TB, server *devstack.NATS) {
	tb.Helper()
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("end of the nats-server log:\n%s", fileEnd(server.LogFile()))
		}
		if err := server.Close(); err != nil {
			tb.Errorf("close nats-server: %v", err)
		}
	})
}

const placingTimeout = 2 * time.Second // per attempt

// NATSGroup is a JetStream cluster inside the test process.
type NATSGroup struct {
	Servers []*devstack.NATS
}

// NATSCluster starts a JetStream cluster of size servers inside the test process and
// returns when it places replicated streams. It takes some seconds.
func NATSCluster(tb testing.TB, size int) *NATSGroup {
	tb.Helper()
	routePorts := make([]int, size)
	routes := make([]string, size)
	for i := range routePorts {
		port, err := devstack.FreePort(tb.Context())
		if err != nil {
			tb.Fatal(err)
		}
		routePorts[i] = port
		routes[i] = "nats-route://" + devstack.Address(port)
	}
	group := &NATSGroup{}
	for i, port := range routePorts {
		group.Servers = append(group.Servers, NATS(tb, fmt.Sprintf(
			"server_name: n%d\ncluster { name: test, listen: %q, routes: [%s] }",
			i+1, devstack.Address(port), strings.Join(routes, ", "))))
	}
	group.waitPlacing(tb)
	return group
}

// URL returns the URLs of all servers, comma separated.
func (g *NATSGroup) URL() string {
	urls := make([]string, len(g.Servers))
	for i, server := range g.Servers {
		urls[i] = server.URL()
	}
	return strings.Join(urls, ",")
}

// waitPlacing makes and deletes a stream with one replica on each server.
func (g *NATSGroup) waitPlacing(tb testing.TB) {
	tb.Helper()
	js := JetStream(tb, g.URL())
	probe := jetstream.StreamConfig{Name: "PROBE", Subjects: []string{"probe"}, Replicas: len(g.Servers), Storage: jetstream.MemoryStorage}
	Eventually(tb, 2*Deadline, func() error {
		// without a leader a request is never answered
		ctx, cancel := context.WithTimeout(tb.Context(), placingTimeout)
		defer cancel()
		if _, err := js.CreateOrUpdateStream(ctx, probe); err != nil {
			return err
		}
		return js.DeleteStream(ctx, probe.Name)
	})
}

// ConnectNATS opens a connection that is closed after the test. It reconnects for ever.
func ConnectNATS(tb testing.TB, natsURL string) *nats.Conn {
	tb.Helper()
	nc, err := nats.Connect(natsURL, nats.MaxReconnects(-1))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(nc.Close)
	return nc
}

// JetStream opens a connection as ConnectNATS does.
func JetStream(tb testing.TB, natsURL string) jetstream.JetStream {
	tb.Helper()
	js, err := jetstream.New(ConnectNATS(tb, natsURL))
	if err != nil {
		tb.Fatal(err)
	}
	return js
}
