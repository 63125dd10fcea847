package sink

import (
	"fmt"
	"time"
)

// wire is how the sequencer publishes. An error means that the connection cannot
// take messages now; nothing was sent.
type wire interface {
	publish(m *Message, reply []byte, expectedLastSeq uint64, expect bool) error
	endBatch(subject string, reply []byte) error
}

// phase says what the sequencer may do.
type phase uint8

const (
	// phaseSync: nothing may be sent until the stream's tail has been read.
	phaseSync phase = iota
	// phaseOpen: messages may be sent.
	phaseOpen
	// phaseSettling: something failed; no more is sent, answers still on their way
	// are waited for.
	phaseSettling
)

// String returns the phase's name.
func (p phase) String() string {
	switch p {
	case phaseSync:
		return "sync"
	case phaseOpen:
		return "open"
	case phaseSettling:
		return "settling"
	default:
		return fmt.Sprintf("phase(%d)", uint8(p))
	}
}

// cause says why the last round ended.
type cause struct {
	kind causeKind
	// Of causeRefused: the error code, and the message that was refused.
	code   int
	msg    *Message
	number uint64
}

type causeKind uint8

const (
	causeNone causeKind = iota
	causeGap
	causeRefused
	causeNobody
	causeTimeout
	causeDisconnected
	causeDuplicates // plain publishes: duplicates shift the expected sequence
)

// String returns the cause in a word.
func (k causeKind) String() string {
	return [...]string{"none", "gap", "refused", "nobody", "timeout", "disconnected", "duplicates"}[k]
}

const (
	windowStart = 64
	// flowMost is how many messages the server acknowledges at once at the most.
	flowMost = 500
	// fruitlessRounds is after how many rounds without any progress, all ended by
	// somebody else's messages, a batch is begun without an expected sequence.
	fruitlessRounds = 3
)

// limits bound the sequencer.
type limits struct {
	inFlightMax int
	ackTimeout  time.Duration
	settleGrace time.Duration
}

// entry is a message on its way.
type entry struct {
	msg      *Message
	addedAt  time.Time
	sentAt   time.Time
	answered bool // plain publishes: an answer came, whatever it says
	stored   bool // plain publishes: acknowledged ahead of an earlier one
	overtook bool // a later message is stored already
	// suspect messages may have been sent before by a former process, or in a former round.
	suspect bool
	// refused messages were sent in this round, and a leader is known not to have taken them.
	refused bool
}

// tail is what the stream says about itself.
type tail struct {
	firstSeq, lastSeq uint64
	// madeAt is when the stream was made: one that is made anew begins its sequences again.
	madeAt time.Time
	// keeps says that messages stay until a limit is reached (limits retention).
	keeps bool
	// newest is the stream's last message; nil when it is empty.
	newest *Fetched
	// own says that the stream seems to hold nobody else's messages.
	own bool
	// batched says that server and stream take fast batches.
	batched bool
	// replicated says that the stream has more than one replica.
	replicated bool
}

// sequencer is the order-keeping core of the publisher: it decides what is sent,
// with which expectation, what an answer settles, and when sending must stop. It
// has no I/O and no clock, and belongs to one goroutine.
//
// Messages are numbered in the order of add. [head, next) are sent and not
// settled, [next, end) wait. There is no retry of single messages: after any
// failure sending stops, what is on its way is settled, the stream's tail is read,
// and sending goes on from the first message that is not settled.
type sequencer struct {
	limits limits
	wire   wire
	stream string
	inbox  string
	nonce  string

	ring             []entry // by number modulo its length
	head, next, end  uint64
	phase            phase
	paused           bool // nothing new is sent
	settleUntil      time.Time
	cause            cause
	batched          bool
	own              bool
	replicated       bool
	plainRound       bool   // the present round is one of plain publishes
	lastSeq          uint64 // the stream's last sequence, as far as is known
	base             uint64 // the same when the round began
	syncedSeq        uint64 // the same when the stream was read
	acked            uint64 // the highest sequence that was acknowledged
	window           int
	round            uint64
	roundFirst       uint64 // number of the round's first message
	sent             uint64 // messages sent in this round
	batchOpen        bool   // fast: a batch is open on the server
	committing       bool   // fast: its end was sent
	ending           bool   // fast: its end was sent without a message
	flow             int
	outstanding      int // plain: sent and not answered
	cleanAcks        int // plain: acknowledged since the window grew
	progressAt       time.Time
	fruitless        int
	withoutExpect    bool
	headAtSync       uint64
	settled          []Settlement
	orderViolations  uint64
	duplicates       uint64
	resyncs          uint64
	resent           uint64
	foreignAnswers   uint64
	replyBuf         []byte
	lastSentSubject  string
	sentMessageBytes int64
}

// Settlement is a message that needs nothing more.
type Settlement struct {
	Message *Message
	SentAt  time.Time
	// StreamSeq is the message's sequence in the stream; 0 where the server did not say.
	StreamSeq uint64
	// Duplicate says that the stream had a message of this id already.
	Duplicate bool
	// AlreadyStored says that the message was found in the stream before it was sent.
	AlreadyStored bool
}

