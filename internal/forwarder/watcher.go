package forwarder

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

const (
	watchEvery         = 2 * time.Second
	watchPublication   = 10 * time.Second
	watchTimeout       = 4 * time.Second
	watchReconnectWait = 2 * time.Second
)

// watcher looks at the server over an ordinary SQL connection: how much WAL the
// slot holds, whether the outbox is still published, whether our walsender works,
// whether the server shuts down. It never fails the forwarder.
type watcher struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics.Metrics
	shared  *shared
	server  Server

	admin         Admin
	away          bool
	publicationAt time.Time

	mu          sync.Mutex
	unpublished string // why the outbox is not published; empty when it is
	unreserved  bool
}

// run looks until ctx is done.
func (w *watcher) run(ctx context.Context) {
	defer w.close()
	for again := false; again || pause(ctx, watchEvery); {
		err := w.look(ctx)
		again = err != nil
		if err == nil {
			if w.away {
				w.log.Info("SQL connection is back")
			}
			w.away = false
			continue
		}
		if stopping(ctx) {
			return
		}
		w.failed(err)
		if replication.SQLState(err) == sqlStateAdminShutdown {
			continue // the next attempt tells whether the server is going down
		}
		if !pause(ctx, watchReconnectWait) {
			return
		}
	}
}

func (w *watcher) close() {
	if w.admin != nil {
		w.admin.Close()
		w.admin = nil
	}
}

// failed notes what a failed look means.
func (w *watcher) failed(err error) {
	w.close()
	if replication.SQLState(err) == sqlStateCannotConnectNow {
		w.shared.serverStopping.Store(true)
	}
	w.metrics.SetSlot(nil, nil, nil)
	if !w.away {
		w.away = true
		w.log.Warn("SQL connection failed: slot and publication are not watched until it is back", "error", err.Error())
	}
}

func (w *watcher) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchTimeout)
	defer cancel()
	if w.admin == nil {
		admin, err := w.server.Open(ctx)
		if err != nil {
			return err
		}
		w.admin = admin
	}
	if err := w.lookAtSlot(ctx); err != nil {
		return err
	}
	if err := w.lookAtWalsender(ctx); err != nil {
		return err
	}
	now := time.Now()
	if now.Sub(w.publicationAt) >= watchPublication {
		w.publicationAt = now
		w.countDeadLetters(ctx)
		return w.lookAtPublication(ctx)
	}
	return nil
}

// countDeadLetters reads how many dead letters are open. Without the table, or the right
// to read it, the figure stays unknown.
func (w *watcher) countDeadLetters(ctx context.Context) {
	if open, err := w.admin.OpenDeadLetters(ctx); err == nil {
		w.metrics.SetDeadLetters(open)
	}
}

func (w *watcher) lookAtSlot(ctx context.Context) error {
	slot, err := w.admin.Slot(ctx)
	if err != nil {
		return err //nolint:wrapcheck // it names the slot
	}
	if slot == nil {
		w.metrics.SetSlot(nil, nil, nil)
		return nil
	}
	w.metrics.SetSlot(float(slot.LagBytes), float(slot.RetainedBytes), float(slot.SafeWALSize))
	unreserved := slot.WALStatus != nil && *slot.WALStatus == "unreserved"
	if unreserved && !w.unreserved {
		w.log.Warn("slot is about to be lost: it holds more WAL than max_slot_wal_keep_size allows", "slot", w.cfg.Slot,
			"hint", "raise max_slot_wal_keep_size or remove what keeps events from being published")
	}
	w.unreserved = unreserved
	return nil
}

func float(v *int64) *float64 {
	if v == nil {
		return nil
	}
	f := float64(*v)
	return &f
}

// lookAtWalsender notes when our walsender is at work, so that its silence while it
// decodes something huge is not taken for a dead connection.
func (w *watcher) lookAtWalsender(ctx context.Context) error {
	pid := w.shared.walsenderPID.Load()
	if pid == 0 {
		return nil
	}
	busy, err := w.admin.WalsenderBusy(ctx, pid)
	if err != nil {
		return err //nolint:wrapcheck // it is only logged
	}
	if busy {
		w.shared.busyAt.Store(time.Now().UnixNano())
	}
	return nil
}

// lookAtPublication notices a table that is no longer published, which neither slot
// nor stream would show.
func (w *watcher) lookAtPublication(ctx context.Context) error {
	why, err := w.whyUnpublished(ctx)
	if err != nil {
		return err
	}
	w.mu.Lock()
	before := w.unpublished
	w.unpublished = why
	w.mu.Unlock()
	switch {
	case why != "" && before == "":
		w.log.Error("the outbox is not published: events are being missed", "reason", why, "table", w.cfg.Table.String(),
			"publication", w.cfg.Publication, "hint", "outbox-cdc setup --dry-run prints what is missing; rows inserted meanwhile are in the table only")
	case why == "" && before != "":
		w.log.Info("the outbox is published again", "table", w.cfg.Table.String(), "publication", w.cfg.Publication)
	}
	return nil
}

func (w *watcher) whyUnpublished(ctx context.Context) (string, error) {
	findings, err := w.admin.Preflight(ctx)
	if err != nil {
		return "", err //nolint:wrapcheck // it names what was looked for
	}
	for _, f := range findings {
		switch f.Code {
		case "publication-missing", "publication-table", "publication-insert", "publication-columns",
			"table-missing", "table-kind", "table-unlogged", "column-missing":
			if f.Level == provision.LevelFail {
				return f.Message, nil
			}
		}
	}
	return "", nil
}

// whyRed returns why the outbox was not published at the last look, or "".
func (w *watcher) whyRed() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unpublished
}
