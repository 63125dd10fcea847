package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/forwarder"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// pgServer is PostgreSQL as one process sees it.
type pgServer struct {
	pg       *postgres
	p        *process
	cutUntil time.Time
}

var (
	errReset   = fmt.Errorf("simulated network: %w", net.ErrClosed)
	errRefused = errors.New("simulated network: connection refused")
)

// sqlError is an answer of the server.
func sqlError(state, message string) error {
	return &pgconn.PgError{Severity: "FATAL", Code: state, Message: message}
}

// pgConn is one connection to PostgreSQL, for replication or for SQL.
type pgConn struct {
	pg     *postgres
	w      *world
	p      *process
	number int

	toServer, toClient *lane
	broken             error         // what the client finds
	change             chan struct{} // signalled when something arrived
	sender             *walsender
	streaming          bool // the client has the stream
}

// Connect implements forwarder.Server.
func (s *pgServer) Connect(ctx context.Context) (forwarder.Conn, error) { return s.dial(ctx) }

// Open implements forwarder.Server.
func (s *pgServer) Open(ctx context.Context) (forwarder.Admin, error) { return s.dial(ctx) }

func (s *pgServer) dial(ctx context.Context) (*pgConn, error) {
	w := s.pg.w
	c := &pgConn{pg: s.pg, w: w, p: s.p, change: make(chan struct{}, 1), toServer: &lane{w: w}, toClient: &lane{w: w}}
	if err := s.p.pass(); err != nil {
		return nil, err
	}
	w.mu.Lock()
	latency := w.between(200*time.Microsecond, 2*time.Millisecond)
	cut := time.Until(s.cutUntil)
	w.mu.Unlock()
	if cut > 0 {
		wait(ctx, min(cut, dialTimeout))
	}
	wait(ctx, latency)
	if err := errors.Join(s.p.pass(), ctx.Err()); err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !s.pg.up, time.Now().Before(s.cutUntil):
		return nil, errRefused
	case s.pg.stopping:
		return nil, sqlError("57P03", "the database system is shutting down")
	}
	s.pg.opened++
	c.number = s.pg.opened
	s.pg.conns[c] = true
	s.p.kills = append(s.p.kills, c.vanish)
	return c, nil
}

// connections are the open ones in the order in which they were made.
func (pg *postgres) connections() []*pgConn {
	return slices.SortedFunc(maps.Keys(pg.conns), func(a, b *pgConn) int { return cmp.Compare(a.number, b.number) })
}

// snap breaks the connection; the server knows at once, the client a moment later.
func (c *pgConn) snap() {
	if !c.pg.conns[c] {
		return
	}
	delete(c.pg.conns, c)
	c.hangUp()
	notice := c.w.between(time.Microsecond, 2*time.Millisecond)
	if stalled := time.Until(c.toClient.stalledUntil); stalled > 0 { // nothing gets through, nor does this
		c.toServer.items, c.toClient.items = nil, nil
		notice += stalled
	}
	c.toServer.snap()
	c.toClient.snap()
	c.w.after(notice, func() { c.fail(errReset) })
}

// cut lets nothing through between the process and PostgreSQL for a while.
func (s *pgServer) cut(d time.Duration) {
	s.pg.w.tracef("%s: nothing gets through to postgres for %s", s.p.name, d)
	s.cutUntil = time.Now().Add(d)
	for _, c := range s.pg.connections() {
		if c.p == s.p {
			c.toServer.stall(d)
			c.toClient.stall(d)
		}
	}
}

// end lets the server end the connection with an error.
func (c *pgConn) end(err error) {
	if !c.pg.conns[c] {
		return
	}
	delete(c.pg.conns, c)
	c.hangUp()
	c.toClient.send(c.latency(), func() { c.fail(err) })
	c.toServer.broken = true
}

// hangUp frees the slot.
func (c *pgConn) hangUp() {
	if c.sender == nil {
		return
	}
	c.sender.ended = true
	if c.pg.holder == c.sender {
		c.pg.holder = nil
	}
}

func (c *pgConn) fail(err error) {
	if c.broken == nil {
		c.broken = err
	}
	c.signal()
}

func (c *pgConn) signal() {
	select {
	case c.change <- struct{}{}:
	default:
	}
}

// vanish is what becomes of the connection when its process is gone: the server reads
// what was sent, and then its end.
func (c *pgConn) vanish() {
	c.broken = cmp.Or(c.broken, errReset)
	c.toClient.broken = true
	c.toServer.send(c.latency(), func() {
		delete(c.pg.conns, c)
		c.hangUp()
	})
	c.toServer.broken = true
}

func (c *pgConn) latency() time.Duration {
	if c.w.chance(50) {
		return c.w.between(time.Millisecond, 20*time.Millisecond)
	}
	return c.w.between(10*time.Microsecond, 300*time.Microsecond)
}

// Close implements forwarder.Conn and forwarder.Admin; a walsender is closed with its stream.
func (c *pgConn) Close() {
	if c.p.pass() != nil {
		return
	}
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	if !c.streaming {
		c.vanish()
	}
}

