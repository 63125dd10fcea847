package sim

import (
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/forwarder"
)

// fault is one thing that can go wrong. It returns false when it cannot, just now.
type fault struct {
	name   string
	weight int
	strike func(*scenario) bool
}

// faults are all of them. Some are over by themselves, the rest with scenario.heal.
var faults = []fault{
	{"stream connection breaks", 4, func(s *scenario) bool {
		for _, c := range s.js.conns() {
			if s.w.chance(2) {
				c.snap()
			}
		}
		return true
	}},
	{"stream link is cut", 3, func(s *scenario) bool {
		for _, c := range s.js.conns() {
			if s.w.chance(2) {
				c.cut(s.long(15 * time.Second))
			}
		}
		return true
	}},
	{"stream server crashes", 4, func(s *scenario) bool {
		s.js.crash(s.long(6 * time.Second))
		return true
	}},
	{"stream leader is deposed", 8, func(s *scenario) bool {
		if !s.js.clustered() || s.js.leader < 0 {
			return false
		}
		s.js.depose(s.long(8 * time.Second))
		return true
	}},
	{"stream takes nothing in", 4, func(s *scenario) bool {
		s.js.stall(s.long(6 * time.Second))
		return true
	}},
	{"answers are lost", 4, func(s *scenario) bool {
		s.js.loses = 1 + s.w.rng.IntN(5)
		s.w.tracef("stream: one in %d answers is lost", s.js.loses)
		s.w.after(s.long(5*time.Second), func() { s.js.loses = 0 })
		return true
	}},
	{"stream refuses", 3, func(s *scenario) bool {
		codes := []int{errFull, 10167, 10023, errNotLeader}
		s.js.refusing = codes[s.w.rng.IntN(len(codes))]
		s.w.tracef("stream: refuses with %d", s.js.refusing)
		s.w.after(s.long(4*time.Second), func() { s.js.refusing = 0 })
		return true
	}},
	{"stream is full", 3, func(s *scenario) bool {
		s.js.cfg.maxMsgs = int(s.js.tailSeq()) - s.js.deleted + s.w.rng.IntN(10)
		s.w.tracef("stream: at most %d messages", s.js.cfg.maxMsgs)
		s.w.after(s.long(4*time.Second), func() { s.js.cfg.maxMsgs = 0 })
		return true
	}},
	{"stream takes short messages only", 6, func(s *scenario) bool {
		if s.cfg.OnPoison == forwarder.PoisonHalt {
			return false
		}
		s.js.cfg.maxMsgSize = lowMaxMsgSize
		s.w.tracef("stream: takes messages of %d bytes at most", s.js.cfg.maxMsgSize)
		s.w.after(s.w.between(0, 6*time.Second), func() { s.js.cfg.maxMsgSize = 0 })
		return true
	}},
	{"the API is silent", 2, func(s *scenario) bool {
		s.js.mute = true
		s.w.tracef("stream: the API is silent")
		s.w.after(s.long(7*time.Second), func() { s.js.mute = false })
		return true
	}},
	{"others write", 6, func(s *scenario) bool {
		if !s.shared {
			return false
		}
		s.foreign(1 + s.w.rng.IntN(60))
		return true
	}},
	{"slot connection breaks", 4, func(s *scenario) bool {
		if s.mayNotFree() {
			return false
		}
		for _, c := range s.pg.connections() {
			if c.sender != nil {
				c.snap()
			}
		}
		return true
	}},
	{"postgres restarts", 3, func(s *scenario) bool {
		if s.mayNotFree() {
			return false
		}
		s.pg.restart(s.w.chance(2), s.long(4*time.Second))
		return true
	}},
	{"postgres is promoted", 2, func(s *scenario) bool {
		if s.pg.promotions >= 2 || !s.pg.up || s.pg.stopping || s.mayNotFree() {
			return false
		}
		lost := s.w.rng.IntN(8)
		if n := len(s.pg.letters); n > 0 && s.w.chance(2) { // the newest dead letter with them
			for lost = 0; lost < len(s.pg.wal) && s.pg.wal[len(s.pg.wal)-1-lost].commitLSN >= s.pg.letters[n-1].commitLSN; {
				lost++
			}
		}
		s.pg.promote(lost, s.long(4*time.Second))
		return true
	}},
	{"slot is saved", 3, func(s *scenario) bool {
		s.pg.checkpoint()
		return true
	}},
	{"postgres link is cut", 4, func(s *scenario) bool {
		p := s.pick()
		if p == nil || s.shared && time.Since(s.freedAt) < time.Second {
			return false
		}
		p.server.cut(s.long(30 * time.Second))
		return true
	}},
	{"walsender is ended", 3, func(s *scenario) bool {
		h := s.pg.holder
		if h == nil || s.mayNotFree() {
			return false
		}
		h.conn.end(sqlError("57P01", "terminating connection due to administrator command"))
		return true
	}},
	{"process is frozen", 6, func(s *scenario) bool {
		p := s.pick()
		if p == nil || p.frozen != nil || s.shared && time.Since(s.freedAt) < time.Second {
			return false
		}
		d := s.long(25 * time.Second)
		s.w.tracef("%s: frozen for %s", p.name, d)
		p.freeze()
		s.w.after(d, func() {
			if p.frozen != nil {
				s.w.tracef("%s: thawed", p.name)
			}
			p.thaw()
		})
		return true
	}},
	{"process is killed", 8, func(s *scenario) bool {
		if len(s.running) == 0 {
			return false
		}
		i := s.w.rng.IntN(len(s.running))
		s.w.tracef("%s: killed", s.running[i].name)
		s.end(i, (*process).kill)
		return true
	}},
	{"process is stopped", 3, func(s *scenario) bool {
		if len(s.running) == 0 {
			return false
		}
		i := s.w.rng.IntN(len(s.running))
		s.w.tracef("%s: told to stop", s.running[i].name)
		s.end(i, func(p *process) { p.cancel() })
		return true
	}},
	{"nothing", 4, func(*scenario) bool { return true }},
}

