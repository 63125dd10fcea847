package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

// sameStop is how soon after the first a second signal still means the same stop.
const sameStop = 100 * time.Millisecond

// stopSignals tells a second stop from the same one sent twice, as timeout(1) of
// coreutils does: to its child and at once to the child's process group.
type stopSignals struct {
	first time.Time // zero: none has come
}

// cuts counts a signal, and reports whether it is a second one.
func (s *stopSignals) cuts(now time.Time) bool {
	if s.first.IsZero() {
		s.first = now
	}
	return now.Sub(s.first) > sameStop
}

// runUntilSignal runs the program's work. The first SIGINT or SIGTERM ends its context,
// which means: drain and leave. The second returns fault.ErrCut at once, without
// waiting for the work, since the process ends with it.
func runUntilSignal(work func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2) // one to drain, one to leave
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	done := make(chan error, 1)
	// Owns the whole work of the command; stops when the work returns or the process
	// ends; waited for below, except after a second signal.
	go func() { done <- work(ctx) }()
	var stops stopSignals
	for {
		select {
		case err := <-done:
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return fault.NewTransient("", "", ErrInterrupted)
			}
			return err
		case <-signals:
			if stops.cuts(time.Now()) {
				return fault.ErrCut
			}
			cancel()
		}
	}
}
