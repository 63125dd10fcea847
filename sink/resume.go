package sink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

// Origin is where the messages come from: the server, the outbox, and where its slot
// stands.
type Origin struct {
	SystemID string
	Name     string
	// From is the slot's confirmed position: no event before it will come.
	From decode.Position
	// Timeline is the server's current one, and WALEndLSN how far its WAL goes.
	Timeline  uint32
	WALEndLSN pglogrepl.LSN
	// Now asks the server for both anew; nil where they do not change. What was read when
	// the slot was got proves nothing against the stream once somebody else holds the slot.
	Now func(context.Context) (timeline uint32, walEndLSN pglogrepl.LSN, err error)
	// Adopt accepts that the stream knows the name with another system identifier.
	Adopt bool
}

// Source is the value of Outbox-Source.
func (o Origin) Source() string { return o.SystemID + "/" + o.Name }

// mayBeSent tells whether a former process may have sent the event at a position: it
// was committed before this one held the slot.
func (o Origin) mayBeSent(p decode.Position) bool {
	return p.Timeline < o.Timeline || p.CommitLSN <= o.WALEndLSN
}

// isBehind tells whether the server had not come as far as a position.
func (o Origin) isBehind(p decode.Position) bool {
	return p.Timeline > o.Timeline || p.Timeline == o.Timeline && p.CommitLSN > o.WALEndLSN
}

// ErrSuperseded is the condition of a publisher that finds events in the stream which it
// has not been given: another forwarder has gone on, or one before left more than was
// there at first. Nothing is published any more until the next Begin.
var ErrSuperseded = errors.New("the stream holds later events of this outbox than were handed over: another forwarder has gone on")

// passedMax bounds how many ids of passed events are kept for the log.
const passedMax = 20

// resume finds out from the stream itself how far we got: it places a walk before the
// first event that may be stored, and settles what of the unsettled messages is. It
// returns errReading when that takes long: then it is to be called again.
func (p *Publisher) resume(ctx context.Context, t tail) error {
	if !p.reading {
		if err := p.startWalk(ctx, t); err != nil {
			return err
		}
	}
	p.walk.chunksLeft = walkSlice
	err := p.seq.sift(func(m *Message) (stays, behind bool, err error) {
		v, err := p.walk.check(ctx, m.Position, m.EventID)
		if err != nil || v.seq == 0 {
			return true, v.behind, err
		}
		p.seq.found(m, v.seq)
		return false, false, nil
	})
	p.reading = errors.Is(err, errReading)
	return err
}

// startWalk places the walk.
func (p *Publisher) startWalk(ctx context.Context, t tail) error {
	if p.walk != nil {
		p.cursor = p.walk.cursor()
	}
	newest, err := findNewest(ctx, p.broker, p.cfg.Stream, p.origin.Source(), p.cfg.Subject)
	if err != nil {
		return err
	}
	p.newest = newest
	if p.cursor == 0 && !p.seenAny {
		if err := p.judgeNewest(ctx, t); err != nil {
			return err
		}
	} else if err := p.judgeLater(); err != nil {
		return err
	}
	first, last, err := p.whereFrom(ctx, t)
	if err != nil {
		return err
	}
	p.walk = &walk{
		messages: p.broker, stream: p.cfg.Stream, source: p.origin.Source(), nextSeq: first, lastSeq: last,
		passed: p.passOver,
	}
	if !t.batched {
		p.walk.ahead = p.cfg.InFlightMax
	}
	p.streamMadeAt = t.madeAt
	return nil
}

// walkMost bounds how many messages are read in search of ours: a minute or so.
const walkMost = 1 << 20

// whereFrom returns the sequences between which the walk goes: first is behind last when
// nothing of ours that may still come is stored.
func (p *Publisher) whereFrom(ctx context.Context, t tail) (first, last uint64, err error) {
	newest := p.newest.event
	if newest == nil && p.newest.sure {
		return t.lastSeq + 1, t.lastSeq, nil
	}
	from, known := p.readUpTo(t)
	s := &search{
		reader: p.broker, stream: p.cfg.Stream, source: p.origin.Source(),
		from: p.nextPosition(), low: min(max(1, t.firstSeq, from), t.lastSeq+1), high: t.lastSeq + 1,
	}
	bound := s.low
	if newest != nil {
		position, err := decode.ParsePosition(newest.Position)
		if err != nil {
			return 0, 0, fmt.Errorf("message %d of stream %q: %w", newest.Sequence, p.cfg.Stream, err)
		}
		if p.newest.sure {
			s.high = newest.Sequence + 1 // what comes behind it was republished, or is not ours
		}
		if position.Compare(s.from) < 0 {
			s.low = max(s.low, newest.Sequence+1)
		}
	}
	last = s.high - 1
	if known && !p.newest.sure && p.cursor == math.MaxUint64 && s.low <= last {
		if last, err = p.reach(ctx, s.low, s.high); err != nil {
			return 0, 0, err
		}
		s.high = last + 1
	}
	if first, err = s.first(ctx); err != nil {
		return 0, 0, err
	}
	if !t.batched { // positions do not quite grow: what was refused may have been stored late
		first = max(bound, first-min(first, uint64(p.cfg.InFlightMax)))
	}
	if newest == nil && last > first && last-first > walkMost {
		first = last - walkMost
		p.cfg.Log.Warn("none of the newest messages of the stream is of this outbox: if it holds any before them, they are told from new ones by message id alone, within the duplicate window",
			"stream", p.cfg.Stream, "looked_at", walkMost)
	}
	return first, last, nil
}

