package sim

import (
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/replication"
)

// unreadMax is how many messages fit into the socket's buffers.
const unreadMax = 120

// walsender streams the slot to one client.
type walsender struct {
	pg      *postgres
	conn    *pgConn
	pid     uint32
	next    int // transaction to be sent next
	sentLSN pglogrepl.LSN
	related bool // the relation was sent
	rest    [][]byte
	restLSN pglogrepl.LSN // commit LSN of the transaction in hand
	restEnd pglogrepl.LSN
	unread  int
	frames  []replication.Frame // arrived at the client
	replyAt time.Time
	begunAt time.Time
	asked   bool
	ended   bool
}

func (c *pgConn) startSending(from pglogrepl.LSN) {
	pg := c.pg
	pg.pids++
	s := &walsender{pg: pg, conn: c, pid: pg.pids, sentLSN: from, replyAt: time.Now(), begunAt: time.Now()}
	for s.next < len(pg.wal) && pg.wal[s.next].commitLSN < from {
		s.next++
	}
	c.sender, pg.holder = s, s
	c.w.tracef("postgres: %s streams from %s", c.p.name, from)
	c.w.after(c.latency(), s.work)
	s.watch()
}

// watch ends a walsender whose client is silent, as wal_sender_timeout does.
func (s *walsender) watch() {
	if s.ended {
		return
	}
	silent := time.Since(s.replyAt)
	switch {
	case silent >= walsenderTimeout:
		s.conn.w.tracef("postgres: walsender %d times out", s.pid)
		s.conn.snap()
		return
	case silent >= walsenderTimeout/2 && !s.asked:
		s.asked = true
		s.keepalive(true)
	}
	s.conn.w.after(walsenderTimeout/8, s.watch)
}

// work sends what the client has room for.
func (s *walsender) work() {
	for !s.ended && s.unread < unreadMax {
		if len(s.rest) == 0 {
			if s.next == len(s.pg.wal) {
				s.caughtUp()
				return
			}
			t := s.pg.wal[s.next]
			s.next++
			if len(t.events) == 0 && s.pg.version >= 15 {
				continue // since 15 nothing is said of it
			}
			s.rest, s.restLSN, s.restEnd = t.messages(!s.related), t.commitLSN, t.endLSN
			s.related = s.related || len(t.events) > 0
		}
		message := s.rest[0]
		s.rest = s.rest[1:]
		s.deliver(replication.Frame{Kind: replication.FrameData, Data: message, SentLSN: s.restLSN})
		if len(s.rest) == 0 {
			s.sentLSN = max(s.sentLSN, s.restEnd)
		} else if s.conn.w.chance(20) { // in the middle of a transaction: its commit LSN
			s.deliver(replication.Frame{Kind: replication.FrameKeepalive, SentLSN: s.restLSN})
		}
	}
}

// caughtUp tells the client how far the WAL goes.
func (s *walsender) caughtUp() {
	if s.sentLSN < s.pg.walEndLSN || s.conn.w.chance(4) {
		s.sentLSN = max(s.sentLSN, s.pg.walEndLSN)
		s.keepalive(false)
	}
}

func (s *walsender) keepalive(reply bool) {
	lsn := s.sentLSN
	if len(s.rest) > 0 {
		lsn = s.restLSN
	}
	s.deliver(replication.Frame{Kind: replication.FrameKeepalive, SentLSN: lsn, ReplyRequested: reply})
}

func (s *walsender) deliver(f replication.Frame) {
	if f.Kind == replication.FrameData {
		s.unread++
	}
	c := s.conn
	c.toClient.send(c.latency()/8, func() {
		s.frames = append(s.frames, f)
		c.signal()
	})
}

// hear takes a status of the client.
func (s *walsender) hear(st replication.Status) {
	if s.ended {
		return
	}
	s.replyAt, s.asked = time.Now(), false
	if st.FlushLSN > s.pg.walEndLSN {
		s.conn.w.failf("%s confirmed %s, but the WAL ends at %s", s.conn.p.name, st.FlushLSN, s.pg.walEndLSN)
	}
	s.pg.confirm(st.FlushLSN)
	if st.ReplyRequested {
		s.keepalive(false)
	}
}

// pgStream is a pgConn that streams.
type pgStream struct{ *pgConn }

// Buffered implements forwarder.Stream.
func (c pgStream) Buffered() bool {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	return len(c.sender.frames) > 0
}

// PID implements forwarder.Stream.
func (c pgStream) PID() uint32 { return c.sender.pid }

// Receive implements forwarder.Stream.
func (c pgStream) Receive(deadline time.Time) (replication.Frame, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		if err := c.p.pass(); err != nil {
			return replication.Frame{}, err
		}
		c.w.mu.Lock()
		if s := c.sender; len(s.frames) > 0 {
			f := s.frames[0]
			s.frames = s.frames[1:]
			if f.Kind == replication.FrameData {
				if s.unread--; s.unread == unreadMax/2 {
					c.w.after(c.latency(), s.work)
				}
			}
			c.w.mu.Unlock()
			return f, nil
		}
		err := c.broken
		c.w.mu.Unlock()
		if err != nil {
			return replication.Frame{}, err
		}
		if time.Until(deadline) <= 0 {
			return replication.Frame{Kind: replication.FrameNone}, nil
		}
		select {
		case <-c.change:
		case <-timer.C:
		}
	}
}

// SendStatus implements forwarder.Stream.
func (c pgStream) SendStatus(st replication.Status, _ time.Time) error {
	if err := c.p.pass(); err != nil {
		return err
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if c.broken != nil {
		return c.broken
	}
	c.toServer.send(c.latency(), func() { c.sender.hear(st) })
	return nil
}

// Finish implements forwarder.Stream.
func (c pgStream) Finish(limit time.Duration) error {
	if err := c.p.pass(); err != nil {
		return err
	}
	c.w.mu.Lock()
	done := make(chan struct{})
	c.toServer.send(c.latency(), func() {
		c.hangUp()
		delete(c.pg.conns, c.pgConn)
		c.toClient.send(c.latency(), func() { close(done) })
	})
	c.w.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		return errReset
	}
	return c.p.pass()
}

// Close implements forwarder.Stream.
func (c pgStream) Close() {
	if c.p.pass() != nil {
		return
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	c.vanish()
}
