package sink

import (
	"context"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// search finds where in a stream the first deliveries of a source reach a position.
type search struct {
	reader         messages
	stream, source string
	from           decode.Position
	// All of ours before low come before from. Above high there is nothing to look at.
	low, high uint64
}

// first returns a sequence such that each first delivery of ours with a position of at
// least from has that sequence or a higher one. It asks a few dozen times at most,
// whatever the size of the stream: usually the answer lies at its end. Where ours are few
// among those of others the sequence may be much too low, never too high.
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

// narrow looks for the first message of ours at or behind a sequence and moves low behind
// it or high to the sequence. A republished one tells where the first delivery before it is.
func (s *search) narrow(ctx context.Context, probe uint64) error {
	m, err := s.reader.Message(ctx, s.stream, MessageQuery{Seq: probe, NextBySubject: ">"})
	if err != nil {
		return err
	}
	if m == nil || m.Sequence >= s.high {
		s.high = probe
		return nil
	}
	done, err := s.judge(ctx, probe, m)
	if err != nil || done {
		return err
	}
	if m.Sequence+1 < s.high {
		chunk, err := s.reader.Chunk(ctx, s.stream, m.Sequence+1, min(s.high-1, m.Sequence+chunkSize))
		if err != nil {
			return err
		}
		for _, m := range chunk {
			if done, err := s.judge(ctx, probe, m); err != nil || done {
				return err
			}
		}
	}
	s.high = probe // there is none of ours nearby, so it is taken for one that does not come before
	return nil
}

// judge moves low or high by what one message tells; false when it tells nothing.
func (s *search) judge(ctx context.Context, probe uint64, m *Fetched) (bool, error) {
	if seq, ok := m.lastSequence(s.source); ok {
		return s.narrowBefore(ctx, probe, m.Sequence, seq)
	}
	if !m.isFrom(s.source) {
		return false, nil
	}
	own, err := m.stored()
	if err != nil {
		return false, err
	}
	if own.position.Compare(s.from) < 0 {
		s.low = own.seq + 1
	} else {
		s.high = probe
	}
	return true, nil
}

// narrowBefore takes from a republished message that before it the newest first delivery
// of ours was at last; false when that one is gone and tells nothing.
func (s *search) narrowBefore(ctx context.Context, probe, republished, last uint64) (bool, error) {
	if last < s.low { // the oldest are gone, or come before from as is known
		s.low = republished + 1
		return true, nil
	}
	m, err := s.reader.Message(ctx, s.stream, MessageQuery{Seq: last})
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