func newSequencer(l limits, w wire, stream, inbox, nonce string) *sequencer {
	size := 1
	for size < l.inFlightMax {
		size *= 2
	}
	return &sequencer{
		limits: l, wire: w, stream: stream, inbox: inbox, nonce: nonce,
		ring: make([]entry, size), window: min(windowStart, l.inFlightMax),
	}
}

func (s *sequencer) at(number uint64) *entry { return &s.ring[number&uint64(len(s.ring)-1)] }

// room tells whether add may be called.
func (s *sequencer) room() bool { return s.end-s.head < uint64(s.limits.inFlightMax) }

// add hands over the next message in order. behind says that a later one is stored
// already, suspect that it may have been sent by a former process.
func (s *sequencer) add(m *Message, behind, suspect bool) {
	if !s.room() {
		panic("sink: message added without room")
	}
	*s.at(s.end) = entry{msg: m, overtook: behind, suspect: suspect}
	s.end++
}

// found settles a message that the stream holds already.
func (s *sequencer) found(m *Message, streamSeq uint64) {
	s.settled = append(s.settled, Settlement{Message: m, StreamSeq: streamSeq, AlreadyStored: true})
}

// sift takes the unsettled messages out and puts back those that are still to be
// published. Nothing may be on its way.
func (s *sequencer) sift(stays func(m *Message) (stays, behind bool, err error)) error {
	all := make([]entry, 0, s.end-s.head)
	for n := s.head; n < s.end; n++ {
		all = append(all, *s.at(n))
		*s.at(n) = entry{}
	}
	kept := all[:0]
	var failure error
	for _, e := range all {
		if e.stored {
			continue
		}
		if failure == nil { // else it is asked again when the stream can be read
			keep, behind, err := stays(e.msg)
			failure = err
			if err == nil && !keep {
				continue
			}
			e.overtook = e.overtook || behind
		}
		kept = append(kept, e)
	}
	// The numbers move on by what is gone, so that progress can be told.
	s.head += uint64(len(all) - len(kept))
	s.next, s.end = s.head, s.head
	for _, e := range kept {
		*s.at(s.end) = e
		s.end++
	}
	return failure
}

// inFlight returns how many messages are sent and not settled.
func (s *sequencer) inFlight() int { return int(s.next - s.head) }

// unsettled returns how many messages were added and are not settled.
func (s *sequencer) unsettled() int { return int(s.end - s.head) }

// oldestSentAt returns when the oldest unsettled message was sent; zero if none was.
func (s *sequencer) oldestSentAt() time.Time {
	if s.head == s.next {
		return time.Time{}
	}
	return s.at(s.head).sentAt
}

// oldestAddedAt returns since when the oldest unsettled message waits; zero if there is none.
func (s *sequencer) oldestAddedAt() time.Time {
	if s.head == s.end {
		return time.Time{}
	}
	return s.at(s.head).addedAt
}

// synced tells what the stream's tail is; sending begins (again) from the first
// message that is not settled.
func (s *sequencer) synced(t tail, now time.Time) {
	if s.cause.kind == causeRefused && s.cause.code == codeWrongLastSeq && s.head == s.headAtSync {
		s.fruitless++
	} else {
		s.fruitless = 0
	}
	s.withoutExpect = s.fruitless >= fruitlessRounds
	s.headAtSync = s.head
	s.lastSeq, s.own, s.batched, s.replicated = t.lastSeq, t.own, t.batched, t.replicated
	s.syncedSeq = t.lastSeq
	s.plainRound = !t.batched
	if s.plainRound {
		// Messages of an earlier round may wait in the stream, and one in the middle of this
		// round could line up behind them. Once one is acknowledged, none waits any more.
		s.window, s.cleanAcks = 1, 0
	}
	s.next = s.head
	for n := s.head; n < s.end; n++ {
		s.at(n).answered = false
	}
	s.phase, s.cause = phaseOpen, cause{}
	s.progressAt = now
	s.newRound()
}

func (s *sequencer) newRound() {
	s.round++
	s.roundFirst, s.sent = s.next, 0
	s.batchOpen, s.committing, s.ending = false, false, false
	s.outstanding, s.base = 0, s.lastSeq
	s.flow = max(1, min(flowMost, s.window/4))
}

// pump sends what may be sent. more says that further messages wait right behind
// those that were added, so that a batch need not end with the last one.
func (s *sequencer) pump(now time.Time, more bool) {
	if s.phase == phaseOpen && s.inFlight() == 0 && s.next < s.end && !s.batchOpen {
		if plain := !s.batched || s.suspect(s.next); plain != s.plainRound {
			s.plainRound = plain
			s.newRound()
		}
	}
	if s.plainRound {
		s.pumpPlain(now)
	} else {
		s.pumpBatch(now, more)
	}
}

