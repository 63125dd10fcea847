package forwarder

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/audit"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/request"
	"github.com/outbox-cdc/outbox-cdc/replication"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

const (
	// requestsLook is how often it is looked for requests that nobody has told of, and
	// requestsPause how often whether the slot is held.
	requestsLook  = 2 * time.Second
	requestsPause = 200 * time.Millisecond
	// requestTimeout bounds one statement: a page of a table without a fitting index takes its time.
	requestTimeout = 5 * time.Minute
	// saveEvery is how often progress is saved: what a successor reads back of the stream
	// is what was published since.
	saveEvery = 250 * time.Millisecond
	// lastSaveMax bounds the last saving before a request is left.
	lastSaveMax     = 2 * time.Second
	requestRetryMax = 30 * time.Second
)

// requestServer is a Server that has requests. A simulated one has none.
type requestServer interface {
	OpenSQL(ctx context.Context) (*replication.Admin, error)
}

// OpenSQL implements requestServer.
func (s sqlServer) OpenSQL(ctx context.Context) (*replication.Admin, error) {
	admin, err := replication.OpenAdmin(ctx, s.cfg.DatabaseURL, s.cfg.applicationName())
	if err != nil {
		return nil, fmt.Errorf("open SQL connection: %w", err)
	}
	return admin, nil
}

// requests works on what commands have asked for, as long as this process holds the slot.
// It owns a SQL connection of its own, reads the rows, and hands them to the publisher turn by turn:
// a slow query does not keep new events waiting.
type requests struct {
	cfg    Config
	log    *slog.Logger
	shared *shared
	server requestServer
	turns  chan<- *turn
	deps   Deps

	store   request.Store
	holder  string // tells this process from others
	admin   *replication.Admin
	backoff *backoff.ExponentialBackOff
	warned  string
}

func newRequests(cfg Config, deps Deps, shared *shared, server requestServer, turns chan<- *turn) *requests {
	r := &requests{
		cfg: cfg, log: deps.Log, deps: deps, shared: shared, server: server, turns: turns,
		store: request.NewStore(cfg.Table.Schema), holder: rand.Text(),
		backoff: &backoff.ExponentialBackOff{InitialInterval: readerBackoffStart, MaxInterval: requestRetryMax, Multiplier: 2},
	}
	r.backoff.Reset()
	return r
}

// run works until ctx is done. It never fails the forwarder. Where the slot is held for
// requests alone it calls done once there are none.
func (w *requests) run(ctx context.Context, done func()) {
	defer w.close()
	for !stopping(ctx) {
		if !w.shared.holding.Load() {
			w.close()
			pause(ctx, requestsPause)
			continue
		}
		found, err := w.once(ctx)
		if err == nil || stopping(ctx) {
			w.backoff.Reset()
			if !found && err == nil && w.cfg.RequestsOnly {
				done()
				return
			}
			continue
		}
		w.failed(err)
		pause(ctx, jittered(w.backoff.NextBackOff(), w.deps.Random))
	}
}

func (w *requests) close() {
	if w.admin != nil {
		w.admin.Close()
		w.admin = nil
	}
}

// failed says why no request can be worked on, once for each reason.
func (w *requests) failed(err error) {
	var f *fault.Error
	if !errors.As(err, &f) && !errors.Is(err, errTurnLost) {
		w.close()
	}
	if replication.SQLState(err) == sqlStateUndefinedTable {
		return // tables made by others: nobody can ask for anything
	}
	if reason := err.Error(); reason != w.warned && !errors.Is(err, errTurnLost) && !errors.Is(err, errTurnLate) {
		w.warned = reason
		hint := ""
		if state := replication.SQLState(err); state != "" {
			hint = fault.PostgresRow(state).Hint
		}
		w.log.Warn("requests of commands wait", "reason", reason, "hint", hint)
	}
}

// once works on the next request, or waits for one for a while when there is none.
func (w *requests) once(ctx context.Context) (found bool, err error) {
	if w.admin == nil {
		admin, err := w.server.OpenSQL(ctx)
		if err != nil {
			return false, err
		}
		w.admin = admin
		if err := admin.Listen(ctx, request.Channel); err != nil {
			return false, err
		}
	}
	r, err := w.store.Next(ctx, w.admin, w.cfg.Slot, w.holder)
	switch {
	case err != nil:
		return false, err
	case r == nil && w.cfg.RequestsOnly:
		return false, nil
	case r == nil:
		_, err := w.admin.AwaitNotification(ctx, requestsLook)
		return false, err
	}
	again := sink.Again{Kind: republishedAs(r.Kind), Request: r.ID, FreshID: r.Selection.FreshIDs}
	job := &job{requests: w, request: r, savedAt: time.Now(), told: r.Progress.Selected, turn: &turn{again: again, answer: make(chan turnAnswer, 1)}}
	return true, job.work(ctx)
}

