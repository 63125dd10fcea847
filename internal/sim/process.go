package sim

import (
	"context"
	"errors"
	"log/slog"

	"github.com/outbox-cdc/outbox-cdc/internal/forwarder"
	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
)

// errKilled is what a process that is gone gets from everything it touches.
var errKilled = errors.New("simulation: this process was killed")

// process is one forwarder. Everything by which it has an effect passes through pass:
// frozen, it stands still there; killed, nothing has an effect any more.
type process struct {
	w      *world
	name   string
	dead   bool
	frozen chan struct{} // closed when it goes on; nil when it runs
	server *pgServer
	held   []func() // what was to reach it while it is frozen
	kills  []func() // what the kernel does for a process that is gone: it closes its sockets

	cancel context.CancelFunc
	done   chan struct{} // closed when Run has returned
}

// turn lets the time of a world begin.
func (w *world) turn() {
	// Owns what is to happen; stops with the world's end; waited for by nobody.
	go w.run()
}

// pass returns when the process may go on.
func (p *process) pass() error {
	for {
		p.w.mu.Lock()
		dead, frozen := p.dead, p.frozen
		p.w.mu.Unlock()
		if dead {
			return errKilled
		}
		if frozen == nil {
			return nil
		}
		<-frozen
	}
}

// reach calls f, which lets the process know of something, when it runs.
func (p *process) reach(f func()) {
	switch {
	case p.dead:
	case p.frozen != nil:
		p.held = append(p.held, f)
	default:
		f()
	}
}

// start begins to run a forwarder.
func (w *world) start(name string, cfg forwarder.Config, server *postgres, broker *jetStream, log *slog.Logger) *process {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{w: w, name: name, cancel: cancel, done: make(chan struct{})}
	p.server = &pgServer{pg: server, p: p}
	f, err := forwarder.New(cfg, forwarder.Deps{
		Log: log.With("process", name), Metrics: metrics.New("simulation", ""),
		Server: p.server, Broker: broker.dialer(p), Random: w.random,
	})
	if err != nil {
		panic(err) // the configuration is ours
	}
	// Owns the forwarder; stops when ctx is done; waited for by whoever reads done.
	go func() {
		err := f.Run(ctx)
		w.mu.Lock()
		if err != nil && !p.dead {
			w.failf("%s ended: %w", name, err)
		}
		w.mu.Unlock()
		close(p.done)
	}()
	return p
}

// kill ends the process as SIGKILL does.
func (p *process) kill() {
	if p.dead {
		return
	}
	p.dead = true
	p.wake()
	for _, f := range p.kills {
		f()
	}
	p.cancel()
}

// freeze stops the process as SIGSTOP does.
func (p *process) freeze() {
	if !p.dead && p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

// thaw lets it go on.
func (p *process) thaw() {
	p.wake()
	held := p.held
	p.held = nil
	for _, f := range held {
		p.reach(f)
	}
}

func (p *process) wake() {
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}
