package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

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
	for {
		select {
		case err := <-done:
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return fault.NewTransient("", "", ErrInterrupted)
			}
			return err
		case <-signals:
			if ctx.Err() != nil {
				return fault.ErrCut
			}
			cancel()
		}
	}
}