// suspect tells whether a message must not go out in a batch. A replicated stream
// keeps ids of messages that it never stored across changes of its leader; a plain
// publish of such an id is refused (10158), but a batch skips it without a word and
// counts it as stored. Only what may have been sent before can meet that.
func (s *sequencer) suspect(number uint64) bool {
	e := s.at(number)
	return s.replicated && (e.suspect || !e.sentAt.IsZero() && !e.refused)
}

// send publishes the next message; false means that the connection is gone.
func (s *sequencer) send(now time.Time, expected uint64, expect bool) bool {
	e := s.at(s.next)
	if !e.sentAt.IsZero() {
		s.resent++
		e.suspect = e.suspect || !e.refused
	}
	e.sentAt, e.answered, e.refused = now, false, false
	if s.inFlight() == 0 {
		s.progressAt = now
	}
	s.next++
	s.lastSentSubject = e.msg.Subject
	if err := s.wire.publish(e.msg, s.replyBuf, expected, expect); err != nil {
		s.disconnected()
		return false
	}
	s.sentMessageBytes += int64(len(e.msg.body) + len(e.msg.lines))
	return true
}

// disconnected tells that the connection broke: what is on its way is unknown.
func (s *sequencer) disconnected() {
	s.fail(cause{kind: causeDisconnected})
	s.toSync()
}

// fail stops sending. The first cause of a round is kept.
func (s *sequencer) fail(c cause) {
	if s.phase == phaseOpen {
		s.phase = phaseSettling
		s.cause = c
		s.settleUntil = time.Time{}
	}
}

func (s *sequencer) toSync() {
	s.phase = phaseSync
	s.markOvertaken()
	s.window = min(windowStart, s.limits.inFlightMax)
	s.batchOpen, s.committing = false, false
	s.resyncs++
}

// awaiting tells whether the server owes an answer: to a message, or to the end of a batch.
func (s *sequencer) awaiting() bool { return s.next > s.head || s.committing }

// tick looks at the deadlines.
func (s *sequencer) tick(now time.Time) {
	switch s.phase {
	case phaseOpen:
		if s.awaiting() && now.Sub(s.progressAt) >= s.limits.ackTimeout {
			s.fail(cause{kind: causeTimeout})
			s.toSync() // the grace has been spent waiting
		}
	case phaseSettling:
		if s.settleUntil.IsZero() {
			s.settleUntil = now.Add(s.limits.settleGrace)
		} else if !now.Before(s.settleUntil) {
			s.toSync()
		}
	case phaseSync:
	}
}

// deadline returns when tick has to be called at the latest; zero means never.
func (s *sequencer) deadline(now time.Time) time.Time {
	switch s.phase {
	case phaseOpen:
		if s.awaiting() {
			return s.progressAt.Add(s.limits.ackTimeout)
		}
	case phaseSettling:
		if s.settleUntil.IsZero() {
			return now
		}
		return s.settleUntil
	case phaseSync:
	}
	return time.Time{}
}

// handle takes an answer of the server.
func (s *sequencer) handle(a answer, now time.Time) {
	if a.kind == answerForeign || (a.kind == answerStored && a.stream != s.stream) {
		s.foreignAnswers++
		return
	}
	switch {
	case a.round != s.round || a.seq == 0:
		// Of a round that is over: its messages were or will be sent again.
	case s.plainRound:
		s.handlePlain(a, now)
	default:
		s.handleBatch(a, now)
	}
}

// JetStream error codes that the order of events turns on.
const (
	codeWrongLastSeq = 10071
	codeBatchUnknown = 10208
)

// resync makes the stream be read again before anything more is sent.
func (s *sequencer) resync() {
	if s.phase != phaseSync {
		s.fail(cause{})
		s.toSync()
	}
}

// discard forgets all messages; what was sent may or may not be stored.
func (s *sequencer) discard() {
	for n := s.head; n < s.end; n++ {
		*s.at(n) = entry{}
	}
	s.head, s.next = s.end, s.end
	s.phase, s.cause = phaseSync, cause{}
	s.settled = s.settled[:0]
	s.round++
	s.roundFirst, s.sent, s.outstanding = s.head, 0, 0
	s.batchOpen, s.committing = false, false
}

// truncate drops a message and all behind it. None of them may be on its way.
func (s *sequencer) truncate(number uint64) {
	for n := max(number, s.head); n < s.end; n++ {
		*s.at(n) = entry{}
	}
	s.end = max(number, s.head)
	s.next = min(s.next, s.end)
}

// forgetUnsent drops what was added and not sent.
func (s *sequencer) forgetUnsent() {
	for n := s.next; n < s.end; n++ {
		*s.at(n) = entry{}
	}
	s.end = s.next
}

// takeSettled returns what was settled since the last call, in the order of the
// acknowledgements. The slice is valid until the next call of handle.
func (s *sequencer) takeSettled() []Settlement {
	out := s.settled
	s.settled = s.settled[:0]
	return out
}
