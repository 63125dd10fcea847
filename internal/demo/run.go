package demo

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// Config says what to write and where to watch.
type Config struct {
	DatabaseURL string
	NATSURL     string
	Table       string // of the outbox, as SQL writes it
	Stream      string

	// OrdersMax ends the run after so many committed orders; 0 is no limit.
	OrdersMax int
	// RateMax is in orders a second; 0 is as fast as one connection goes.
	RateMax float64
	// DurationMax ends the run; 0 is no limit.
	DurationMax time.Duration
	// SettleMax is how long the last events are waited for.
	SettleMax time.Duration

	// OnArrival and OnRollBack are called from two goroutines, and hold up the demo while
	// they run.
	OnArrival  func(Arrival)
	OnRollBack func(RolledBack)
}

// Arrival is an event as it came out of the stream. Body must not be changed.
type Arrival struct {
	Sequence uint64
	Subject  string
	EventID  string
	Position string
	Body     []byte
}

// RolledBack is an order that was taken back, and its event, which must never arrive.
type RolledBack struct {
	Order   int64
	EventID string
}

// Run writes orders and watches their events, which forward is to carry. It ends when a
// bound of cfg is reached or ctx is done: then it stops writing, waits for the last events,
// ends the context of forward, and returns when all three have stopped. The summary is valid
// also beside an error. forward must return nil after its context has ended.
func Run(ctx context.Context, cfg Config, forward func(context.Context) error) (Summary, error) {
	t := newTally()
	w, err := newWriter(ctx, cfg, t)
	if err != nil {
		return Summary{}, err
	}
	defer w.conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // every transaction has ended
	s, err := newSubscriber(ctx, cfg, t)
	if err != nil {
		return Summary{}, err
	}
	defer s.close()

	base := context.WithoutCancel(ctx)
	forwardCtx, stopForward := context.WithCancel(base)
	defer stopForward()
	watchCtx, stopWatch := context.WithCancel(base)
	defer stopWatch()
	writeCtx, stopWrite := context.WithCancel(ctx)
	defer stopWrite()
	if cfg.DurationMax > 0 {
		var cancel context.CancelFunc
		writeCtx, cancel = context.WithTimeout(writeCtx, cfg.DurationMax)
		defer cancel()
	}

	forwardDone, watchDone := make(chan struct{}), make(chan struct{})
	var group errgroup.Group
	// Owns the forwarder; stops when forwardCtx is done or it fails; waited for below and by group.Wait.
	group.Go(func() error {
		defer close(forwardDone)
		defer stopWrite() // without a forwarder there is nothing to show
		return forward(forwardCtx)
	})
	// Owns the subscription; stops when watchCtx is done; waited for by group.Wait.
	group.Go(func() error {
		defer close(watchDone)
		defer stopWrite()
		return s.run(watchCtx)
	})

	err = w.run(writeCtx, cfg.OrdersMax)
	if err == nil {
		t.wait(func() bool { return t.outstanding() == 0 }, forwardDone, cfg.SettleMax)
	}
	stopForward()
	<-forwardDone
	// What should not be there may stand behind the last event that was awaited.
	if atEnd, endErr := s.atEnd(base); endErr == nil {
		t.wait(atEnd, watchDone, cfg.SettleMax)
	} else if err == nil {
		err = endErr
	}
	stopWatch()
	if groupErr := group.Wait(); groupErr != nil {
		err = groupErr // why the forwarder ended says more than that a connection broke
	}
	return t.summary(), err
}

// wait returns when an arrival has made reached true, gaveUp is closed or the time is over.
func (t *tally) wait(reached func() bool, gaveUp <-chan struct{}, waitMax time.Duration) {
	timeout := time.NewTimer(waitMax)
	defer timeout.Stop()
	for !reached() {
		select {
		case <-t.changed:
		case <-gaveUp:
			return
		case <-timeout.C:
			return
		}
	}
}

// Fault says in one line what is wrong with a summary that is not OK.
func (s Summary) Fault() string {
	return fmt.Sprintf("%d of %d events are missing, %d arrived twice, %d arrived of orders that were rolled back",
		s.Committed-s.Arrived, s.Committed, s.Repeated, s.Phantoms)
}
