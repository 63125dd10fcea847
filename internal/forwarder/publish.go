package forwarder

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/checkpoint"
	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// publisher owns the batch, the window and the tracker.
type publisher struct {
	cfg     Config
	log     *slog.Logger
	machine *machine
	queue   *queue
	shared  *shared
	metrics *metrics.Metrics
	figures *figures
	server  Server

	sink       *sink.Publisher
	encoder    *sink.Encoder
	tracker    *checkpoint.Tracker
	generation uint64
	toldLSN    pglogrepl.LSN     // told to the reader last
	number     uint64            // of the next event; 0 before it was looked at
	held       *sink.Message     // the next event's message, which the sink could not take yet
	draft      *deadletter.Draft // the next event's dead letter, which could not be stored yet
	letters    *letters
	rereading  bool   // the reader is to begin anew: nothing more is taken of this session
	items      []item // taken from the queue; those before next are done
	next       int
	turns      turns
	halt       error // what stops us before the next event: what was handed over before it is still settled
	ignored    map[string]bool
	last       sink.Stats
	debug      bool
}

const publishIdle = time.Second // how long the loop sleeps when nothing is due

// run publishes until ctx is done, then settles what is in flight for as long as
// drain allows. It returns what only a person can mend, else nil.
func (p *publisher) run(ctx, drain context.Context) error {
	defer p.sink.Close()
	defer p.letters.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		p.shared.publisherTurnedAt.Store(now.UnixNano())
		more, holding := false, p.shared.holding.Load()
		p.sink.Pause(!holding)
		p.takeTurn(p.ableToTurn(ctx, holding), now)
		if stopping(ctx) {
			if p.sink.StopSending() == 0 || p.sink.Lost() || stopping(drain) {
				return p.halt
			}
		} else if holding && p.halt == nil && (!p.rereading || p.queue.stale(p.generation)) {
			err := p.feed(ctx, now)
			now = time.Now() // it may have read in the stream for a while
			if err != nil {
				p.takeSettled(now)
				return err
			}
			more = (p.next < len(p.items) && p.items[p.next].kind == itemEvent) && p.rateLeft(now) && p.draft == nil && p.halt == nil
		}
		if err := p.step(ctx, drain, now, more); err != nil {
			return err
		}
		if p.halt != nil && (p.sink.Unsettled() == 0 || p.queue.stale(p.generation)) {
			return p.halt
		}
		if p.turnReady(now) {
			p.workTurn(ctx)
			continue
		}
		if !stopping(ctx) && p.hasWork(now) { // who stops takes no more, but waits for answers
			continue
		}
		p.sleep(ctx, drain, timer, now)
	}
}

// hasWork tells whether feed could take more at once.
func (p *publisher) hasWork(now time.Time) bool {
	return p.halt == nil && p.next < len(p.items) && p.shared.holding.Load() && p.sink.Room(now) && p.letters.wait(now) == 0 && !p.draftWaits() && !p.stopsAt(&p.items[p.next], now)
}

func (p *publisher) rateLeft(now time.Time) bool { return p.cfg.RateMax <= 0 || p.sink.Room(now) }

func (p *publisher) sleep(ctx, drain context.Context, timer *time.Timer, now time.Time) {
	d := p.turnWait(now)
	if at := p.sink.Deadline(now); !at.IsZero() {
		d = min(d, at.Sub(now))
	}
	if wait := p.letters.wait(now); wait > 0 {
		d = min(d, wait)
	}
	if d <= 0 {
		return
	}
	timer.Reset(d)
	ready, done := p.queue.ready, ctx.Done()
	if p.next < len(p.items) && p.shared.holding.Load() && !p.rereading {
		ready = nil // there is work already; what it waits for is room
	}
	if stopping(ctx) {
		ready, done = nil, drain.Done()
	}
	incoming := p.turns.incoming
	if p.turns.now != nil || stopping(ctx) {
		incoming = nil
	}
	select {
	case t := <-incoming:
		p.beginTurn(t, time.Now())
	case <-ready:
	case <-p.sink.Wake():
	case <-timer.C:
	case <-done:
	}
}

// feed moves items from the queue to the sink as long as it has room.
func (p *publisher) feed(ctx context.Context, now time.Time) error {
	defer func() {
		if p.tracker != nil {
			p.publishLSN()
		}
	}()
	if p.queue.stale(p.generation) {
		clear(p.items)
		p.items, p.next = p.items[:0], 0 // of a server or timeline that is not ours any more
	}
	for {
		if p.next == len(p.items) {
			clear(p.items)
			p.items, p.next = p.queue.take(p.items[:0]), 0
			if len(p.items) == 0 {
				return nil
			}
		}
		for p.next < len(p.items) {
			it := &p.items[p.next]
			if it.kind == itemEvent && !p.sink.Room(now) || p.stopsAt(it, now) {
				return nil
			}
			done, err := p.item(ctx, it, now)
			if err != nil {
				poison, ok := isPoison(err)
				if !ok {
					return err
				}
				p.halt = poisonFault(poison, p.cfg.Slot)
				return nil
			}
			if !done {
				return nil
			}
			p.next++
		}
	}
}

