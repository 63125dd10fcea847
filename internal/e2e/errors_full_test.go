package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// jetStreamLimits is the configuration of a server with one account, with more JetStream
// settings of the server and of the account.
func jetStreamLimits(server, account string) string {
	return fmt.Sprintf(`jetstream { store_dir: %q, %s }
		accounts { OUTBOX { jetstream { %s }, users: [ {user: fwd, password: fwd} ] } }`, testenv.StoreDir, server, account)
}

func TestWhereverStorageIsUsedUpEventsWaitInOrder(t *testing.T) {
	t.Parallel()
	const kib = 1 << 10
	atStream := func(change func(*jetstream.StreamConfig)) func(*outbox, *testenv.NATSServer) {
		return func(o *outbox, _ *testenv.NATSServer) { o.updateStream(change) }
	}
	atServer := func(config string) func(*outbox, *testenv.NATSServer) {
		return func(_ *outbox, server *testenv.NATSServer) { server.Reload(config) }
	}
	for _, test := range []struct {
		name, code string
		config     string
		tighten    func(*outbox, *testenv.NATSServer)
		widen      func(*outbox, *testenv.NATSServer)
	}{
		{
			name: "of the account", code: "10002", config: jetStreamLimits("", "max_file: 64KB"),
			widen: atServer(jetStreamLimits("", "max_file: 1GB")),
		},
		{
			name: "of the server", code: "10023", config: jetStreamLimits("max_file_store: 64KB", "max_file: -1"),
			widen: atServer(jetStreamLimits("max_file_store: 1GB", "max_file: -1")),
		},
		{
			name: "of the stream in bytes", code: "10077", config: jetStreamLimits("", ""),
			tighten: atStream(func(cfg *jetstream.StreamConfig) { cfg.MaxBytes, cfg.Discard = 64*kib, jetstream.DiscardNew }),
			widen:   atStream(func(cfg *jetstream.StreamConfig) { cfg.MaxBytes = -1 }),
		},
		{
			name: "of the stream for one subject", code: "10077", config: jetStreamLimits("", ""),
			tighten: atStream(func(cfg *jetstream.StreamConfig) {
				cfg.MaxMsgsPerSubject, cfg.Discard, cfg.DiscardNewPerSubject = 30, jetstream.DiscardNew, true
			}),
			widen: atStream(func(cfg *jetstream.StreamConfig) { cfg.MaxMsgsPerSubject, cfg.DiscardNewPerSubject = -1, false }),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := testenv.NATSProcess(t, test.config)
			o := newOutbox(t, testenv.WithUser(t, server.URL(), "fwd", "fwd"))
			if test.tighten != nil {
				test.tighten(o, server)
			}
			refused := listenForRefusals(t, o.natsURL)
			p, health := o.startHTTPStreaming("--status-interval", "100ms", "--max-in-flight", "16")
			o.insertBytes("a", 100, kib)
			expectUnpassed := o.expectHeldUp(health, "error "+test.code)
			refused.wait(test.code)
			test.widen(o, server)
			o.expectAll()
			expectUnpassed()
			o.waitConfirmed()
			health.waitReady()
			expectFewLines(t, p)
		})
	}
}

// A nats-server whose disk was full refuses by silence until it is started again, also
// when there is room.
func TestFullDiskOfNATSIsWaitedOutWithAHint(t *testing.T) {
	t.Parallel()
	const diskBytes, eventBytes = 4 << 20, 4 << 10
	disk := testenv.SmallDisk(t, diskBytes)
	server := testenv.NATSProcessIn(t, disk)
	o := newOutbox(t, server.URL())
	p, health := o.startHTTPStreaming("--status-interval", "100ms", "--ack-timeout", "500ms")
	o.insert("before", 10)
	o.expectAll()
	filler := filepath.Join(disk, "filler")
	if err := os.WriteFile(filler, make([]byte, diskBytes), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
	o.insertBytes("during", 20, eventBytes)
	expectUnpassed := o.expectHeldUp(health, "did not answer")
	if _, why := health.get("/readyz"); !strings.Contains(why, "log") {
		t.Errorf("GET /readyz does not say where to look: %s", why)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	server.Start()
	o.expectAll()
	expectUnpassed()
	o.waitConfirmed()
	health.waitReady()
	expectFewLines(t, p)
}
