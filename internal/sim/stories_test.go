package sim

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// story begins a world without random faults, in which one forwarder runs. The stream
// takes batches, has one replica, and nobody else writes into it.
func story(t *testing.T, plot func(*scenario)) {
	t.Helper()
	oneProcessor(t)
	synctest.Test(t, func(t *testing.T) {
		s := newScenario(1, slog.New(slog.DiscardHandler))
		s.js.cfg.batched, s.js.cfg.replicas, s.js.members, s.js.cfg.window = true, 1, s.js.members[:1], 100*time.Millisecond
		s.size, s.shared, s.cfg.InFlightMax = 2, false, 64
		s.now(func() {
			s.writing = true
			s.write()
			s.launch()
		})
		s.pause(time.Second)
		plot(s)
		s.heal()
		s.settle()
		s.now(s.check.atEnd)
		s.stop()
		s.w.end()
		if s.w.failure != nil {
			t.Errorf("%v\n%s", s.w.failure, strings.Join(s.w.lines, "\n"))
		}
	})
}

// now lets something happen at once.
func (s *scenario) now(f func()) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	f()
}

// cutStream lets nothing through between a process and the stream for a while.
func (s *scenario) cutStream(p *process, d time.Duration) {
	for _, c := range s.js.conns() {
		if c.p == p {
			c.cut(d)
		}
	}
}

func TestALoserOfTheSlotThatReadsTheStreamLateDoesNotTakeItsServerForAnOlderCopy(t *testing.T) {
	story(t, func(s *scenario) {
		loser := s.running[0]
		s.now(func() {
			s.cutStream(loser, 4*time.Second)
			s.pg.cutAll()
		})
		s.pause(time.Second) // it has the slot again, and has not read the stream
		s.now(func() {
			h := s.pg.holder
			loser.server.cut(40 * time.Second)
			h.conn.hangUp() // the server has given it up, and it cannot know
			s.launch()
		})
		s.pause(8 * time.Second)
	})
}

func TestAForwarderThatAPromotionHasOvertakenPublishesNoneOfItsPhantoms(t *testing.T) {
	story(t, func(s *scenario) {
		loser := s.running[0]
		s.now(func() {
			s.writing = false
			s.cutStream(loser, 1500*time.Millisecond)
			s.pg.commit(30, func() int { return 0 })
			s.pg.commit(30, func() int { return 0 })
		})
		s.pause(10 * time.Millisecond) // it has them in hand, and none is published
		s.now(func() {
			loser.server.cut(40 * time.Second)
			s.pg.promote(2, time.Millisecond)
			s.launch()
		})
		s.pause(500 * time.Millisecond)
		s.now(func() { s.pg.commit(1, func() int { return 0 }) })
		s.pause(8 * time.Second)
		s.now(func() {
			if n := s.check.phantomsStored(); n > 0 {
				s.w.failf("%d events are in the stream whose rows a promotion has lost", n)
			}
		})
	})
}

func TestAForwarderThatStopsSleepsUntilItsAnswersCome(t *testing.T) {
	story(t, func(s *scenario) {
		s.now(func() {
			s.js.stall(2 * time.Second)
			s.pg.commit(200, func() int { return 0 })
		})
		s.pause(time.Second)
		// Should it not sleep, the fake clock would stand still, and the test with it.
		s.now(func() { s.running[0].cancel() })
		s.pause(4 * time.Second)
		s.now(s.launch)
	})
}
