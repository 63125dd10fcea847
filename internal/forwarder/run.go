package forwarder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"golang.org/x/sync/errgroup"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
	"github.com/outbox-cdc/outbox-cdc/internal/request"
	"github.com/outbox-cdc/outbox-cdc/internal/web"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// Deps are what a forwarder is given beside its configuration.
type Deps struct {
	Log     *slog.Logger
	Metrics *metrics.Metrics
	// HTTPAddress is where health, metrics and the live page are served; empty for nowhere.
	HTTPAddress string
	// HTTPOptional says that a taken address is no failure: it is tried again until it
	// is free, as it gets when this is the standby of a leader on the same machine.
	HTTPOptional bool
	Version      string
	// Redact takes secrets out of text; nil changes nothing.
	Redact func(string) string
	// Status makes the document of GET /status from the running figures; nil serves
	// the figures alone.
	Status func(context.Context, Figures) (any, error)

	// Working is told how far a request is that this process works on, whenever it got
	// further; Waiting, that one waits until what was committed before untilLSN is delivered, several times a
	// second. Both are called from one goroutine; nil for nobody.
	Working func(request.Request)
	Waiting func(r request.Request, deliveredLSN, untilLSN pglogrepl.LSN)

	// Of a simulation; nil for the real ones:
	Server Server                                                   // PostgreSQL
	Broker func(context.Context, sink.Answers) (sink.Broker, error) // makes one attempt to connect to NATS
	Random func() float64                                           // spreads waits, from [0, 1); called from several goroutines
}

// Forwarder forwards one outbox. Run is to be called once; the other methods may be
// called from several goroutines meanwhile.
type Forwarder struct {
	cfg     Config
	deps    Deps
	machine *machine
	queue   *queue
	shared  *shared
	figures *figures
	watcher *watcher
	status  func(context.Context, Figures) (any, error)

	drainOnce sync.Once
}

// New returns a forwarder that has not connected yet. The only error is that of a
// wrong subject template.
func New(cfg Config, deps Deps) (*Forwarder, error) {
	cfg, err := cfg.withTemplate()
	if err != nil {
		return nil, err
	}
	if deps.Server == nil {
		deps.Server = sqlServer{cfg: cfg}
	}
	if deps.Random == nil {
		deps.Random = rand.Float64
	}
	f := &Forwarder{
		cfg: cfg, deps: deps, status: deps.Status,
		queue:  newQueue(queueFactor*cfg.InFlightMax, cfg.InFlightMaxBytes),
		shared: &shared{}, figures: &figures{},
	}
	f.watcher = &watcher{cfg: cfg, log: deps.Log, metrics: deps.Metrics, shared: f.shared, server: deps.Server}
	f.machine = newMachine(deps.Log, func(s State) { deps.Metrics.SetState(s.String()) }, time.Now())
	return f, nil
}

// queueFactor is how many times the window the events between reader and
// acknowledgement may be: one window in flight, one that waits behind it.
const queueFactor = 2

// Run forwards until ctx is done and then drains, within the shutdown timeout. It
// returns nil after that, and an error for what only a person can mend. It blocks.
func (f *Forwarder) Run(ctx context.Context) error {
	server, err := f.listen(ctx)
	if err != nil && !f.deps.HTTPOptional {
		return err
	}
	if err != nil {
		f.deps.Log.Warn("health and metrics are not served until the address is free", "error", err.Error(), "hint", "give --http another address, or off")
	}
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// drainCtx outlives runCtx by the shutdown timeout.
	drainCtx, endDrain := context.WithCancel(context.WithoutCancel(ctx))
	defer endDrain()
	grace := time.NewTimer(0)
	grace.Stop()
	defer grace.Stop()
	context.AfterFunc(runCtx, func() {
		if stopping(ctx) {
			f.beginDrain()
		}
		grace.Reset(f.cfg.ShutdownTimeout)
	})
	watchCtx, endWatch := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatch()

	publisherDone := make(chan struct{})
	rd := &reader{
		cfg: f.cfg, log: f.deps.Log, machine: f.machine, queue: f.queue, shared: f.shared, server: f.deps.Server, random: f.deps.Random,
		catalog:       &catalog{cfg: f.cfg, log: f.deps.Log, server: f.deps.Server, warned: map[string]bool{}},
		publisherDone: publisherDone,
		onRetry:       func() { f.deps.Metrics.AddReconnect(metrics.SidePostgres) },
	}
	pub := &publisher{
		cfg: f.cfg, log: f.deps.Log, machine: f.machine, queue: f.queue, shared: f.shared,
		metrics: f.deps.Metrics, figures: f.figures, server: f.deps.Server, ignored: map[string]bool{},
		debug:   f.deps.Log.Enabled(ctx, slog.LevelDebug),
		letters: newLetters(f.cfg, f.deps.Log, f.deps.Server, f.deps.Random),
		sink: sink.NewPublisher(sink.PublisherConfig{
			Client: f.cfg.NATS, Stream: f.cfg.Stream, Subject: f.cfg.Subject, InFlightMax: f.cfg.InFlightMax,
			AckTimeout: f.cfg.AckTimeout, RateMax: f.cfg.RateMax, Log: f.deps.Log, Dial: f.deps.Broker, Random: f.deps.Random,
		}),
	}
	pub.turns.incoming = make(chan *turn) // unbuffered: what was not taken is asked for again
	var work, side errgroup.Group
	// Ends the drain when its time is over, also where the publisher is blocked in a
	// write; stops when watchCtx is done; waited for by side.Wait.
	side.Go(func() error {
		select {
		case <-grace.C:
			endDrain()
			pub.sink.Abort()
		case <-watchCtx.Done():
		}
		return nil
	})
	// Owns the replication connection and the decoder; stops when runCtx is done and
	// the publisher has drained; waited for by work.Wait.
	work.Go(func() error {
		return stopOn(guard(func() error { return rd.run(runCtx) }, f.deps.Log), stop)
	})
	// Owns the batch, the window and the tracker; stops when runCtx is done and what is
	// in flight is settled or drainCtx ends; waited for by work.Wait.
	work.Go(func() error {
		defer close(publisherDone)
		return stopOn(guard(func() error { return pub.run(runCtx, drainCtx) }, f.deps.Log), stop)
	})
	// Owns an ordinary SQL connection; stops when watchCtx is done; waited for by side.Wait.
	side.Go(func() error {
		f.watcher.run(watchCtx)
		return nil
	})
	if server, ok := f.deps.Server.(requestServer); ok {
		// Owns a SQL connection for the requests of commands; stops when runCtx is done;
		// waited for by side.Wait.
		side.Go(func() error {
			newRequests(f.cfg, f.deps, f.shared, server, pub.turns.incoming).run(runCtx, func() { stop(nil) })
			return nil
		})
	}
	// Owns the listener; stops when watchCtx is done; waited for by side.Wait.
	side.Go(func() error { return stopOn(f.serve(watchCtx, server), stop) })
	err = work.Wait()
	endWatch()
	if sideErr := side.Wait(); err == nil {
		err = sideErr
	}
	return f.finished(err)
}

