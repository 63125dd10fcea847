package sink

import (
	"context"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// foreignRun bounds how many messages of others are passed over to find one of ours.
const foreignRun = 64

// search finds where in a stream the first deliveries of a source reach a position.
type search struct {
	fetcher
	stream, source string
	filter         string // it looks at messages on these subjects only
	from           decode.Position
	// All of ours before low come before from. Above high there is nothing to look at.
	low, high uint64
}

// first returns a sequence such that each first delivery of ours with a position of at
// least from has that sequence or a higher one. It asks a few dozen times at most,
// whatever the size of the stream: usually the answer lies at its end.
func (s *search) first(ctx context.Context) (uint64, error) {
	for step := uint64(0); s.high > s.low; step = 4*step + 1 {
		low, last := s.low, s.high-1
		if err := s.narrow(ctx, max(low, last-min(step, last))); err != nil {
			return 0, err
		}
		if s.low > low {
			break
		}
	}
	for s.low < s.high {
		if err := s.narrow(ctx, s.low+(s.high-s.low)/2); err != nil {
			return 0, err
		}
	}
	return s.low, nil
}

// narrow looks at the first message of ours at or behind a sequence and moves low behind
// it or high to the sequence. A republished one tells where the first delivery before it is.
func (s *search) narrow(ctx context.Context, probe uint64) error {
	at := probe
	for range foreignRun {
		m, err := s.Message(ctx, s.stream, MessageQuery{Seq: at, NextBySubject: s.filter})
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		if seq, ok := m.lastSequence(s.source); ok && m.Sequence < s.high {
			done, err := s.narrowBefore(ctx, probe, m.Sequence, seq)
			if err != nil || done {
				return err
			}
		}
		if m.isFrom(s.source) {
			own, err := m.stored()
			if err != nil {
				return err
			}
			if own.position.Compare(s.from) < 0 {
				s.low = own.seq + 1
				return nil
			}
			break
		}
		at = m.Sequence + 1
	}
	s.high = probe
	return nil
}

// narrowBefore takes from a republished message that before it the newest first delivery
// of ours was at last; false when that one is gone and tells nothing.
func (s *search) narrowBefore(ctx context.Context, probe, republished, last uint64) (bool, error) {
	if last < s.low { // the oldest are gone, or come before from as is known
		s.low = republished + 1
		return true, nil
	}
	m, err := s.Message(ctx, s.stream, MessageQuery{Seq: last})
	if err != nil || m == nil || !m.isFrom(s.source) {
		return false, err
	}
	own, err := m.stored()
	if err != nil {
		return false, err
	}
	if own.position.Compare(s.from) < 0 {
		s.low = republished + 1
	} else {
		s.high = min(probe, last)
	}
	return true, nil
}
