package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/forwarder"
	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
	"github.com/outbox-cdc/outbox-cdc/internal/request"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

const (
	// requestPoll is how often the request is looked at.
	requestPoll = 200 * time.Millisecond
	// slotFreeFor is how long the slot must be free before the command takes it: a standby
	// of the forwarder is to have it first.
	slotFreeFor = 1500 * time.Millisecond
	// cancelMax bounds the last words of a command that was interrupted.
	cancelMax = 5 * time.Second
	// untakenNote is after how long it is said that nobody has taken the request.
	untakenNote = 5 * time.Second
)

// errand is a request that this command has made and waits for.
type errand struct {
	*invocation
	admin    *replication.Admin
	store    request.Store
	id       int64
	kind     request.Kind
	selected int64 // how many events are meant, for the screen

	began, freeSince time.Time
	noted            bool
	shown            bool // a line of progress is on the terminal
}

// carryOut makes a request and returns it when it is finished: the holder of the slot
// works on it, or this command itself while nobody holds the slot. When ctx ends the request is cancelled.
// The request is nil when nothing can be said of it.
func (in *invocation) carryOut(ctx context.Context, admin *replication.Admin, kind request.Kind, s request.Selection, selected int64) (*request.Request, error) {
	e := &errand{invocation: in, admin: admin, store: request.NewStore(in.table().Schema), kind: kind, selected: selected, began: time.Now()}
	var err error
	if e.id, err = e.store.Submit(ctx, admin, kind, s); err != nil {
		return nil, explain(err)
	}
	r, err := e.await(ctx)
	if err == nil && r.State == request.StateFailed {
		return r, fault.NewOperator("request-failed", r.Error, r.Progress.Hint, nil)
	}
	if err == nil && r.State == request.StateCancelled {
		return r, fault.NewTransient(fmt.Sprintf("request %d was cancelled", e.id), "", nil)
	}
	if err != nil {
		return e.giveUp(ctx, err)
	}
	return r, nil
}

// await looks at the request until it is finished.
func (e *errand) await(ctx context.Context) (*request.Request, error) {
	again := time.NewTicker(requestPoll)
	defer again.Stop()
	for {
		r, err := e.store.Get(ctx, e.admin, e.id)
		if err != nil {
			return nil, explain(err)
		}
		if r == nil {
			return nil, fault.NewTransient(fmt.Sprintf("request %d is gone from the table", e.id), "", nil)
		}
		e.show(r, r.Finished())
		if r.Finished() {
			return r, nil
		}
		if err := e.workIfNobodyDoes(ctx, r); err != nil {
			return r, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
}

// workIfNobodyDoes holds the slot for a while when it is free.
func (e *errand) workIfNobodyDoes(ctx context.Context, r *request.Request) error {
	slot, err := e.admin.Slot(ctx, e.str("slot"))
	if err != nil {
		return explain(err)
	}
	now := time.Now()
	switch {
	case slot == nil:
		return e.slotMissing()
	case slot.Active:
		e.freeSince = time.Time{}
		return e.noteUntaken(r, slot)
	case e.freeSince.IsZero():
		e.freeSince = now
		return nil
	case now.Sub(e.freeSince) < slotFreeFor:
		return nil
	}
	e.freeSince = time.Time{}
	return e.holdSlot(ctx)
}

// noteUntaken says once that the forwarder has not begun.
func (e *errand) noteUntaken(r *request.Request, slot *replication.SlotInfo) error {
	if e.noted || r.State != request.StateWaiting || time.Since(e.began) < untakenNote {
		return nil
	}
	e.noted = true
	pid := int32(0)
	if slot.ActivePID != nil {
		pid = *slot.ActivePID
	}
	return printf(e.stderr, "request %d waits for the forwarder that holds slot %s (process %d on the server); Ctrl-C cancels it\n", e.id, slot.Name, pid)
}

// holdSlot works off the requests as their forwarder would, with the slot in hand.
func (e *errand) holdSlot(ctx context.Context) error {
	client, err := e.dialNATS(ctx) // what cannot be reached is said at once
	if err != nil {
		return err
	}
	client.Close()
	in := *e.invocation
	in.values = in.withDefaults(forwardingSettings())
	cfg, err := in.forwarderConfig()
	if err != nil {
		return err
	}
	cfg.RequestsOnly, cfg.TakeoverAfter = true, 0
	log := in.log
	if !in.given("log-level") {
		log = newLogger(in.stderr, in.logFormat(in.terminal), "warn") // its states are of no concern here
	}
	b := buildVersion()
	limited, leave := context.WithCancel(ctx)
	h := e.newHold(leave)
	defer h.end()
	f, err := forwarder.New(cfg, forwarder.Deps{
		Log: log, Metrics: metrics.New(b.Version, b.Revision), Version: b.Version, Redact: in.redact,
		Working: h.working, Waiting: h.waiting,
	})
	if err != nil {
		return err //nolint:wrapcheck // it is the user's sentence already
	}
	err = f.Run(limited)
	if errors.Is(err, forwarder.ErrSlotInUse) {
		return nil // a forwarder was faster
	}
	return err //nolint:wrapcheck // it is the user's sentence already
}

// giveUp cancels the request and returns it as it is.
func (e *errand) giveUp(ctx context.Context, cause error) (*request.Request, error) {
	e.clear()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelMax)
	defer cancel()
	admin, err := e.openAdmin(ctx) // the other connection may have broken with the statement
	if err != nil {
		return nil, cause
	}
	defer admin.Close()
	if _, err := e.store.Cancel(ctx, admin, e.id); err != nil {
		e.log.Warn("the request is not cancelled", "request", e.id, "error", err.Error())
		return nil, cause
	}
	r, err := e.store.Get(ctx, admin, e.id)
	if err != nil {
		return nil, cause
	}
	return r, cause
}

// show prints how far the request is, for a person.
func (e *errand) show(r *request.Request, last bool) {
	if !e.terminal {
		return
	}
	p := r.Progress
	if last {
		e.clear()
		return
	}
	e.shown = true
	_ = printf(e.stderr, clearLine+"%s: %s of %s events, %s stored, %s swallowed, %s refused", e.kind, humanize.Comma(p.Selected),
		humanize.Comma(e.selected), humanize.Comma(p.Stored), humanize.Comma(p.Swallowed), humanize.Comma(p.Refused)) // a screen that cannot be written to shows nothing
}

// clear takes the line of progress away.
func (e *errand) clear() {
	if e.shown {
		e.shown = false
		_ = printf(e.stderr, clearLine) // as above
	}
}
