package forwarder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// Letters are the dead letters of this outbox over one SQL connection; see
// deadletter.Store.
type Letters interface {
	KnownAfter(ctx context.Context, source string, from decode.Position) ([]deadletter.Known, pglogrepl.LSN, error)
	Heads(ctx context.Context, sourceName string, each func(deadletter.Head)) error
	Count(ctx context.Context, sourceName string) (deadletter.Counts, error)
	Insert(ctx context.Context, d deadletter.Draft) (deadletter.Receipt, error)
	Close()
}

const (
	// letterTimeout bounds one attempt to read or store letters: the table may be locked.
	letterTimeout      = 5 * time.Second
	letterBackoffStart = 100 * time.Millisecond
	letterBackoffMax   = 5 * time.Second
)

// letters is what the publisher knows of the dead letters of this outbox, and its
// connection to them.
type letters struct {
	cfg    Config
	log    *slog.Logger
	server Server
	random func() float64
	extras []string

	// Of the present session:
	source    string
	from      decode.Position // the next letter that is known lies there or behind
	loaded    bool
	headsOld  bool
	known     []deadletter.Known // that stand for events to come, the next ones
	more      bool               // there are more behind them
	storedLSN pglogrepl.LSN      // an end of the WAL behind the commits of all that are known
	heads     map[deadletter.Aggregate][]deadletter.Head
	held      int64 // open letters that wait behind another, as far as is known

	// condemned is a message that was taken and can never be stored: its event is a dead
	// letter when it comes by again.
	condemned *sink.Poison

	conn    Letters
	backoff *backoff.ExponentialBackOff
	retryAt time.Time
	reason  string // why letters cannot be read or stored at present; empty when they can
}

func newLetters(cfg Config, log *slog.Logger, server Server, random func() float64) *letters {
	l := &letters{
		cfg: cfg, log: log, server: server, random: random,
		backoff: &backoff.ExponentialBackOff{InitialInterval: letterBackoffStart, MaxInterval: letterBackoffMax, Multiplier: 2},
	}
	for _, extra := range cfg.Columns.Extra() {
		l.extras = append(l.extras, extra.Name)
	}
	l.backoff.Reset()
	return l
}

// begin forgets what was known, for a slot that is read from a position on.
func (l *letters) begin(source string, from decode.Position) {
	l.source, l.from, l.loaded, l.headsOld = source, from, false, false
	l.known, l.more, l.heads, l.held = nil, false, nil, 0
	l.retryAt, l.reason = time.Time{}, ""
	l.backoff.Reset()
	l.close()
}

func (l *letters) close() {
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
}

// wait is how long letters are left alone after a failure.
func (l *letters) wait(now time.Time) time.Duration { return max(0, l.retryAt.Sub(now)) }

// do runs work over the connection. False says that PostgreSQL is away and that the same is
// to be done again later. An error is what only a person can mend, or ErrHeadResolved.
func (l *letters) do(ctx context.Context, now time.Time, what string, work func(context.Context, Letters) error) (bool, error) {
	if l.wait(now) > 0 {
		return false, nil
	}
	attempt, cancel := context.WithTimeout(ctx, letterTimeout)
	defer cancel()
	var err error
	if l.conn == nil {
		l.conn, err = l.server.Letters(attempt)
	}
	if err == nil {
		err = work(attempt, l.conn)
	}
	if err == nil || errors.Is(err, deadletter.ErrHeadResolved) {
		l.backoff.Reset()
		l.retryAt, l.reason = time.Time{}, ""
		return true, err
	}
	var already *fault.Error
	if errors.As(err, &already) {
		return false, already
	}
	l.close()
	if stopping(ctx) {
		return false, nil
	}
	state := replication.SQLState(err)
	if row := fault.PostgresRow(state); state != "" && row.Class == fault.Operator {
		fix := provision.DeadLetterFix(l.cfg.names(), state)
		if fix == "" {
			fix = row.Hint
		}
		return false, fault.NewOperator("dead-letter-store", what+": "+row.Title, fix, err)
	}
	l.reason = "PostgreSQL: " + what + ": " + err.Error()
	l.retryAt = time.Now().Add(jittered(l.backoff.NextBackOff(), l.random))
	return false, nil
}

// ready tells whether what has to be known of the letters before an event is judged is
// known, and reads it when it is not. Events are to be asked for in order.
func (l *letters) ready(ctx context.Context, e *decode.Event, now time.Time) (bool, error) {
	for len(l.known) > 0 && l.known[0].Position.Compare(e.Position) < 0 {
		l.known = l.known[1:]
	}
	if l.loaded && !l.headsOld && (len(l.known) > 0 || !l.more) {
		return true, nil
	}
	return l.do(ctx, now, "read dead letters", func(ctx context.Context, conn Letters) error {
		err := l.load(ctx, conn)
		if state := replication.SQLState(err); !l.cfg.OnPoison.stores() && provision.DeadLetterFix(l.cfg.names(), state) != "" {
			l.loaded = true // with halt nothing demands the table
			return nil
		}
		return err
	})
}

