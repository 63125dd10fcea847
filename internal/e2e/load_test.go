package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// load is a mixed load: several sessions write transactions of one to many events,
// roll some back, and go on after the server went away. The table is the truth about
// what was committed.
type load struct {
	tb       testing.TB
	outbox   *outbox
	stop     context.CancelFunc
	group    sync.WaitGroup
	written  atomic.Int64 // events in commits that were acknowledged
	pauseMax time.Duration
}

// startLoad starts the writers; the seed is logged.
func (o *outbox) startLoad(writers int, pauseMax time.Duration) *load {
	o.tb.Helper()
	seed := uint64(time.Now().UnixNano())
	o.tb.Logf("load: seed %d", seed)
	ctx, stop := context.WithCancel(context.Background())
	l := &load{tb: o.tb, outbox: o, stop: stop, pauseMax: pauseMax}
	for w := range writers {
		rng := rand.New(rand.NewPCG(seed, uint64(w)))
		l.group.Go(func() { l.write(ctx, fmt.Sprintf("w%d", w), rng) })
	}
	o.tb.Cleanup(l.end)
	return l
}

// end stops the writers and waits for them.
func (l *load) end() {
	l.stop()
	l.group.Wait()
}

// waitWritten waits until n more events have been committed.
func (l *load) waitWritten(n int64) {
	l.tb.Helper()
	target := l.written.Load() + n
	testenv.Eventually(l.tb, 4*testenv.Deadline, func() error {
		if got := l.written.Load(); got < target {
			return fmt.Errorf("%d events written, want %d", got, target)
		}
		return nil
	})
}

func (l *load) write(ctx context.Context, aggregate string, rng *rand.Rand) {
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, l.outbox.databaseURL)
		if err == nil {
			err = l.session(ctx, conn, aggregate, rng)
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		if err != nil {
			wait(ctx, 20*time.Millisecond)
		}
	}
}

func (l *load) session(ctx context.Context, conn *pgx.Conn, aggregate string, rng *rand.Rand) error {
	var version int64
	if err := conn.QueryRow(ctx, "SELECT coalesce(max(aggregate_version), 0) FROM "+l.outbox.table+
		" WHERE aggregate_id = $1", aggregate).Scan(&version); err != nil {
		return err
	}
	for ctx.Err() == nil {
		events := int64(1)
		switch rng.IntN(10) {
		case 0:
			events = int64(1 + rng.IntN(300))
		case 1, 2, 3:
			events = int64(1 + rng.IntN(10))
		}
		end := "COMMIT"
		if rng.IntN(8) == 0 {
			end = "ROLLBACK"
		}
		// Never cut short: the server could commit after the table has been compared.
		_, err := conn.Exec(context.WithoutCancel(ctx), fmt.Sprintf(`BEGIN;
			INSERT INTO %s (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
			SELECT 'order', '%s', %d + i, 'changed', jsonb_build_object('n', i, 'text', repeat('x', %d)) FROM generate_series(1, %d) i;
			%s`, l.outbox.table, aggregate, version, rng.IntN(400), events, end))
		if err != nil {
			return err
		}
		if end == "COMMIT" {
			version += events
			l.written.Add(events)
		}
		if l.pauseMax > 0 {
			wait(ctx, time.Duration(rng.Int64N(int64(l.pauseMax))))
		}
	}
	return nil
}

// wait paces a load; no assertion depends on how long it takes.
func wait(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
