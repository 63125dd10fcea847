package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// streamLoop receives until the stream or ctx ends.
func (r *reader) streamLoop(ctx context.Context) error {
	deadline := time.Now()
	for {
		if stopping(ctx) {
			return r.drain()
		}
		if r.framesToRun <= 0 {
			now := time.Now()
			r.framesToRun = clockEvery
			if err := r.chores(now); err != nil {
				return err
			}
			deadline = r.nextDeadline(now)
		}
		r.framesToRun--
		if len(r.pending) > 0 && (len(r.pending) >= localMax || !r.stream.Buffered()) {
			if err := r.handOver(ctx); err != nil {
				return err
			}
		}
		frame, err := r.stream.Receive(deadline)
		if err != nil {
			var notice *replication.NoticeError
			if !errors.As(err, &notice) || notice.SkipsPublication() {
				return err
			}
			r.heard()
			r.notice(notice, time.Now())
			continue
		}
		switch frame.Kind {
		case replication.FrameNone:
			r.framesToRun = 0
		case replication.FrameKeepalive:
			r.keepalive(frame)
			r.framesToRun = 0
		case replication.FrameData:
			r.gotFrame = true
			if err := r.data(frame.Data); err != nil {
				return r.leaveSettled(ctx, err)
			}
		}
	}
}

// noticeEvery is how often a notice that the server repeats is logged.
const noticeEvery = time.Minute

// notice logs what the server says inside the stream, some of it once a second.
func (r *reader) notice(n *replication.NoticeError, now time.Time) {
	if text := n.Error(); text != r.noticeText || now.Sub(r.noticeAt) >= noticeEvery {
		r.noticeText, r.noticeAt = text, now
		r.log.Warn("notice from PostgreSQL", "notice", text)
	}
}

func (r *reader) nextDeadline(now time.Time) time.Time {
	at := now.Add(tick)
	if r.replyOwed {
		at = now.Add(replyPause)
	}
	if r.statusAt.Before(at) {
		at = r.statusAt
	}
	return at
}

// keepalive passes the server's position on and notices a server that shuts down.
func (r *reader) keepalive(frame replication.Frame) {
	r.heard()
	r.ceilingLSN = max(r.ceilingLSN, frame.SentLSN)
	r.pending = append(r.pending, item{kind: itemKeepalive, lsn: frame.SentLSN})
	if frame.ReplyRequested {
		r.replyOwed = true
		now := time.Now()
		if now.Sub(r.askedSince) > time.Second {
			r.asked, r.askedSince = 0, now
		}
		r.asked++
		if r.asked >= askedOften && r.stopSeenAt.IsZero() {
			r.stopSeenAt = now
		}
	}
}

// heard notes that the server is there.
func (r *reader) heard() {
	r.shared.lastFrameAt.Store(time.Now().UnixNano())
}

// data decodes one message and gathers what it means.
func (r *reader) data(wal []byte) error {
	change, err := r.decoder.Decode(wal)
	if err != nil {
		return fmt.Errorf("decode WAL: %w", err)
	}
	switch change.Kind {
	case decode.ChangeNone:
	case decode.ChangeBegin:
		r.beginHeld = true
	case decode.ChangeEvent:
		if r.beginHeld && !r.open {
			r.pending = append(r.pending, item{kind: itemBegin})
			r.open = true
		}
		r.beginHeld = false
		r.pending = append(r.pending, item{kind: itemEvent, event: change.Event})
	case decode.ChangeCommit:
		r.ceilingLSN = max(r.ceilingLSN, change.CommitEndLSN)
		kind := itemKeepalive // an empty transaction only moves the position
		if r.open {
			kind = itemCommit
		}
		r.open, r.beginHeld = false, false
		r.pending = append(r.pending, item{kind: kind, lsn: change.CommitEndLSN})
	}
	return nil
}

// handOver gives the gathered items to the publisher. While the queue is full it
// keeps the status messages flowing.
func (r *reader) handOver(ctx context.Context) error {
	for len(r.pending) > 0 {
		n := r.queue.push(r.pending)
		rest := copy(r.pending, r.pending[n:])
		clear(r.pending[rest:])
		r.pending = r.pending[:rest]
		if rest == 0 {
			return nil
		}
		if stopping(ctx) {
			return nil // what was not handed over is sent again after the start
		}
		timer := time.NewTimer(tick)
		select {
		case <-r.queue.room:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		r.heard() // it is we who do not read
		if err := r.chores(time.Now()); err != nil {
			return err
		}
	}
	return nil
}