// item works off one item; false says that it has to be offered again later.
func (p *publisher) item(ctx context.Context, it *item, now time.Time) (bool, error) {
	if p.cfg.RequestsOnly && it.kind != itemSession {
		p.passBy(it)
		return true, nil
	}
	switch it.kind {
	case itemSession:
		p.begin(it.session)
	case itemBegin:
		p.tracker.Begin()
	case itemEvent:
		return p.event(ctx, it, now)
	case itemCommit:
		p.tracker.Commit(it.lsn)
	case itemKeepalive:
		p.tracker.Keepalive(it.lsn)
	}
	return true, nil
}

// event hands an event to the sink, or makes a dead letter of it; false says that it is to
// be offered again.
func (p *publisher) event(ctx context.Context, it *item, now time.Time) (bool, error) {
	if p.number == 0 {
		p.number = p.tracker.Event()
	}
	if p.held == nil && p.draft == nil {
		if judged, err := p.judge(ctx, it, now); err != nil || !judged || it.event == nil {
			return judged, err
		}
	}
	if p.draft != nil {
		return p.bury(ctx, it, now)
	}
	taken, err := p.sink.Add(ctx, p.held, now)
	if poison, ok := isPoison(err); ok && p.cfg.OnPoison.stores() {
		p.condemn(it.event, poison, now)
		return p.bury(ctx, it, now)
	}
	if err != nil {
		return false, fmt.Errorf("publish event: %w", err)
	}
	if taken {
		p.taken(it)
	}
	return taken, nil
}

// begin makes everything anew for a slot that is read from the beginning.
func (p *publisher) begin(s *session) {
	source := s.systemID + "/" + p.cfg.Source
	p.generation = s.generation
	p.tracker, p.toldLSN = checkpoint.New(s.confirmedLSN), 0
	p.number, p.held, p.draft, p.rereading = 0, nil, nil, false
	p.endTurn(errTurnLost)
	p.forgetPassed(s.confirmedLSN)
	from := decode.Position{Timeline: s.timelines.At(s.confirmedLSN), CommitLSN: s.confirmedLSN}
	p.letters.begin(source, from)
	p.sink.Begin(sink.Origin{
		SystemID: s.systemID, Name: p.cfg.Source, Timeline: s.timelines.Current, WALEndLSN: s.walEndLSN,
		From: from, Adopt: p.cfg.Adopt,
		Now: p.askServer,
	})
	p.encoder = sink.NewEncoder(sink.EncoderConfig{
		Template: p.cfg.template, Format: p.cfg.Format, Headers: p.cfg.Headers,
		Source: source, SourceName: p.cfg.Source, ContentType: p.cfg.ContentType,
		HeaderIgnored: p.headerIgnored,
	})
	p.publishLSN()
}

// askServer asks the server how far it is, over a connection of its own.
func (p *publisher) askServer(ctx context.Context) (timeline uint32, walEndLSN pglogrepl.LSN, err error) {
	ctx, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	conn, err := p.server.Connect(ctx)
	if err != nil {
		return 0, 0, err //nolint:wrapcheck // it says what was tried
	}
	defer conn.Close()
	sys, err := conn.IdentifySystem(ctx)
	return sys.Timeline, sys.WALEndLSN, err //nolint:wrapcheck // it says what was asked
}

// ignoredMax bounds how many header names are remembered as warned of.
const ignoredMax = 100

func (p *publisher) headerIgnored(name string) {
	if p.ignored[name] || len(p.ignored) >= ignoredMax {
		return
	}
	p.ignored[name] = true
	p.log.Warn("a row sets a header that is not its to set; the message goes out without it", "header", name)
}

// publishLSN passes on what may be confirmed.
func (p *publisher) publishLSN() {
	if lsn := p.tracker.ConfirmableLSN(); lsn != p.toldLSN {
		p.toldLSN = lsn
		p.queue.confirm(p.generation, lsn)
	}
}

// step lets the sink work and takes what was settled.
func (p *publisher) step(ctx, drain context.Context, now time.Time, more bool) error {
	stepCtx := ctx
	if stopping(ctx) {
		stepCtx = drain
	}
	err := p.sink.Step(stepCtx, now, more)
	p.takeSettled(now)
	if poison, ok := isPoison(err); ok {
		if !p.cfg.OnPoison.stores() {
			return poisonFault(poison, p.cfg.Slot)
		}
		p.reread(poison)
		return nil
	}
	return err //nolint:wrapcheck // it is the user's sentence already
}

// takeSettled takes what was settled, also by the step that failed: what is acknowledged
// is to be confirmed before the forwarder leaves.
func (p *publisher) takeSettled(now time.Time) {
	if settled := p.sink.Settled(); len(settled) > 0 {
		p.settle(settled)
	}
	p.report(now)
}
