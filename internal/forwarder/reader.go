package forwarder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

const (
	readerBackoffStart = 100 * time.Millisecond
	readerBackoffMax   = 30 * time.Second
	// flapping is how short a stream may be for the next wait to grow nevertheless.
	flapping = 2 * time.Second
	// tick bounds how long a blocking receive hides that the forwarder is to stop.
	tick = 100 * time.Millisecond
	// localMax is how many items are gathered before they are handed over although
	// more bytes are here already.
	localMax = 64
	// clockEvery is after how many frames without a pause the clock is read.
	clockEvery = 32
	// silenceMin is the least time without a word from the server after which it is
	// looked at from the other connection.
	silenceMin = 6 * time.Second
	// connectTimeout bounds what comes between the connection and the stream.
	connectTimeout = 20 * time.Second
)

// reader owns the replication connection, the status timer and the decoder.
type reader struct {
	cfg     Config
	log     *slog.Logger
	machine *machine
	queue   *queue
	shared  *shared
	catalog *catalog
	server  Server
	random  func() float64
	onRetry func()

	publisherDone <-chan struct{}

	session      *session
	everStreamed bool
	sawSlot      bool      // the slot was there once
	streamedAt   time.Time // when the present stream began; zero without one
	waited       bool      // the present connection has waited for the slot as a standby
	missingAt    time.Time // since when a slot that was there before is missing

	// Of the present stream.
	open        bool // a begin was gathered and its commit was not
	gotFrame    bool
	pending     []item
	beginHeld   bool // begin is handed over with the first event only
	statusAt    time.Time
	ceilingLSN  pglogrepl.LSN // no more than this server has sent is ever confirmed
	asked       int
	askedSince  time.Time
	stopSeenAt  time.Time
	replyOwed   bool
	noticeText  string // logged last
	noticeAt    time.Time
	decoder     *decode.Decoder
	stream      Stream
	framesToRun int
}

// run reads until ctx is done; then it waits for the publisher to drain, tells the
// final position and returns nil. Any other return is what only a person can mend.
func (r *reader) run(ctx context.Context) error {
	bo := &backoff.ExponentialBackOff{
		InitialInterval: readerBackoffStart, MaxInterval: readerBackoffMax, Multiplier: 2,
	}
	bo.Reset()
	for {
		r.shared.readerTurnedAt.Store(time.Now().UnixNano())
		err := r.once(ctx)
		r.shared.holding.Store(false)
		r.shared.walsenderPID.Store(0)
		if stopping(ctx) {
			return nil
		}
		if errors.Is(err, errReread) {
			continue
		}
		if errors.Is(err, ErrSlotInUse) {
			return err
		}
		f := r.secondLook(classify(err, r.everStreamed))
		if f.Class != fault.Transient {
			return f
		}
		if r.waited || !r.streamedAt.IsZero() && time.Since(r.streamedAt) > flapping {
			bo.Reset()
		}
		r.onRetry()
		why := "PostgreSQL: " + f.Error()
		if f.Hint != "" {
			why += " (" + f.Hint + ")"
		}
		r.machine.setPostgres(StateBackingOff, why, time.Now())
		if !pause(ctx, jittered(bo.NextBackOff(), r.random)) {
			return nil
		}
	}
}

// jittered spreads waits, so that instances that failed together do not return together.
func jittered(d time.Duration, random func() float64) time.Duration {
	return time.Duration(float64(d) * (0.7 + 0.6*random()))
}

// errReread ends a session whose events the publisher wants to have again.
var errReread = errors.New("the slot is read again from its own position")

// slotMissingFor is how long a slot that was streamed before may be missing: right
// after a promotion the new primary may still be making it usable.
const slotMissingFor = 30 * time.Second

// secondLook lets a missing slot be looked for once more where it was there before.
func (r *reader) secondLook(f *fault.Error) *fault.Error {
	if f.Code != "slot-missing" || !r.sawSlot {
		r.missingAt = time.Time{}
		return f
	}
	now := time.Now()
	if r.missingAt.IsZero() {
		r.missingAt = now
	}
	if now.Sub(r.missingAt) >= slotMissingFor {
		return f
	}
	return fault.NewTransient(f.What, f.Hint, f.Err)
}

// pause waits; false means that ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// once connects, streams, and returns what ended it.
func (r *reader) once(ctx context.Context) error {
	r.streamedAt, r.waited = time.Time{}, false
	conn, err := r.server.Connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	s, err := r.identify(ctx, conn)
	if err != nil {
		return err
	}
	stream, err := r.acquire(ctx, conn, s)
	if err != nil {
		return err
	}
	r.stream = stream
	defer func() {
		stream.Close()
		r.stream = nil
	}()
	if err := r.begin(ctx, s); err != nil {
		return err
	}
	r.shared.serverStopping.Store(false)
	r.shared.walsenderPID.Store(stream.PID())
	r.shared.lastFrameAt.Store(time.Now().UnixNano())
	r.shared.holding.Store(true)
	r.everStreamed, r.streamedAt = true, time.Now()
	r.machine.setPostgres(StateStreaming, "", time.Now(), "slot", r.cfg.Slot, "from", s.confirmedLSN.String(),
		"timeline", s.timelines.Current, "server", conn.ServerVersion())
	return r.streamLoop(ctx)
}