// guard turns a panic into an error. A panic exits with 2, which supervisors are told
// not to restart: but a broken invariant must not keep events waiting, and starting
// again is safe, since nothing is confirmed that is not settled.
func guard(work func() error, log *slog.Logger) (err error) {
	defer func() {
		if p := recover(); p != nil {
			log.Error("broken invariant", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			err = fault.NewTransient("a broken invariant, please report it", "start again: nothing is lost", fmt.Errorf("panic: %v", p))
		}
	}()
	return work()
}

// stopOn ends the whole forwarder when one part of it failed.
func stopOn(err error, stop context.CancelCauseFunc) error {
	if err != nil {
		stop(err)
	}
	return err
}

func (f *Forwarder) finished(err error) error {
	confirmed := f.Figures().ConfirmedLSN
	if errors.Is(err, ErrSlotInUse) {
		f.machine.leave(StateDraining, err.Error(), time.Now())
		f.machine.leave(StateStopped, "", time.Now())
		return err
	}
	if err != nil {
		f.machine.leave(StateFailed, err.Error(), time.Now(), "confirmed_lsn", confirmed)
		return err
	}
	f.beginDrain()
	f.machine.leave(StateStopped, "", time.Now(), "confirmed_lsn", confirmed,
		"events_published", f.figures.published.Load(), "events_unacknowledged", f.figures.inFlight.Load())
	return nil
}

// beginDrain notes, once, that the forwarder was asked to stop.
func (f *Forwarder) beginDrain() {
	f.drainOnce.Do(func() {
		f.machine.leave(StateDraining, "", time.Now(), "events_in_flight", f.figures.inFlight.Load())
	})
}

// listenEvery is how often a taken address is tried again.
const listenEvery = 2 * time.Second

// serve serves HTTP until ctx is done. Without a server it waits for the address.
func (f *Forwarder) serve(ctx context.Context, server *web.Server) error {
	if f.deps.HTTPAddress == "" {
		return nil
	}
	for server == nil {
		if !pause(ctx, listenEvery) {
			return nil
		}
		var err error
		if server, err = f.listen(ctx); err == nil {
			f.deps.Log.Info("health and metrics are served now", "address", server.Addr())
		}
	}
	return server.Run(ctx) //nolint:wrapcheck // it names the address
}

func (f *Forwarder) listen(ctx context.Context) (*web.Server, error) {
	if f.deps.HTTPAddress == "" {
		return nil, nil //nolint:nilnil // nothing is to be served
	}
	server, err := web.Listen(ctx, web.Config{
		Addr: f.deps.HTTPAddress, Source: f, Metrics: f.deps.Metrics.Handler(),
		Version: f.deps.Version, Redact: f.deps.Redact, Log: f.deps.Log,
	})
	if err == nil {
		return server, nil
	}
	var listen *web.ListenError
	if errors.As(err, &listen) {
		return nil, fault.NewOperator("http-listen", listen.Error(), listen.Hint(), nil)
	}
	return nil, err //nolint:wrapcheck // it names --http
}
