package testenv

import (
	"context"
	"testing"
	"time"
)

// Deadline is long enough for any single step of a test on a busy machine.
const Deadline = 30 * time.Second

const (
	pollFirst = 2 * time.Millisecond
	pollMax   = 50 * time.Millisecond
)

// Eventually calls check until it returns nil. After the deadline the test fails with the
// last error.
func Eventually(tb testing.TB, deadline time.Duration, check func() error) {
	tb.Helper()
	if err := poll(deadline, check); err != nil {
		tb.Fatalf("not within %s: %v", deadline, err)
	}
}

func poll(deadline time.Duration, check func() error) error {
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	wait := pollFirst
	for {
		err := check()
		if err == nil {
			return nil
		}
		next := time.NewTimer(wait)
		select {
		case <-next.C:
		case <-timeout.C:
			next.Stop()
			return err
		}
		wait = min(2*wait, pollMax)
	}
}

// Context returns a context that ends with the test, or before by the deadline.
func Context(tb testing.TB, deadline time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), deadline)
	tb.Cleanup(cancel)
	return ctx
}

// cleanupContext is for work in tb.Cleanup, where tb.Context has ended.
func cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), Deadline)
}