// identify asks who the server is, and refuses what only a person can mend.
func (r *reader) identify(ctx context.Context, conn Conn) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	// Asked first: a server that is not in recovery keeps its timeline as long as the
	// connection lasts, a standby may be promoted between two questions.
	if _, err := r.slotState(ctx, conn); err != nil {
		return nil, err
	}
	sys, err := conn.IdentifySystem(ctx)
	if err != nil {
		return nil, err
	}
	history, err := conn.TimelineHistory(ctx, sys.Timeline)
	if err != nil {
		return nil, err
	}
	timelines, err := decode.ParseTimelineHistory(history, sys.Timeline)
	if err != nil {
		return nil, fmt.Errorf("read history of timeline %d: %w", sys.Timeline, err)
	}
	return &session{systemID: sys.Identifier, timelines: timelines}, r.catalog.preflight(ctx)
}

// ErrSlotInUse says that another process holds the slot, which is to be held for requests
// alone.
var ErrSlotInUse = errors.New("another process holds the slot")

// acquire starts to stream, waiting as a standby while somebody else holds the slot.
func (r *reader) acquire(ctx context.Context, conn Conn, s *session) (Stream, error) {
	waiting := &standby{reader: r, conn: conn}
	defer waiting.close()
	for {
		stream, err := r.tryStart(ctx, conn, s)
		if err == nil || replication.SQLState(err) != sqlStateObjectInUse {
			return stream, err
		}
		if r.cfg.RequestsOnly {
			return nil, fmt.Errorf("%w: %w", ErrSlotInUse, err)
		}
		r.waited = true
		if err := waiting.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// tryStart reads the slot and starts to stream from its own position. A position that
// was remembered would be one number too much: on an older copy of the database the
// server would take it, and skip what lies below it without a word. What is sent again
// thereby is found in the stream.
func (r *reader) tryStart(ctx context.Context, conn Conn, s *session) (Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	slot, err := r.slotState(ctx, conn)
	if err != nil {
		return nil, err
	}
	if !slot.Exists {
		return nil, fault.NewOperator("slot-missing", fmt.Sprintf("slot %s does not exist on this server", r.cfg.Slot),
			"outbox-cdc setup creates it; what was committed before is not streamed", nil)
	}
	s.confirmedLSN = slot.ConfirmedLSN
	return conn.Start(ctx, replication.StartOptions{
		Slot: r.cfg.Slot, Publication: r.cfg.Publication, StartLSN: slot.ConfirmedLSN, Messages: r.cfg.Messages,
	})
}

// slotState reads the slot, on a primary only.
func (r *reader) slotState(ctx context.Context, conn Conn) (replication.SlotState, error) {
	slot, err := conn.SlotState(ctx, r.cfg.Slot)
	if err != nil {
		return slot, err
	}
	if slot.InRecovery {
		return slot, fault.NewTransient("the server is a standby (in recovery)", "", nil)
	}
	r.sawSlot = r.sawSlot || slot.Exists
	return slot, nil
}

// begin prepares the state of a stream that has started. Only now, with the slot in
// hand, does the end of the WAL tell anything about what others have published.
func (r *reader) begin(ctx context.Context, s *session) error {
	var err error
	if s.walEndLSN, err = r.catalog.walEnd(ctx); err != nil {
		return err
	}
	toldLSN := pglogrepl.LSN(r.shared.confirmedLSN.Load())
	if before := r.session; before != nil && before.systemID == s.systemID &&
		before.timelines.Current == s.timelines.Current && toldLSN > s.walEndLSN {
		return positionAhead(toldLSN, r.cfg.Slot, s.walEndLSN)
	}
	if before := r.session; before != nil && before.systemID == s.systemID && s.confirmedLSN > toldLSN {
		r.log.Warn("the slot stands beyond what this process confirmed: another forwarder has gone on, or the slot was made anew and events in between are missing",
			"slot", r.cfg.Slot, "confirmed_lsn", toldLSN.String(), "slot_lsn", s.confirmedLSN.String())
	}
	if s.confirmedLSN > s.walEndLSN {
		return positionAhead(s.confirmedLSN, r.cfg.Slot, s.walEndLSN)
	}
	r.session = s
	r.shared.confirmedLSN.Store(uint64(s.confirmedLSN))
	r.queue.reset(s)
	r.ceilingLSN = s.confirmedLSN
	clear(r.pending)
	r.pending, r.beginHeld, r.open = r.pending[:0], false, false
	r.asked, r.stopSeenAt, r.replyOwed = 0, time.Time{}, false
	r.statusAt = time.Time{}
	r.decoder = decode.New(decode.Config{
		Table: r.cfg.Table, Mapping: r.cfg.Columns, Required: r.cfg.requiredFields(),
		Messages: r.cfg.Messages, MessagePrefix: messagePrefix, Timelines: s.timelines,
		AcceptRelation: r.catalog.acceptRelation,
		ColumnGone: func(table decode.TableName, field, column string) {
			r.log.Warn("column is gone", "table", table.String(), "field", field, "column", column)
		},
	})
	return nil
}

func positionAhead(lsn pglogrepl.LSN, slot string, walEndLSN pglogrepl.LSN) error {
	return fault.NewOperator("position-ahead",
		fmt.Sprintf("position %s of slot %s lies beyond the server's WAL end %s: this is an older copy of the database", lsn, slot, walEndLSN),
		"find out which copy of the database is the right one before events are published from it", nil)
}