// nextPosition returns a position such that no message before it will be published.
func (p *Publisher) nextPosition() decode.Position {
	switch {
	case p.seq.unsettled() > 0:
		return p.seq.at(p.seq.head).msg.Position
	case p.seenAny:
		from := p.lastSeen
		from.Ordinal++
		return from
	default:
		return p.origin.From
	}
}

// readUpTo returns the sequence before which the present session has read the stream. What
// was stored since is ours or, if another forwarder woke up, its. In a new session nothing is known.
func (p *Publisher) readUpTo(t tail) (seq uint64, known bool) {
	if p.cursor == 0 || !t.madeAt.Equal(p.streamMadeAt) || t.lastSeq < p.seq.lastSeq {
		return 0, false // or the stream was made anew or put back
	}
	return min(p.cursor, p.seq.syncedSeq+1), true
}

// filtersMost bounds how many questions are asked to spare the messages of others.
const filtersMost = 16

// reach returns the highest sequence, below high, at which an unsettled message can be
// stored, by asking for the newest message on the subjects of these.
func (p *Publisher) reach(ctx context.Context, low, high uint64) (uint64, error) {
	filters := p.unsettledSubjects(func(subject string) string { return subject })
	if len(filters) > filtersMost {
		filters = p.unsettledSubjects(p.filterOf)
	}
	if len(filters) > filtersMost {
		return high - 1, nil
	}
	last := low - 1
	for filter := range filters {
		m, err := p.broker.Message(ctx, p.cfg.Stream, MessageQuery{LastBySubject: filter})
		switch {
		case err != nil:
			return 0, err
		case m == nil || m.Sequence < low:
		case m.Sequence < high && m.isFrom(p.origin.Source()):
			last = max(last, m.Sequence)
		default:
			return high - 1, nil // others publish there too
		}
	}
	return last, nil
}

// unsettledSubjects returns what as makes of the subjects of the unsettled messages; it
// gives up behind filtersMost.
func (p *Publisher) unsettledSubjects(as func(string) string) map[string]bool {
	filters := map[string]bool{}
	for n := p.seq.head; n < p.seq.end && len(filters) <= filtersMost; n++ {
		filters[as(p.seq.at(n).msg.Subject)] = true
	}
	return filters
}

// filterOf returns the template's wildcard that covers a subject, or the subject.
func (p *Publisher) filterOf(subject string) string {
	for _, filter := range SubjectsFor(p.cfg.Subject) {
		if subjectMatches(filter, subject) {
			return filter
		}
	}
	return subject
}

// judgeNewest looks, when a session begins, whether the stream's newest message of
// this outbox can come from this server at all.
func (p *Publisher) judgeNewest(ctx context.Context, t tail) error {
	if !t.batched {
		p.cfg.Log.Warn("the stream takes no fast batches: the order holds only as long as nobody else publishes into it",
			"stream", p.cfg.Stream, "hint", "nats stream edit "+p.cfg.Stream+" --allow-fast, on nats-server 2.14 or newer")
	}
	if !t.keeps || t.newest == nil && t.lastSeq > 0 {
		p.cfg.Log.Warn("the stream cannot tell what was published before: events are told from each other by message id alone, within the duplicate window",
			"stream", p.cfg.Stream)
	}
	last := p.newest.event
	if last == nil {
		return p.judgeOthers(t)
	}
	position, err := decode.ParsePosition(last.Position)
	if err != nil {
		return fmt.Errorf("newest message of %s in stream %q: %w", p.origin.Source(), p.cfg.Stream, err)
	}
	p.foundNewest = position
	if p.origin.isBehind(position) {
		if p.origin.Now != nil {
			now := p.origin
			if now.Timeline, now.WALEndLSN, err = p.origin.Now(ctx); err != nil {
				return fmt.Errorf("ask the server for its position: %w", err)
			}
			if !now.isBehind(position) {
				return ErrSuperseded
			}
		}
		return fault.NewOperator("position-ahead", fmt.Sprintf(
			"stream %q holds an event of this outbox at position %s, but the server's WAL ends at %s on timeline %d: this is an older copy of the database",
			p.cfg.Stream, position, p.origin.WALEndLSN, p.origin.Timeline),
			"find out which copy of the database is the right one before events are published from it", nil)
	}
	return nil
}

