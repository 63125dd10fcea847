package sink

import (
	"time"
)

func (s *sequencer) pumpPlain(now time.Time) {
	window := s.window
	if s.withoutExpect || s.batched {
		// Nothing overtakes where only one is on its way. That others do not write into the
		// stream is never known: the newest message may be ours and the next one theirs.
		window = 1
	}
	for s.phase == phaseOpen && !s.paused && s.next < s.end && s.outstanding < window {
		if s.batched && !s.suspect(s.next) {
			return // in a batch, once those before it are settled
		}
		if s.at(s.next).stored {
			s.next++
			continue
		}
		s.sent++
		s.outstanding++
		s.replyBuf = appendPlainReply(s.replyBuf[:0], s.inbox, s.nonce, s.round, s.next+1) // from 1
		if !s.send(now, s.base+s.sent-1, !s.withoutExpect) {
			return
		}
	}
}

// markOvertaken notes which unsettled messages have a later one stored already.
func (s *sequencer) markOvertaken() {
	later := false
	for n := s.next; n > s.head; n-- {
		e := s.at(n - 1)
		if e.stored {
			later = true
		} else if later {
			e.overtook = true
		}
	}
}

func (s *sequencer) handlePlain(a answer, now time.Time) {
	number := a.seq - 1
	if number < s.head || number >= s.next {
		return
	}
	e := s.at(number)
	if e.answered {
		return
	}
	e.answered = true
	s.outstanding--
	switch a.kind {
	case answerStored:
		s.storedPlain(e, a, now)
	case answerRefused:
		s.fail(cause{kind: causeRefused, code: a.code, msg: e.msg, number: number})
	case answerNobody:
		s.fail(cause{kind: causeNobody})
	case answerFlow, answerGap, answerForeign:
	}
	if s.phase == phaseSettling && s.outstanding == 0 {
		s.toSync()
	}
}

func (s *sequencer) storedPlain(e *entry, a answer, now time.Time) {
	e.stored = true
	s.progressAt = now
	st := Settlement{Message: e.msg, SentAt: e.sentAt, StreamSeq: a.streamSeq, Duplicate: a.duplicate}
	if a.duplicate {
		s.duplicates++
		if !s.withoutExpect {
			s.fail(cause{kind: causeDuplicates})
		}
	} else {
		if e.overtook {
			s.orderViolations++
		}
		s.lastSeq = max(s.lastSeq, a.streamSeq)
		s.acked = max(s.acked, a.streamSeq)
	}
	s.settled = append(s.settled, st)
	for s.head < s.next && s.at(s.head).stored {
		*s.at(s.head) = entry{}
		s.head++
	}
	s.cleanAcks++
	if s.phase == phaseOpen && s.cleanAcks >= s.window {
		s.cleanAcks = 0
		s.window = min(2*s.window, s.limits.inFlightMax)
	}
}
