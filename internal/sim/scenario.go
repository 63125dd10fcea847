package sim

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/forwarder"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

const (
	streamName = "OUTBOX"
	// quietMax is how long after the last fault everything must be delivered: an id that
	// is in process stays so for a duplicate window, and waits grow up to 30 s.
	quietMax  = 10 * time.Minute
	pollQuiet = 50 * time.Millisecond
	// faultsPerRun is how many things go wrong in one run.
	faultsPerRun = 12
)

// scenario is one run: what there is, and what goes wrong.
type scenario struct {
	w       *world
	pg      *postgres
	js      *jetStream
	check   *checker
	cfg     forwarder.Config
	log     *slog.Logger
	shared  bool // others write into the stream
	size    int  // instances
	running []*process
	gone    []*process
	started int
	writing bool
	closing bool
	freedAt time.Time // when the slot got free other than by its holder's end
}

// report is what a run came to.
type report struct {
	events, stored, phantoms int
	faults                   map[string]int
	took                     time.Duration // fake
	err                      error
	lines                    []string
}

func newScenario(seed uint64, log *slog.Logger) *scenario {
	w := newWorld(seed)
	s := &scenario{w: w, log: log}
	s.pg = newPostgres(w, 14+w.rng.IntN(5))
	cfg := streamConfig{
		name: streamName, subjects: []string{"outbox.>", "other.>"}, replicas: 1 + 2*w.rng.IntN(2),
		window:  []time.Duration{100 * time.Millisecond, 2 * time.Second, 2 * time.Minute}[w.rng.IntN(3)],
		batched: !w.chance(6), maxPayload: 1000,
	}
	s.js = newJetStream(w, cfg)
	s.shared = cfg.batched && w.chance(2)
	s.size = 1 + w.rng.IntN(3)
	s.cfg = forwarder.Config{
		Slot: slotName, Publication: "outbox", Table: decode.TableName{Schema: "public", Name: "outbox"},
		Columns: decode.DefaultMapping(), Stream: streamName, Subject: "outbox.{aggregate_type}.{event_type}",
		Format: sink.FormatPayload, Source: "outbox", Headers: sink.HeadersMinimal,
		InFlightMax: 1 << w.rng.IntN(8), InFlightMaxBytes: 1 << 16, AckTimeout: 2 * time.Second,
		StatusInterval: time.Second, TakeoverAfter: 10 * time.Second, ShutdownTimeout: 3 * time.Second,
		OnPoison: []forwarder.OnPoison{forwarder.PoisonDeadLetter, forwarder.PoisonHoldAggregate, forwarder.PoisonHalt}[w.rng.IntN(3)],
	}
	s.check = watch(w, s.pg, s.js, systemID+"/outbox")
	s.check.holds = s.cfg.OnPoison == forwarder.PoisonHoldAggregate
	w.tracef("postgres %d, stream: %d replicas, duplicate window %s, batches %v, shared %v; %d instances, %d in flight, on poison %s",
		s.pg.version, cfg.replicas, cfg.window, cfg.batched, s.shared, s.size, s.cfg.InFlightMax, s.cfg.OnPoison)
	return s
}

// run plays the scenario with so many faults and returns what came of it.
func (s *scenario) run(faults int) report {
	r := report{faults: map[string]int{}}
	begun := time.Now()
	s.w.mu.Lock()
	s.writing = true
	s.write()
	for range s.size {
		s.launch()
	}
	s.w.mu.Unlock()
	for range faults {
		if !s.pause(s.betweenFaults()) {
			break
		}
		s.w.mu.Lock()
		name := s.strike()
		r.faults[name]++
		s.w.mu.Unlock()
	}
	s.heal()
	s.settle()
	s.w.mu.Lock()
	s.check.atEnd()
	s.w.mu.Unlock()
	s.stop()
	s.w.end()
	r.events, r.stored, r.phantoms = s.pg.made, s.check.first, s.check.phantomsStored()
	r.took, r.err, r.lines = time.Since(begun), s.w.failure, s.w.lines
	return r
}

// pause waits; false means that a promise is broken.
func (s *scenario) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.w.failed:
		return false
	}
}

func (s *scenario) betweenFaults() time.Duration {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.chance(3) {
		return s.w.between(0, 20*time.Millisecond) // one upon the other
	}
	return s.w.between(0, 3*time.Second)
}

// write commits a transaction now and then, in bursts.
func (s *scenario) write() {
	if !s.writing {
		return
	}
	events := 1 + s.w.rng.IntN(3)
	switch {
	case s.w.chance(4):
		events = 0
	case s.w.chance(40):
		events = s.w.rng.IntN(150)
	}
	s.pg.commit(events, s.payload)
	d := s.w.between(0, 400*time.Millisecond)
	if s.w.chance(3) {
		d = s.w.between(0, time.Millisecond)
	}
	s.w.after(d, s.write)
}

// payload draws how long an event is. Some can never be published, unless that would end
// the forwarder; some cannot while the stream's limit is low.
func (s *scenario) payload() int {
	switch {
	case s.cfg.OnPoison != forwarder.PoisonHalt && s.w.chance(80):
		return 1000
	case s.w.chance(10):
		return longPayload
	default:
		return s.w.rng.IntN(40)
	}
}

// longPayload is of an event that is longer than lowMaxMsgSize, which other events are not.
const (
	longPayload   = 300
	lowMaxMsgSize = 500
)

// launch starts one more instance.
func (s *scenario) launch() {
	s.started++
	p := s.w.start(fmt.Sprintf("p%d", s.started), s.cfg, s.pg, s.js, s.log)
	s.w.tracef("%s: starts", p.name)
	s.running = append(s.running, p)
}

// heal ends all that is wrong.
func (s *scenario) heal() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.tracef("all faults are over")
	s.writing = false
	for _, p := range s.running {
		p.thaw()
	}
	for len(s.running) == 0 {
		s.launch()
	}
	s.js.loses, s.js.refusing, s.js.mute, s.js.cfg.maxMsgs, s.js.cfg.maxMsgSize = 0, 0, false, 0, 0
}

// settle waits until everything is delivered and confirmed.
func (s *scenario) settle() {
	for until := time.Now().Add(quietMax); time.Now().Before(until) && s.pause(pollQuiet); {
		s.w.mu.Lock()
		done := s.pg.up && s.check.settled()
		s.w.mu.Unlock()
		if done {
			return
		}
	}
}

// stop ends all processes and waits for them.
func (s *scenario) stop() {
	s.w.mu.Lock()
	s.closing = true
	s.gone = append(s.gone, s.running...)
	for _, p := range s.gone {
		if s.w.failure != nil {
			p.kill()
		}
		p.thaw()
		p.cancel()
	}
	s.w.mu.Unlock()
	for _, p := range s.gone {
		<-p.done
	}
}

// end is called when a process is to end by itself, with grace.
func (s *scenario) end(i int, signal func(*process)) {
	p := s.running[i]
	s.running = append(s.running[:i:i], s.running[i+1:]...)
	s.gone = append(s.gone, p)
	signal(p)
	s.w.after(s.w.between(time.Millisecond, 4*time.Second), func() {
		if len(s.running) < s.size && !s.closing {
			s.launch()
		}
	})
}

// play runs one seed.
func play(seed uint64, log *slog.Logger, note func(string)) report {
	s := newScenario(seed, log)
	s.w.note = note
	return s.run(faultsPerRun)
}