// judgeLater looks, in the middle of a session, whether somebody else has gone on: what
// would be published now could stand behind events that come later.
func (p *Publisher) judgeLater() error {
	newest := p.newest.event
	if newest == nil {
		return nil
	}
	position, err := decode.ParsePosition(newest.Position)
	if err != nil {
		return fmt.Errorf("newest message of %s in stream %q: %w", p.origin.Source(), p.cfg.Stream, err)
	}
	if position.Compare(p.lastSeen) > 0 && position.Compare(p.foundNewest) > 0 {
		return ErrSuperseded
	}
	return nil
}

// judgeSubjects looks, as long as nothing has been published, whether the stream covers
// what the subject template makes.
func (p *Publisher) judgeSubjects(l streamLimits) error {
	if l.dropsPerSubj && !p.warnedDrop {
		p.warnedDrop = true
		p.cfg.Log.Warn("the stream drops the oldest messages of each subject at max_msgs_per_subject, also such as no consumer has seen, and acknowledges all the same",
			"stream", p.cfg.Stream, "hint", "nats stream edit "+p.cfg.Stream+" --max-msgs-per-subject=-1")
	}
	if p.everOpen || p.cfg.Subject == "" {
		return nil
	}
	wanted := SubjectsFor(p.cfg.Subject)
	switch Coverage(wanted, l.subjects) {
	case CoveredNot:
		all := strings.Join(append(append([]string{}, l.subjects...), wanted...), ",")
		return fault.NewOperator("subjects-not-covered",
			fmt.Sprintf("stream %q does not cover the subjects of --subject %s (it has: %s)", p.cfg.Stream, p.cfg.Subject, strings.Join(l.subjects, ", ")),
			fmt.Sprintf("nats stream edit %s --subjects '%s'", p.cfg.Stream, all), nil)
	case CoveredPart:
		if !p.warnedPart {
			p.warnedPart = true
			p.cfg.Log.Warn("the stream covers only a part of the subjects that --subject can make: other events will stop the forwarder",
				"stream", p.cfg.Stream, "subject", p.cfg.Subject)
		}
	case CoveredWhole:
	}
	return nil
}

// judgeOthers looks whether the newest message is this outbox of another server.
func (p *Publisher) judgeOthers(t tail) error {
	if p.origin.Adopt || t.newest == nil {
		return nil
	}
	source := t.newest.Header.Get(HeaderSource)
	id, name, ok := strings.Cut(source, "/")
	if !ok || name != p.origin.Name || id == p.origin.SystemID {
		return nil
	}
	return fault.NewOperator("other-system", fmt.Sprintf(
		"stream %q knows the source %q from the server with system identifier %s, this server has %s", p.cfg.Stream, name, id, p.origin.SystemID),
		"after an upgrade or a logical migration start once with --adopt; otherwise give --source or --stream another name", nil)
}

// passOver notes a stored event that the slot did not bring.
func (p *Publisher) passOver(s stored) {
	if p.seenAny && s.position.Compare(p.lastSeen) <= 0 || s.position.Compare(p.origin.From) < 0 {
		return // it is one that was taken and settled before
	}
	p.phantoms++
	if len(p.passed) < passedMax {
		p.passed = append(p.passed, s.eventID)
	}
}

// walkFailed sorts the failure of reading the stream: it is read again later, unless a
// person must act.
func (p *Publisher) walkFailed(ctx context.Context, now time.Time, err error) error {
	var conflict *ConflictError
	if errors.As(err, &conflict) {
		return fault.NewOperator("position-conflict", conflict.Error(),
			"another database has filled this stream under the same source: give --source or --stream another name", nil)
	}
	var already *fault.Error
	if errors.As(err, &already) {
		return err
	}
	p.stopWalk()
	p.seq.resync()
	return p.waitOrFail(ctx, now, err)
}

// look asks the walk for the next event; false says that the stream has to be read first.
func (p *Publisher) look(ctx context.Context, now time.Time, position decode.Position, eventID string) (v verdict, ok bool, err error) {
	if p.walk == nil || p.reading {
		return verdict{}, false, nil
	}
	p.walk.chunksLeft = walkSlice
	v, err = p.walk.check(ctx, position, eventID)
	switch {
	case errors.Is(err, errReading):
		p.keepReading()
		return verdict{}, false, nil
	case err != nil:
		return verdict{}, false, p.walkFailed(ctx, now, err)
	}
	p.haveRead()
	return v, true, nil
}

// stopWalk forgets the walk, but not how far it has come.
func (p *Publisher) stopWalk() {
	if p.walk != nil {
		p.cursor = p.walk.cursor()
	}
	p.walk, p.reading = nil, false
}

// keepReading notes that the stream has to be read on at the next Step or Add.
func (p *Publisher) keepReading() {
	p.condition = fmt.Errorf("reading back what stream %q holds of this outbox: %d messages to go", p.cfg.Stream, p.walk.left())
	p.slow = true
}

// haveRead notes that the stream was read back as far as was asked for.
func (p *Publisher) haveRead() {
	if p.slow {
		p.slow, p.condition = false, nil
	}
}
