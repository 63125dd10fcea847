package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"golang.org/x/time/rate"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// PublisherConfig says where and how to publish.
type PublisherConfig struct {
	Client ClientConfig
	Stream string
	// Subject is the subject template, to find our messages among others.
	Subject     string
	InFlightMax int           // messages published and not acknowledged
	AckTimeout  time.Duration // how long one publish may stay unanswered
	RateMax     float64       // messages a second; 0 is no limit
	Log         *slog.Logger
	// Dial makes one attempt to connect; nil connects to Client.URL.
	Dial func(context.Context, Answers) (Broker, error)
	// Random spreads waits, from [0, 1); nil is random.
	Random func() float64
}

const (
	settleGraceMax = time.Second
	backoffStart   = 100 * time.Millisecond
	backoffMax     = 30 * time.Second
	connectedPoll  = time.Second
	fruitlessPause = 2 * time.Millisecond
)

// ErrConnecting is the condition of a publisher that has not reached the stream yet.
var ErrConnecting = errors.New("connecting")

// Publisher publishes messages in the order in which they are added, and waits
// for a broker that is away for as long as it takes. All methods but Wake and Abort are to
// be called from one goroutine; Step may block for as long as a connection
// attempt or a request to the JetStream API takes (a few seconds).
type Publisher struct {
	cfg     PublisherConfig
	seq     *sequencer
	limiter *rate.Limiter
	wake    chan struct{}

	broker       Broker
	abort        atomic.Pointer[Broker]
	epoch        atomic.Uint64 // disconnects of the present connection
	seenEpo      uint64
	origin       Origin
	began        bool // Begin was called
	streamMadeAt time.Time
	walk         *walk // what the stream may hold of the events that come next; nil before it was read
	reading      bool  // the walk has not been through the unsettled messages yet
	slow         bool  // the condition is that the stream is being read
	walkTail     tail  // the tail by which the walk was placed
	walkLimits   streamLimits
	cursor       uint64          // of the walk before; 0 in a new session
	newest       newestEvent     // what the stream told of it when it was read last
	lastSeen     decode.Position // of the newest message that was taken
	foundNewest  decode.Position // of the newest first delivery in the stream when the session began
	seenAny      bool
	passed       []string // ids of stored events that the slot did not bring, the first ones
	warnedPart   bool
	warnedDrop   bool
	otherStream  bool   // the last refusal was that another stream has the subject
	phantoms     uint64 // how many
	limits       streamLimits
	everOpen     bool    // something was acknowledged once
	poison       *Poison // a message that was taken and can never be stored
	everConn     bool    // the server took our credentials once

	backoff   *backoff.ExponentialBackOff
	retryAt   time.Time
	judged    bool  // the cause of the present phaseSync has been looked at
	condition error // why nothing goes out at present
	reconnect uint64

	mu      sync.Mutex
	answers []answer // filled by the subscription's goroutine
	spare   []answer
}

// NewPublisher returns a publisher that is not connected yet; Step connects.
func NewPublisher(cfg PublisherConfig) *Publisher {
	p := &Publisher{
		cfg: cfg, wake: make(chan struct{}, 1),
		limiter: rate.NewLimiter(rate.Inf, 1), condition: ErrConnecting,
	}
	if cfg.Dial == nil {
		p.cfg.Dial = Dialer(cfg)
	}
	if cfg.Random == nil {
		p.cfg.Random = rand.Float64
	}
	if cfg.RateMax > 0 {
		p.limiter = rate.NewLimiter(rate.Limit(cfg.RateMax), max(1, int(cfg.RateMax/20))) // bursts of 50 ms
	}
	id := nuid.New()
	inbox, nonce := nats.InboxPrefix+id.Next()[:12], id.Next()[12:]
	p.seq = newSequencer(limits{
		inFlightMax: cfg.InFlightMax, ackTimeout: cfg.AckTimeout, settleGrace: min(settleGraceMax, cfg.AckTimeout),
	}, p, cfg.Stream, inbox, nonce)
	p.backoff = &backoff.ExponentialBackOff{
		InitialInterval: backoffStart, MaxInterval: backoffMax, Multiplier: 2,
	}
	p.backoff.Reset()
	return p
}