// mayNotFree tells whether the slot must not get free now, and notes that it will. In a
// stream that others write into, a batch goes on without looking at the stream's last
// sequence until it has been idle for ten seconds; a takeover waits for longer, but who
// frees the slot in another way, while its holder cannot notice, makes two writers for
// that long. The design accepts that; in a stream of its own everything is tried.
func (s *scenario) mayNotFree() bool {
	if s.shared {
		for _, p := range append(s.gone, s.running...) {
			if !p.dead && (p.frozen != nil || time.Now().Before(p.server.cutUntil)) {
				return true
			}
		}
	}
	s.freedAt = time.Now()
	return false
}

// strike lets something go wrong and returns what.
func (s *scenario) strike() string {
	all := 0
	for _, f := range faults {
		all += f.weight
	}
	for {
		if s.w.chance(3) { // while much is on its way
			s.pg.commit(s.w.rng.IntN(60), s.payload)
		}
		n := s.w.rng.IntN(all)
		for _, f := range faults {
			if n -= f.weight; n < 0 {
				if f.strike(s) {
					s.w.tracef("fault: %s", f.name)
					return f.name
				}
				break
			}
		}
	}
}

// long draws how long something lasts: mostly short, sometimes up to most.
func (s *scenario) long(most time.Duration) time.Duration {
	if s.w.chance(3) {
		return s.w.between(0, most)
	}
	return s.w.between(0, most/10)
}

// pick returns a process, or nil when none runs.
func (s *scenario) pick() *process {
	if len(s.running) == 0 {
		return nil
	}
	return s.running[s.w.rng.IntN(len(s.running))]
}

// foreign lets somebody else write into the stream.
func (s *scenario) foreign(left int) {
	if left == 0 {
		return
	}
	s.js.writeForeign("other.thing")
	s.w.after(s.w.between(0, 2*time.Millisecond), func() { s.foreign(left - 1) })
}
