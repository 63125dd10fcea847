package devstack_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
)

func startNATS(t *testing.T, opts devstack.NATSOptions) *devstack.NATS {
	t.Helper()
	n, err := devstack.StartNATS(testContext(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return n
}

func connect(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestStoredMessagesSurviveARestartOnTheSamePort(t *testing.T) {
	n := startNATS(t, devstack.NATSOptions{})
	ctx := testContext(t)
	js := connect(t, n.URL())
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(ctx, "s", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	stream, err := connect(t, n.URL()).Stream(ctx, "S")
	if err != nil {
		t.Fatal(err)
	}
	msg, err := stream.GetMsg(ctx, 1)
	if err != nil || string(msg.Data) != "kept" {
		t.Fatalf("message = %v, %v, want it kept", msg, err)
	}
}

func TestMoreConfigurationReachesTheServer(t *testing.T) {
	n := startNATS(t, devstack.NATSOptions{Config: "max_payload: 2048"})
	nc, err := nats.Connect(n.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if got := nc.MaxPayload(); got != 2048 {
		t.Errorf("max_payload = %d, want 2048", got)
	}
}

func TestTakenPortIsAnErrorThatNamesIt(t *testing.T) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	_, err = devstack.StartNATS(testContext(t), devstack.NATSOptions{Port: number})
	if err == nil || !strings.Contains(err.Error(), port) || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("error = %v, want the taken port %s", err, port)
	}
}

func TestCloseRemovesOnlyAThrowAwayStore(t *testing.T) {
	throwAway := startNATS(t, devstack.NATSOptions{})
	home := filepath.Dir(throwAway.LogFile())
	if err := throwAway.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(home); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("throw-away folder %s: %v, want it gone", home, err)
	}
	kept := startNATS(t, devstack.NATSOptions{Dir: t.TempDir()})
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kept.LogFile()); err != nil {
		t.Errorf("kept folder: %v", err)
	}
}