// Wake is signalled when Step has something to do before its deadline.
func (p *Publisher) Wake() <-chan struct{} { return p.wake }

func (p *Publisher) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Room tells whether Add may be called now.
func (p *Publisher) Room(now time.Time) bool {
	return p.poison == nil && p.walk != nil && !p.reading && p.seq.room() && (p.cfg.RateMax <= 0 || p.limiter.TokensAt(now) >= 1)
}

// Add takes the next message in order; false says that it could not be taken yet,
// because the stream has to be read first, and that the same message is to be offered
// again. A message that the stream holds already is settled without being sent. It
// returns a *Poison when the message can never be stored as things are, and a
// *fault.Error when the stream was filled from another database; then the message was
// not taken. It may block for a request to the JetStream API.
func (p *Publisher) Add(ctx context.Context, m *Message, now time.Time) (bool, error) {
	v, ok, err := p.look(ctx, now, m.Position, m.EventID)
	if err != nil || !ok {
		return false, err
	}
	if v.seq == 0 {
		if err := p.admit(ctx, m); err != nil {
			return false, err
		}
		p.limiter.AllowN(now, 1)
		p.seq.add(m, v.behind, p.origin.mayBeSent(m.Position))
		p.seq.at(p.seq.end - 1).addedAt = now
	} else {
		p.seq.found(m, v.seq)
	}
	p.lastSeen, p.seenAny = m.Position, true
	return true, nil
}

// Pass looks at an event that is not to be published, in the order of the others. stored
// tells whether the stream holds it nevertheless; ok is false when the stream has to be read
// first, and the same event is to be offered again. eventID is as it stands in the row. The
// error is a *fault.Error, when the stream was filled from another database. It may block
// for a request to the JetStream API.
func (p *Publisher) Pass(ctx context.Context, position decode.Position, eventID []byte, now time.Time) (stored, ok bool, err error) {
	v, ok, err := p.look(ctx, now, position, string(appendHeaderValue(nil, eventID)))
	if err != nil || !ok {
		return false, false, err
	}
	p.lastSeen, p.seenAny = position, true
	return v.seq > 0, true, nil
}

// admit looks whether server and stream can take a message. Before the first
// connection nothing is known and nothing is refused: synced looks again.
func (p *Publisher) admit(ctx context.Context, m *Message) error {
	poison := p.fits(m)
	if poison == nil {
		return nil
	}
	// What was read of the stream may be old: look again before judging. Where that is not
	// to be had now, the next reading looks at the message again.
	if p.broker == nil {
		return nil
	}
	_, l, err := readTail(ctx, p.broker, p.cfg.Stream, p.origin.Source())
	if err != nil {
		p.seq.resync()
		return nil //nolint:nilerr // the stream is read again before the message is sent
	}
	p.limits = l
	if poison = p.fits(m); poison != nil {
		return poison
	}
	return nil
}

func (p *Publisher) fits(m *Message) *Poison {
	if !p.limits.subjectsKnown {
		return nil
	}
	size := m.wireSize(p.cfg.Stream)
	var code, reason string
	switch {
	case !p.limits.covers(m.Subject):
		code, reason = PoisonSubjectUncover, fmt.Sprintf("stream %q has no subject that covers %q", p.cfg.Stream, clip(m.Subject))
	case p.limits.maxPayload > 0 && size > p.limits.maxPayload:
		code, reason = PoisonTooLarge, fmt.Sprintf("%d bytes with headers, max_payload of the server is %d", size, p.limits.maxPayload)
	case p.limits.maxMsgSize > 0 && size > p.limits.maxMsgSize:
		code = PoisonTooLarge
		reason = fmt.Sprintf("%d bytes with headers, max_msg_size of stream %q is %d", size, p.cfg.Stream, p.limits.maxMsgSize)
	case p.limits.maxBytes > 0 && int64(m.storedSize(p.cfg.Stream)) > p.limits.maxBytes:
		code = PoisonTooLarge
		reason = fmt.Sprintf("%d bytes with headers; stream %q keeps max_bytes %d and would drop it at once", size, p.cfg.Stream, p.limits.maxBytes)
	default:
		return nil
	}
	return &Poison{Code: code, Reason: reason, EventID: m.EventID, Position: m.Position, Subject: m.Subject}
}

