package devstack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// NATSOptions says how to run an embedded nats-server. The zero value is usable: a
// throw-away store on a free port.
type NATSOptions struct {
	// Dir is the home of the server: the JetStream store and the log lie in it and stay
	// after Close. Nothing locks it: two servers in one folder destroy it. Empty makes
	// a throw-away one, which Close removes.
	Dir string
	// Port on 127.0.0.1; 0 or -1 chooses a free one.
	Port int
	// Config is more nats-server configuration text, such as "max_payload: 1MB". It must
	// set neither the client port nor the JetStream store.
	Config string
}

const (
	natsStartTimeout = 10 * time.Second
	natsReadyStep    = 50 * time.Millisecond
)

// NATS is a nats-server with JetStream inside this process. It catches no signals. Its
// methods may be called from several goroutines; those that start and stop it take turns.
type NATS struct {
	home      string
	port      int
	config    string
	throwAway *throwAway // home, unless it is kept

	mu     sync.Mutex
	server *server.Server // nil while stopped
}

// StartNATS starts the server and returns when it takes connections, after some
// milliseconds. The caller must Close it.
func StartNATS(ctx context.Context, opts NATSOptions) (*NATS, error) {
	n := &NATS{home: opts.Dir, port: opts.Port, config: opts.Config}
	var err error
	if opts.Dir == "" {
		if n.throwAway, err = makeThrowAway("nats-", nil); err != nil {
			return nil, err
		}
		n.home = n.throwAway.dir
	}
	chosen := opts.Port <= 0
	for range portRetriesMax {
		if chosen {
			if n.port, err = FreePort(ctx); err != nil {
				break
			}
		}
		if err = n.Start(ctx); err == nil {
			return n, nil
		}
		if !chosen || !taken(ctx, n.port) {
			break
		}
	}
	return nil, errors.Join(err, n.Close())
}

// NATSConfig returns nats-server configuration text for a server on 127.0.0.1 with
// JetStream in dir, followed by more text.
func NATSConfig(port int, dir, more string) string {
	return fmt.Sprintf("listen: %q\njetstream { store_dir: %q }\n%s\n", Address(port), filepath.Join(dir, "jetstream"), more)
}

// URL returns the URL for clients.
func (n *NATS) URL() string { return "nats://" + Address(n.port) }

// LogFile is where the server writes its log. It is appended to at each start.
func (n *NATS) LogFile() string { return filepath.Join(n.home, "nats.log") }

// Start starts a stopped server again on the same port and store. It is no error when
// the server runs.
func (n *NATS) Start(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.server != nil {
		return nil
	}
	var opts server.Options
	if err := opts.ProcessConfigString(NATSConfig(n.port, n.home, n.config)); err != nil {
		return fmt.Errorf("configure nats-server: %w", err)
	}
	opts.NoSigs = true
	srv, err := server.NewServer(&opts)
	if err != nil {
		return fmt.Errorf("make nats-server: %w", err)
	}
	log, err := openServerLog(n.LogFile())
	if err != nil {
		return err
	}
	srv.SetLoggerV2(log, false, false, false)
	srv.Start()
	if err := waitNATSReady(ctx, srv, log); err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return fmt.Errorf("start nats-server on port %d: %w", n.port, err)
	}
	n.server = srv
	return nil
}

// waitNATSReady asks in short steps, since a server that failed to start says so only in its log.
func waitNATSReady(ctx context.Context, srv *server.Server, log *serverLog) error {
	deadline := time.Now().Add(natsStartTimeout)
	for !srv.ReadyForConnections(natsReadyStep) {
		if fatal := log.fatal(); fatal != "" {
			return errors.New(fatal)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not ready for connections within %s, see %s", natsStartTimeout, log.path)
		}
	}
	return nil
}

// LeadsJetStream says whether the server leads the JetStream cluster that it is part of.
func (n *NATS) LeadsJetStream() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.server != nil && n.server.JetStreamIsLeader()
}

// Stop stops the server in good order and waits until it has. It is no error when the
// server does not run.
func (n *NATS) Stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.server == nil {
		return
	}
	n.server.Shutdown()
	n.server.WaitForShutdown()
	n.server = nil
}

// Restart stops and starts the server on the same port and store.
func (n *NATS) Restart(ctx context.Context) error {
	n.Stop()
	return n.Start(ctx)
}

// Close stops the server and removes a throw-away store. It may be called again.
func (n *NATS) Close() error {
	n.Stop()
	return n.throwAway.remove()
}
