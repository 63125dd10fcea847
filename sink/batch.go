package sink

import (
	"time"
)

func (s *sequencer) pumpBatch(now time.Time, more bool) {
	for s.phase == phaseOpen && !s.paused && !s.committing && s.next < s.end && s.inFlight() < s.window {
		if !s.batchOpen && s.sent > 0 {
			s.newRound()
		}
		s.sent++
		last := s.next+1 == s.end && !more
		roundFull := s.window < s.limits.inFlightMax && s.sent >= uint64(s.window)
		op := byte(opAppend)
		switch {
		case last || roundFull:
			op, s.committing = opCommit, true
		case s.sent == 1:
			op = opStart
		}
		s.batchOpen = true
		expect := (s.own || s.sent == 1) && !s.withoutExpect
		s.replyBuf = appendBatchReply(s.replyBuf[:0], s.inbox, s.nonce, s.round, s.flow, s.sent, op)
		if !s.send(now, s.base+s.sent-1, expect) {
			return
		}
	}
	if s.phase == phaseOpen && s.batchOpen && !s.committing && (s.paused || s.next == s.end && !more) {
		s.progressAt = now // its answer is owed too, also when all before it is settled
		s.endBatch(s.sent + 1)
	}
}

// endBatch ends the open batch without a further message. seq is the place that
// the next message would have had.
func (s *sequencer) endBatch(seq uint64) {
	if seq < 2 || s.ending {
		return
	}
	s.committing, s.ending = true, true
	s.replyBuf = appendBatchReply(s.replyBuf[:0], s.inbox, s.nonce, s.round, s.flow, seq, opEnd)
	if err := s.wire.endBatch(s.lastSentSubject, s.replyBuf); err != nil {
		s.disconnected()
	}
}

func (s *sequencer) handleBatch(a answer, now time.Time) {
	if s.phase == phaseSync { // too late to go on with the round, not to know what is stored
		if (a.kind == answerFlow || a.kind == answerStored) && a.count <= s.sent {
			s.settleBatch(a.count, a.streamSeq, a.duplicate, now)
		}
		return
	}
	switch a.kind {
	case answerFlow:
		if a.count <= s.sent {
			s.settleBatch(a.count, 0, false, now)
		}
	case answerStored:
		s.batchEnded(a, now)
	case answerGap:
		s.fail(cause{kind: causeGap})
	case answerNobody:
		s.fail(cause{kind: causeNobody})
	case answerRefused:
		s.refused(a)
	case answerForeign:
	}
}

// refused handles the refusal of the message with number a.seq of the batch.
func (s *sequencer) refused(a answer) {
	if a.seq > s.sent+1 {
		return
	}
	c := cause{kind: causeRefused, code: a.code}
	if n := s.roundFirst + a.seq - 1; n < s.next {
		c.msg, c.number = s.at(n).msg, n
	}
	if c.code == codeWrongLastSeq && c.msg != nil {
		s.refusedFrom(c.number)
	}
	s.fail(c)
	switch {
	case a.seq == 1 || a.code == codeBatchUnknown:
		s.toSync() // the server holds no such batch (any more): nothing else will come
	case a.seq == s.sent:
		// Nothing behind it will make the server end the batch: end it, so that what
		// is stored of it is told.
		s.ending = false
		s.endBatch(a.seq)
	}
}

// batchEnded handles the server's last word on a batch.
func (s *sequencer) batchEnded(a answer, now time.Time) {
	if a.count > s.sent {
		s.foreignAnswers++
		return
	}
	s.countSwallowed(a)
	s.settleBatch(a.count, a.streamSeq, a.duplicate, now)
	if a.streamSeq > 0 && !a.duplicate {
		s.lastSeq = a.streamSeq
		s.acked = max(s.acked, a.streamSeq)
	}
	if s.phase == phaseOpen && s.committing && a.count == s.sent {
		s.window = min(2*s.window, s.limits.inFlightMax)
		if s.withoutExpect { // for one batch only; one more refusal brings it back
			s.withoutExpect, s.fruitless, s.headAtSync = false, fruitlessRounds-1, s.head
		}
		s.newRound()
		return
	}
	s.fail(cause{kind: causeGap})
	s.toSync()
}

// refusedFrom notes that the stream's leader has refused a message: neither that one nor
// those sent behind it are with a leader, present or former. Of a gap that is not known:
// a former leader may have had what its successor misses.
func (s *sequencer) refusedFrom(number uint64) {
	for n := max(number, s.head); n < s.next; n++ {
		s.at(n).refused = true
	}
}

// countSwallowed counts the messages of a batch that the server took for duplicates.
// It says nothing of them, but they took no sequence; in a stream that others write
// into that cannot be told.
func (s *sequencer) countSwallowed(a answer) {
	if !s.own || s.withoutExpect || a.duplicate {
		return
	}
	taken := uint64(0)
	if a.streamSeq > s.base {
		taken = a.streamSeq - s.base
	}
	if a.count > taken {
		s.duplicates += a.count - taken
	}
}

// settleBatch settles the first count messages of the batch.
func (s *sequencer) settleBatch(count, lastStreamSeq uint64, duplicate bool, now time.Time) {
	upTo := s.roundFirst + count
	for s.head < upTo {
		e := s.at(s.head)
		st := Settlement{Message: e.msg, SentAt: e.sentAt}
		switch {
		case duplicate && count == 1:
			st.StreamSeq, st.Duplicate = lastStreamSeq, true
			s.duplicates++
		case lastStreamSeq > 0 && s.head == upTo-1:
			st.StreamSeq = lastStreamSeq
		case s.own && !s.withoutExpect:
			st.StreamSeq = s.base + (s.head - s.roundFirst) + 1
		}
		if e.overtook && !st.Duplicate {
			s.orderViolations++
		}
		s.settled = append(s.settled, st)
		*e = entry{}
		s.head++
		s.progressAt = now
	}
	s.next = max(s.next, s.head) // after sift nothing counts as sent
}