// Begin says whose messages are ours and where the slot stands. It forgets all
// messages that are not settled, since the server will send them again; answers that
// are still on their way are ignored. No message is taken before.
func (p *Publisher) Begin(o Origin) {
	p.origin, p.began, p.seenAny, p.poison = o, true, false, nil
	p.walk, p.reading, p.cursor = nil, false, 0
	p.lastSeen, p.foundNewest = decode.Position{}, decode.Position{}
	if errors.Is(p.condition, ErrSuperseded) {
		p.condition = nil
	}
	p.seq.discard()
	p.judged = true
	p.retryAt = time.Time{}
}

// Pause holds back what was not sent yet, or lets it go; what is in flight settles.
func (p *Publisher) Pause(on bool) { p.seq.paused = on }

// StopSending lets what is in flight settle and forgets what waits behind it. It
// returns how many messages are in flight.
func (p *Publisher) StopSending() int {
	p.seq.forgetUnsent()
	return p.seq.inFlight()
}

// Lost tells whether the fate of messages in flight can no longer be learnt from
// answers: the connection broke, or sending failed.
func (p *Publisher) Lost() bool { return p.seq.phase == phaseSync && p.seq.inFlight() > 0 }

// Step handles answers, (re)connects, reads the stream's tail and publishes, as
// far as each is due. more says that further messages will be added at once. An
// error stops the publisher: a *Poison names a message that was taken and can never be
// stored, once all before it are settled; it and all behind it are no longer here, and no
// message is taken until the next Begin. A *fault.Error says what a person has to mend.
func (p *Publisher) Step(ctx context.Context, now time.Time, more bool) error {
	p.takeAnswers(now)
	p.watchConnection()
	p.seq.tick(now)
	if p.seq.phase == phaseSync {
		if err := p.open(ctx, now); err != nil {
			return err
		}
		now = time.Now() // it may have taken a while
	}
	p.seq.pump(now, more && p.poison == nil)
	if err := p.flush(); err != nil {
		p.seq.disconnected()
	}
	if p.poison != nil && p.seq.unsettled() == 0 {
		return p.poison
	}
	return nil
}

// Settled returns what was settled since the last call, in the order of the
// acknowledgements. The slice is valid until the next Step.
func (p *Publisher) Settled() []Settlement {
	s := p.seq.takeSettled()
	if len(s) > 0 {
		p.everOpen, p.otherStream = true, false
		p.condition = nil
		p.backoff.Reset()
	}
	return s
}

// Deadline returns when Step has to be called at the latest, or the zero time.
func (p *Publisher) Deadline(now time.Time) time.Time {
	var at time.Time
	if p.seq.phase == phaseSync {
		at = p.retryAt
		if at.IsZero() {
			at = now
		}
	} else {
		at = p.seq.deadline(now)
	}
	if p.cfg.RateMax > 0 {
		if tokens := p.limiter.TokensAt(now); tokens < 1 {
			next := now.Add(time.Duration((1 - tokens) / p.cfg.RateMax * float64(time.Second)))
			if at.IsZero() || next.Before(at) {
				at = next
			}
		}
	}
	return at
}

// Condition returns why nothing goes out at present, or nil.
func (p *Publisher) Condition() error { return p.condition }

