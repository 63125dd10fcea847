package forwarder

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
)

// states collects the moves and the log lines of a machine.
type states struct {
	*machine
	moves []State
	log   bytes.Buffer
	now   time.Time
}

func newStates() *states {
	s := &states{now: time.Unix(1000, 0)}
	s.machine = newMachine(slog.New(slog.NewTextHandler(&s.log, nil)), func(st State) { s.moves = append(s.moves, st) }, s.now)
	return s
}

func (s *states) lines() int { return strings.Count(s.log.String(), "\n") }

func TestEachStateHasItsGauge(t *testing.T) {
	for s := range stateCount {
		if !slices.Contains(metrics.States(), s.String()) {
			t.Errorf("state %s is no state of the metrics", s)
		}
	}
}

func TestEachStateCanEndAndAnEndIsFinal(t *testing.T) {
	for from := range stateCount {
		for _, to := range []State{StateFailed} {
			ended := from == StateStopped || from == StateFailed
			if mayMove(from, to) == ended {
				t.Errorf("from %s to %s: %v", from, to, mayMove(from, to))
			}
		}
	}
	if mayMove(StateConnecting, StateStopped) || mayMove(StateStreaming, StateConnecting) {
		t.Error("a move that must not be")
	}
}

func TestNothingStreamsBeforeBothSidesAreReached(t *testing.T) {
	s := newStates()
	s.setPostgres(StateStreaming, "", s.now)
	if got := s.snapshot().state; got != StateConnecting {
		t.Fatalf("state is %s before NATS was reached", got)
	}
	s.setSink("", s.now)
	s.setSink("NATS: away", s.now)
	s.setSink("", s.now.Add(3*time.Second))
	want := []State{StateConnecting, StateStreaming, StateBackingOff, StateStreaming}
	if !slices.Equal(s.moves, want) {
		t.Errorf("moves %v, want %v", s.moves, want)
	}
	if !strings.Contains(s.log.String(), "after=3s") {
		t.Errorf("the recovery does not say how long it took:\n%s", s.log.String())
	}
}

func TestALongOutageIsSpokenOfSeldom(t *testing.T) {
	s := newStates()
	s.setSink("", s.now)
	s.setPostgres(StateStreaming, "", s.now)
	before := s.lines()
	for range 600 { // ten minutes, one attempt a second
		s.now = s.now.Add(time.Second)
		s.setPostgres(StateBackingOff, "PostgreSQL: refused", s.now)
	}
	if n := s.lines() - before; n < 2 || n > 12 {
		t.Errorf("%d lines for ten minutes:\n%s", n, s.log.String())
	}
}

func TestAStandbyDoesNotCareForNATS(t *testing.T) {
	s := newStates()
	s.setPostgres(StateStandby, "held by another", s.now)
	s.setSink("NATS: away", s.now)
	if got := s.snapshot(); got.state != StateStandby || got.reason != "held by another" {
		t.Errorf("state %s, reason %s", got.state, got.reason)
	}
}