func (l *letters) load(ctx context.Context, conn Letters) error {
	if !l.loaded || l.headsOld {
		if err := l.loadHeads(ctx, conn); err != nil {
			return err
		}
		l.headsOld = false
	}
	if l.loaded && (len(l.known) > 0 || !l.more) {
		return nil
	}
	known, storedLSN, err := conn.KnownAfter(ctx, l.source, l.from)
	if err != nil {
		return err //nolint:wrapcheck // it says what was read
	}
	l.loaded, l.known, l.storedLSN, l.more = true, known, storedLSN, len(known) == deadletter.KnownMax
	if l.more {
		l.from = known[len(known)-1].Position
		l.from.Ordinal++
	}
	return nil
}

func (l *letters) loadHeads(ctx context.Context, conn Letters) error {
	counts, err := conn.Count(ctx, l.cfg.Source)
	if err != nil {
		return err //nolint:wrapcheck // it says what was read
	}
	l.held = counts.Held
	if l.cfg.OnPoison != PoisonHoldAggregate {
		if counts.Held > 0 {
			l.log.Warn("events wait behind a dead letter, but this forwarder does not hold aggregates: later events of theirs go past them",
				"held", counts.Held, "hint", "start with --on-poison hold-aggregate, or: outbox-cdc dead-letter list --reason held"+l.cfg.flags())
		}
		return nil
	}
	l.heads = map[deadletter.Aggregate][]deadletter.Head{}
	return conn.Heads(ctx, l.cfg.Source, l.addHead) //nolint:wrapcheck // it says what was read
}

// stands tells whether a letter stands for an event that is ready.
func (l *letters) stands(e *decode.Event) bool {
	return len(l.known) > 0 && l.known[0].Position == e.Position
}

// condemns returns why an event must not be sent again, or nil.
func (l *letters) condemns(e *decode.Event) *sink.Poison {
	if l.condemned == nil || e.Position.Compare(l.condemned.Position) < 0 {
		return nil
	}
	if l.condemned.Position != e.Position {
		l.condemned = nil // it was stored, or did not come by again
	}
	return l.condemned
}

func (l *letters) addHead(h deadletter.Head) {
	if l.heads != nil {
		l.heads[h.Aggregate] = append(l.heads[h.Aggregate], h)
	}
}

// headOf returns the letter that an event has to wait for, or 0: the newest open one of its
// aggregate that comes before it.
func (l *letters) headOf(e *decode.Event) int64 {
	if len(l.heads) == 0 {
		return 0
	}
	a, ok := deadletter.AggregateOf(e)
	if !ok {
		return 0
	}
	for _, h := range slices.Backward(l.heads[a]) {
		// Positions of another server, as after an upgrade, are all of the past.
		if h.Source != l.source || h.Position.Compare(e.Position) < 0 {
			return h.ID
		}
	}
	return 0
}

// reloadHeads makes the heads be read again before the next event is judged.
func (l *letters) reloadHeads() { l.headsOld = true }

// insert stores a letter; false says that it has to be tried again later.
func (l *letters) insert(ctx context.Context, d deadletter.Draft, now time.Time) (deadletter.Receipt, bool, error) {
	var receipt deadletter.Receipt
	done, err := l.do(ctx, now, fmt.Sprintf("store event %s at position %s as a dead letter", deadletter.EventIDOf(d.Event), d.Event.Position),
		func(ctx context.Context, conn Letters) error {
			if d.HeldBehind != 0 && l.held >= deadletter.HeldMax {
				counts, err := conn.Count(ctx, l.cfg.Source)
				if err != nil {
					return err //nolint:wrapcheck // it says what was read
				}
				if l.held = counts.Held; l.held >= deadletter.HeldMax {
					return fault.NewOperator("held-too-many",
						fmt.Sprintf("%d events wait behind dead letters of source %s, and no more than that may", l.held, l.cfg.Source),
						"outbox-cdc dead-letter list"+l.cfg.flags()+" shows what they wait for: retry or discard it, or start with --on-poison dead-letter", nil)
				}
			}
			var err error
			receipt, err = conn.Insert(ctx, d)
			return err //nolint:wrapcheck // it names the position
		})
	if !done || err != nil {
		return receipt, false, err
	}
	a, ok := deadletter.AggregateOf(d.Event)
	switch {
	case d.HeldBehind != 0:
		l.held++
	case ok:
		l.addHead(deadletter.Head{ID: receipt.ID, Aggregate: a, Source: d.Source, Position: d.Event.Position})
	}
	return receipt, true, nil
}