// Unsettled returns how many messages were added and are not settled.
func (p *Publisher) Unsettled() int { return p.seq.unsettled() }

// Stats are running figures of a publisher.
type Stats struct {
	InFlight        int
	OldestSentAt    time.Time // zero when nothing is in flight
	OldestAddedAt   time.Time // since when the first message that is not settled waits, sent or not; zero when there is none
	OrderViolations uint64    // messages stored after a later one (plain publishes only)
	Phantoms        uint64    // stored events that the slot did not bring
	Duplicates      uint64    // the server said that it had a message already
	Resent          uint64    // messages sent again after a failure
	Resyncs         uint64    // how often the place in the stream had to be found again
	ForeignAnswers  uint64    // replies that did not come from the stream
	Reconnects      uint64
	Batched         bool // fast batches are in use
	OwnStream       bool // the stream seems to hold nobody else's messages
}

// Stats returns the running figures.
func (p *Publisher) Stats() Stats {
	return Stats{
		InFlight: p.seq.inFlight(), OldestSentAt: p.seq.oldestSentAt(), OldestAddedAt: p.seq.oldestAddedAt(), OrderViolations: p.seq.orderViolations,
		Phantoms: p.phantoms, Duplicates: p.seq.duplicates, Resent: p.seq.resent, Resyncs: p.seq.resyncs, ForeignAnswers: p.seq.foreignAnswers,
		Reconnects: p.reconnect, Batched: p.seq.batched, OwnStream: p.seq.own,
	}
}

// Passed returns the ids of the stored events that the slot did not bring, the first
// few, and forgets them.
func (p *Publisher) Passed() []string {
	ids := p.passed
	p.passed = nil
	return ids
}

// open brings the sequencer from phaseSync to phaseOpen when that is due.
func (p *Publisher) open(ctx context.Context, now time.Time) error {
	if !p.judged {
		p.judged = true
		if err := p.judge(now); err != nil {
			return err
		}
	}
	if now.Before(p.retryAt) {
		return nil
	}
	p.retryAt = time.Time{}
	if p.broker == nil {
		if err := p.connect(ctx, now); err != nil || p.broker == nil {
			return err
		}
	}
	if !p.broker.Connected() {
		p.condition = errors.New("the connection is lost")
		p.retryAt = now.Add(connectedPoll) // the reconnect handler wakes us before
		return nil
	}
	epoch := p.epoch.Load()
	p.broker.Prepare() // the answer to readTail shows that it is ready
	if !p.reading {
		var err error
		if p.walkTail, p.walkLimits, err = readTail(ctx, p.broker, p.cfg.Stream, p.origin.Source()); err != nil {
			return p.waitOrFail(ctx, now, err)
		}
	}
	t, l := p.walkTail, p.walkLimits
	if p.began {
		err := p.resume(ctx, t)
		if errors.Is(err, errReading) {
			p.keepReading()
			return nil
		}
		if err != nil {
			return p.walkFailed(ctx, now, err)
		}
		p.haveRead()
	}
	if epoch != p.epoch.Load() {
		return nil // the next Step sees it
	}
	if err := p.judgeSubjects(l); err != nil {
		return err
	}
	p.limits = l
	for n := p.seq.head; n < p.seq.end; n++ {
		if poison := p.fits(p.seq.at(n).msg); poison != nil {
			p.poisonedAt(n, poison)
		}
	}
	if t.own && p.seq.acked > t.lastSeq {
		p.cfg.Log.Error("the stream does not hold what it acknowledged: it was made anew, put back to an older state, or has lost messages",
			"stream", p.cfg.Stream, "last_sequence", t.lastSeq, "acknowledged_sequence", p.seq.acked)
		p.seq.acked = t.lastSeq
	}
	p.newest.acked = p.seq.acked
	p.seq.synced(t, now)
	p.judged = false
	if p.seq.unsettled() == 0 {
		p.condition = nil
		p.backoff.Reset()
	}
	return nil
}