// republishedAs is the value of Outbox-Republished.
func republishedAs(kind request.Kind) string {
	if kind == request.KindDiscard {
		kind = request.KindRetry // of the events that waited behind what is discarded
	}
	return string(kind)
}

// job is a request that is worked on.
type job struct {
	*requests
	request *request.Request
	savedAt time.Time
	told    int64 // how many selected events Working knows of
	// What was committed before horizonLSN, by transactions before horizonXID, was there
	// when the LSN was taken.
	horizonXID uint32
	horizonLSN pglogrepl.LSN
	turn       *turn
}

// errNotOurs ends the work on a request that was cancelled or taken over.
var errNotOurs = errors.New("the request was cancelled, or another process has taken it over")

// work works on the request until it is finished. An error says that it is to be gone on
// with later.
func (j *job) work(ctx context.Context) error {
	r := j.request
	j.log.Info("request", "request", r.ID, "kind", string(r.Kind), "selected_before", r.Progress.Selected)
	err := j.answers(r.Selection.Target)
	switch {
	case err != nil:
	case r.Kind == request.KindRetry, r.Kind == request.KindDiscard, r.Selection.Dead:
		err = j.letters(ctx)
	default:
		err = j.rows(ctx)
	}
	var f *fault.Error
	switch {
	case errors.Is(err, errNotOurs):
		j.log.Info("request ended", "request", r.ID, "reason", err.Error())
		return nil
	case errors.As(err, &f) && f.Class != fault.Transient:
		r.Progress.Hint = f.Hint
		return j.finish(ctx, request.StateFailed, f.Error())
	case fault.PostgresRow(replication.SQLState(err)).Class == fault.Operator && replication.SQLState(err) != "":
		row := fault.PostgresRow(replication.SQLState(err))
		r.Progress.Hint = row.Hint
		return j.finish(ctx, request.StateFailed, row.Title+": "+err.Error())
	case err != nil:
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSaveMax) // also when stopping
		defer cancel()
		return errors.Join(err, j.save(limited))
	}
	return j.finish(ctx, request.StateDone, "")
}

// answers checks that the request is meant for a forwarder that is configured like this one.
func (j *job) answers(t request.Target) error {
	for _, differ := range []struct{ flag, ours, wanted string }{
		{"--table", j.cfg.Table.String(), t.Table}, {"--stream", j.cfg.Stream, t.Stream},
	} {
		if differ.ours != differ.wanted {
			return fault.NewOperator("other-target", fmt.Sprintf("the forwarder that holds slot %s runs with %s %s, not %s", j.cfg.Slot, differ.flag, differ.ours, differ.wanted),
				"give the command the flags that the forwarder has", nil)
		}
	}
	return nil
}

func (j *job) finish(ctx context.Context, state request.State, reason string) error {
	ours, err := j.store.Finish(ctx, j.admin, j.request, state, reason)
	if err != nil || !ours {
		return err
	}
	p := j.request.Progress
	j.log.Info("request ended", "request", j.request.ID, "state", string(state), "reason", reason,
		"selected", p.Selected, "stored", p.Stored, "swallowed", p.Swallowed, "refused", p.Refused)
	return nil
}

func (j *job) save(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	ours, err := j.store.SaveProgress(ctx, j.admin, j.request)
	if err == nil && !ours {
		err = errNotOurs
	}
	j.savedAt = time.Now()
	return err
}

// ask lets the publisher work on some events. It returns after a while also when not all
// of them are done.
func (j *job) ask(ctx context.Context, events []*decode.Event) (turnAnswer, error) {
	j.turn.events, j.turn.afterLSN = events, j.horizonLSN
	waiting := time.NewTicker(requestsPause)
	defer waiting.Stop()
	for handed := false; !handed; {
		select {
		case j.turns <- j.turn:
			handed = true
		case <-ctx.Done():
			return turnAnswer{}, ctx.Err()
		case <-waiting.C:
			if !j.shared.holding.Load() {
				return turnAnswer{}, errTurnLost
			}
		}
	}
	select {
	case answer := <-j.turn.answer:
		j.request.Progress.Sequence = max(j.request.Progress.Sequence, answer.sequence)
		if j.deps.Waiting != nil && answer.err == nil && answer.deliveredLSN < j.horizonLSN {
			j.deps.Waiting(*j.request, answer.deliveredLSN, j.horizonLSN)
		}
		return answer, answer.err
	case <-ctx.Done():
		return turnAnswer{}, ctx.Err()
	}
}

