package cli

import (
	"context"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/internal/request"
)

const (
	// slotHoldMax is how long the command holds the slot, from when it first got on, before
	// it lets a forwarder that may have come meanwhile have it.
	slotHoldMax = 30 * time.Second
	// readNote is how long nothing is said of WAL that has to be read first, and then how
	// often it is said how far that got.
	readNote = 5 * time.Second
)

// hold bounds for how long the slot is held. Each hold reads the WAL from the confirmed
// position anew: one that ended before anything was published would never get further than the
// one before. All its methods are called from one goroutine, end apart.
type hold struct {
	errand *errand
	began  time.Time
	leave  context.CancelFunc
	timer  *time.Timer // nil until the request got on

	saidAt  time.Time
	saidLSN pglogrepl.LSN
}

func (e *errand) newHold(leave context.CancelFunc) *hold {
	now := time.Now()
	return &hold{errand: e, began: now, leave: leave, saidAt: now}
}

// working takes note that the request got on. It may then for as long again as it took to
// come to that, so that no more than half of the time goes into reading.
func (h *hold) working(r request.Request) {
	if h.timer == nil {
		h.timer = time.AfterFunc(max(slotHoldMax, time.Since(h.began)), h.leave)
	}
	h.errand.show(&r, false)
}

// waiting says what is waited for, and how far that got.
func (h *hold) waiting(_ request.Request, deliveredLSN, untilLSN pglogrepl.LSN) {
	if h.timer != nil || time.Since(h.saidAt) < readNote || deliveredLSN == h.saidLSN {
		return
	}
	e := h.errand
	e.clear()
	left := humanize.IBytes(uint64(untilLSN - deliveredLSN))
	if h.saidLSN == 0 {
		_ = printf(e.stderr, "request %d waits until the WAL of the slot is read, so that nothing is published again before it was published at all: %s to go; Ctrl-C cancels it\n", e.id, left) // as in show
	} else {
		_ = printf(e.stderr, "request %d waits: %s of WAL to go\n", e.id, left) // as in show
	}
	h.saidAt, h.saidLSN = time.Now(), deliveredLSN
}

// end is called once nobody calls the other methods any more.
func (h *hold) end() {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.leave()
}
