package forwarder

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// State is what a forwarder is doing.
type State uint8

// The states.
const (
	StateConnecting State = iota
	StateStandby
	StateStreaming
	StateBackingOff
	StateDraining
	StateStopped
	StateFailed
	stateCount
)

var stateNames = [stateCount]string{
	"connecting", "standby", "streaming", "backing off", "draining", "stopped", "failed",
}

// String returns the name that logs, health and metrics use.
func (s State) String() string {
	if s < stateCount {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// moves is the one table of moves between states.
var moves = [stateCount][]State{
	StateConnecting: {StateStandby, StateStreaming, StateBackingOff, StateDraining, StateFailed},
	StateStandby:    {StateStreaming, StateBackingOff, StateDraining, StateFailed},
	StateStreaming:  {StateStandby, StateBackingOff, StateDraining, StateFailed},
	StateBackingOff: {StateStandby, StateStreaming, StateDraining, StateFailed},
	StateDraining:   {StateStopped, StateFailed},
	StateStopped:    {},
	StateFailed:     {},
}

func mayMove(from, to State) bool {
	return slices.Contains(moves[from], to)
}

const (
	// reminderEvery is how often a wait that goes on is logged again.
	reminderEvery = time.Minute
	// standbyEvery is the same for a standby.
	standbyEvery = 5 * time.Minute
	// reasonEvery bounds how often a changed reason is logged.
	reasonEvery = 15 * time.Second
)

// reasonConnecting is the sink's reason until it has reached the stream.
const reasonConnecting = "NATS: connecting"

// machine holds the state. The two sides report to it from their goroutines.
type machine struct {
	log    *slog.Logger
	onMove func(State)

	mu       sync.Mutex
	state    State
	reason   string
	since    time.Time
	loggedAt time.Time

	postgres       State // connecting, standby, streaming or backing off
	postgresReason string
	sinkReason     string // why nothing goes out; empty when it does
	final          bool
}

func newMachine(log *slog.Logger, onMove func(State), now time.Time) *machine {
	m := &machine{log: log, onMove: onMove, state: StateConnecting, since: now, loggedAt: now, sinkReason: reasonConnecting}
	onMove(StateConnecting)
	log.Info(StateConnecting.String()) //nolint:sloglint // the state is the message
	return m
}

// setPostgres reports what the reader does.
func (m *machine) setPostgres(s State, reason string, now time.Time, attrs ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.postgres, m.postgresReason = s, reason
	m.derive(now, attrs...)
}

// setSink reports why nothing goes out, or "" when it does.
func (m *machine) setSink(reason string, now time.Time, attrs ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sinkReason == "" && reason == "" {
		return
	}
	m.sinkReason = reason
	m.derive(now, attrs...)
}

// leave moves to draining, stopped or failed; reports of the two sides no longer count.
func (m *machine) leave(s State, reason string, now time.Time, attrs ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.final = true
	if m.state == StateStopped || m.state == StateFailed {
		return // it has ended already
	}
	m.move(s, reason, now, attrs...)
}

// derive works out the state from what both sides reported.
func (m *machine) derive(now time.Time, attrs ...any) {
	if m.final {
		return
	}
	s, reason := m.postgres, m.postgresReason
	if s == StateStreaming && m.sinkReason != "" {
		if m.state == StateConnecting && m.sinkReason == reasonConnecting {
			return // both sides belong to it
		}
		s, reason = StateBackingOff, m.sinkReason
	}
	m.move(s, reason, now, attrs...)
}

func (m *machine) move(s State, reason string, now time.Time, attrs ...any) {
	if s == m.state {
		m.remind(reason, now)
		return
	}
	if !mayMove(m.state, s) {
		panic(fmt.Sprintf("forwarder: move from %s to %s", m.state, s))
	}
	all := make([]any, 0, len(attrs)+6)
	if reason != "" {
		all = append(all, "reason", reason)
	}
	if m.state == StateBackingOff {
		all = append(all, "after", now.Sub(m.since).Round(time.Millisecond).String())
	}
	all = append(all, attrs...)
	m.state, m.reason, m.since, m.loggedAt = s, reason, now, now
	m.onMove(s)
	log := m.log.Info
	switch s {
	case StateBackingOff:
		log = m.log.Warn
	case StateFailed:
		log = m.log.Error
	default:
	}
	log(s.String(), all...)
}

// remind logs a state that goes on, seldom.
func (m *machine) remind(reason string, now time.Time) {
	every := reminderEvery
	if m.state == StateStandby {
		every = standbyEvery
	}
	changed := reason != m.reason && reason != ""
	m.reason = reason
	quiet := now.Sub(m.loggedAt)
	if (m.state != StateBackingOff && m.state != StateStandby) || (quiet < every && (!changed || quiet < reasonEvery)) {
		return
	}
	m.loggedAt = now
	m.log.Warn("still "+m.state.String(), "reason", reason, "for", now.Sub(m.since).Round(time.Second).String()) //nolint:sloglint // the state is the message
}

// snapshot is the state as health and status show it.
type snapshot struct {
	state  State
	reason string
	since  time.Time
}

func (m *machine) snapshot() snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return snapshot{m.state, m.reason, m.since}
}