// horizon notes how far the WAL goes: what is visible now lies before.
func (j *job) horizon(ctx context.Context) error {
	var xid int64
	if _, err := j.admin.Lookup(ctx, []any{&xid}, "SELECT (pg_snapshot_xmin(pg_current_snapshot())::text::bigint) & 4294967295"); err != nil {
		return fmt.Errorf("read transaction id: %w", err)
	}
	markLSN, err := audit.Mark(ctx, j.admin)
	if err != nil {
		return err //nolint:wrapcheck // it says what was tried
	}
	j.horizonXID, j.horizonLSN = uint32(xid), markLSN
	return nil
}

// rows publishes rows of the table again.
func (j *job) rows(ctx context.Context) error {
	rows, err := request.OpenRows(ctx, j.admin, request.Outbox{
		Table: j.cfg.Table, Columns: j.cfg.Columns, Publication: j.cfg.Publication, SourceName: j.cfg.Source,
	}, j.request.Selection)
	if err != nil {
		return err //nolint:wrapcheck // it names the table
	}
	if err := j.horizon(ctx); err != nil {
		return err
	}
	if err := j.begin(ctx); err != nil {
		return err
	}
	for {
		page, err := j.page(ctx, rows)
		if err != nil || len(page) == 0 {
			return err
		}
		for len(page) > 0 {
			done, err := j.publish(ctx, page)
			if err != nil {
				return err
			}
			page = page[done:]
		}
	}
}

// begin finds out where the stream is before anything is published for the request: whoever
// takes it over looks behind that. What a predecessor published is looked for.
func (j *job) begin(ctx context.Context) error {
	p := &j.request.Progress
	if p.Begun {
		j.turn.readFrom = p.Sequence + 1
		return j.delivered(ctx)
	}
	if err := j.delivered(ctx); err != nil {
		return err
	}
	p.Begun = true
	return j.save(ctx)
}

// delivered waits until all that was committed before the horizon is delivered: what lies
// there is published or a dead letter by then, and does not become one any more.
func (j *job) delivered(ctx context.Context) error {
	for {
		answer, err := j.ask(ctx, nil)
		if err != nil || answer.done {
			return err
		}
		if err := j.saveNowAndThen(ctx); err != nil {
			return err
		}
	}
}

// saveNowAndThen saves the progress, and learns whether the request is still wanted.
func (j *job) saveNowAndThen(ctx context.Context) error {
	if n := j.request.Progress.Selected; n > j.told && j.deps.Working != nil {
		j.told = n
		j.deps.Working(*j.request)
	}
	if time.Since(j.savedAt) < saveEvery {
		return nil
	}
	return j.save(ctx)
}

// page reads the next rows, and makes sure that the forwarder has come to all of them.
func (j *job) page(ctx context.Context, rows *request.Rows) ([]request.Row, error) {
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	page, err := rows.Page(limited, j.request.Progress.Place)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the table
	}
	if !slices.ContainsFunc(page, func(row request.Row) bool { return int32(row.XID-j.horizonXID) >= 0 }) {
		return page, nil
	}
	if err := j.horizon(ctx); err != nil {
		return nil, err
	}
	if err := j.delivered(ctx); err != nil {
		return nil, err
	}
	limited, cancel = context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return page, rows.LookForLetters(limited, page) //nolint:wrapcheck // it names the table
}

// publish lets the publisher publish rows, notes what became of them, and returns how many
// are done with.
func (j *job) publish(ctx context.Context, page []request.Row) (int, error) {
	p := &j.request.Progress
	events := make([]*decode.Event, 0, len(page))
	for _, row := range page {
		if !row.Dead {
			events = append(events, row.Event)
		}
	}
	answer, err := j.ask(ctx, events)
	done, next := 0, 0
	for ; done < len(page); done++ {
		row := &page[done]
		switch {
		case row.Dead:
			p.Selected++
			p.Refuse(request.Refusal{EventID: row.Place.EventID, Code: "dead-letter", Reason: "it is an open dead letter: outbox-cdc dead-letter retry publishes it"})
		case next < len(answer.outcomes):
			count(p, answer.outcomes[next])
			next++
		default:
			return done, errors.Join(err, j.saveNowAndThen(ctx))
		}
		p.Place = &row.Place
	}
	return done, errors.Join(err, j.saveNowAndThen(ctx))
}

func count(p *request.Progress, out outcome) {
	p.Selected++
	switch {
	case out.refusal != nil:
		p.Refuse(*out.refusal)
	case out.swallowed:
		p.Swallowed++
	case out.stored:
		p.Stored++
	}
}