// query asks the server something.
func query[T any](ctx context.Context, c *pgConn, answer func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if err := c.p.pass(); err != nil {
		return none, err
	}
	done := make(chan result, 1)
	c.w.mu.Lock()
	if err := c.broken; err != nil {
		c.w.mu.Unlock()
		return none, err
	}
	c.toServer.send(c.latency(), func() {
		if !c.pg.conns[c] {
			return // the server has ended it
		}
		var r result
		r.value, r.err = answer()
		c.toClient.send(c.latency(), func() { done <- r })
	})
	c.w.mu.Unlock()
	var r result
	for waiting := true; waiting; {
		select {
		case r = <-done:
			waiting = false
		case <-ctx.Done():
			r.err, waiting = ctx.Err(), false
		case <-c.change:
			c.w.mu.Lock()
			if c.broken != nil && len(done) == 0 {
				r.err, waiting = c.broken, false
			}
			c.w.mu.Unlock()
		}
	}
	if err := c.p.pass(); err != nil {
		return none, err
	}
	return r.value, r.err
}

// IdentifySystem implements forwarder.Conn.
func (c *pgConn) IdentifySystem(ctx context.Context) (replication.System, error) {
	return query(ctx, c, func() (replication.System, error) {
		return replication.System{Identifier: systemID, Timeline: c.pg.timeline, WALEndLSN: c.pg.walEndLSN, Database: "app"}, nil
	})
}

// TimelineHistory implements forwarder.Conn.
func (c *pgConn) TimelineHistory(ctx context.Context, _ uint32) ([]byte, error) {
	return query(ctx, c, func() ([]byte, error) { return []byte(c.pg.history), nil })
}

// SlotState implements forwarder.Conn.
func (c *pgConn) SlotState(ctx context.Context, slot string) (replication.SlotState, error) {
	return query(ctx, c, func() (replication.SlotState, error) {
		return replication.SlotState{
			Exists: slot == slotName, Plugin: "pgoutput", Database: "app", WALStatus: "reserved",
			Active: c.pg.holder != nil, ConfirmedLSN: c.pg.confirmedLSN,
		}, nil
	})
}

// ServerVersion implements forwarder.Conn.
func (c *pgConn) ServerVersion() string { return fmt.Sprint(c.pg.version) }

// Start implements forwarder.Conn.
func (c *pgConn) Start(ctx context.Context, opts replication.StartOptions) (forwarder.Stream, error) {
	_, err := query(ctx, c, func() (bool, error) {
		if c.pg.holder != nil {
			return false, sqlError("55006", "replication slot is active")
		}
		c.startSending(max(opts.StartLSN, c.pg.confirmedLSN))
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	c.streaming = true
	return pgStream{c}, nil
}

// Preflight implements forwarder.Admin.
func (c *pgConn) Preflight(ctx context.Context) (provision.Findings, error) {
	return query(ctx, c, func() (provision.Findings, error) { return nil, nil })
}

// WALEnd implements forwarder.Admin.
func (c *pgConn) WALEnd(ctx context.Context) (pglogrepl.LSN, error) {
	return query(ctx, c, func() (pglogrepl.LSN, error) { return c.pg.walEndLSN, nil })
}

// TableOID implements forwarder.Admin.
func (c *pgConn) TableOID(ctx context.Context) (uint32, error) {
	return query(ctx, c, func() (uint32, error) { return outboxOID, nil })
}

// Kinship implements forwarder.Admin.
func (c *pgConn) Kinship(ctx context.Context, rel decode.Relation) (forwarder.Kinship, error) {
	return query(ctx, c, func() (forwarder.Kinship, error) { return forwarder.Kinship{Same: rel.OID == outboxOID}, nil })
}

// Slot implements forwarder.Admin.
func (c *pgConn) Slot(ctx context.Context) (*replication.SlotInfo, error) {
	return query(ctx, c, func() (*replication.SlotInfo, error) {
		return &replication.SlotInfo{Name: slotName, Type: "logical", Active: c.pg.holder != nil}, nil
	})
}

// SlotHolder implements forwarder.Admin.
func (c *pgConn) SlotHolder(ctx context.Context) (forwarder.Holder, bool, error) {
	h, err := query(ctx, c, func() (*forwarder.Holder, error) {
		h := c.pg.holder
		if h == nil {
			return nil, nil //nolint:nilnil // nobody
		}
		return &forwarder.Holder{PID: h.pid, Application: "outbox-cdc", Address: "local", ReplyTime: h.replyAt.String(), Waiting: true}, nil
	})
	if err != nil || h == nil {
		return forwarder.Holder{}, false, err
	}
	return *h, true, nil
}

// EndWalsender implements forwarder.Admin.
func (c *pgConn) EndWalsender(ctx context.Context, pid uint32) (bool, error) {
	return query(ctx, c, func() (bool, error) {
		h := c.pg.holder
		if h == nil || h.pid != pid {
			return false, nil
		}
		c.w.tracef("postgres: %s ends walsender %d of %s", c.p.name, pid, h.conn.p.name)
		h.conn.end(sqlError("57P01", "terminating connection due to administrator command"))
		return true, nil
	})
}

// WalsenderBusy implements forwarder.Admin.
func (c *pgConn) WalsenderBusy(ctx context.Context, _ uint32) (bool, error) {
	return query(ctx, c, func() (bool, error) { return false, nil })
}

// OpenDeadLetters implements forwarder.Admin.
func (c *pgConn) OpenDeadLetters(ctx context.Context) (int64, error) {
	return query(ctx, c, func() (int64, error) { return 0, nil })
}
