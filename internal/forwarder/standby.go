package forwarder

import (
	"context"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

const (
	// standbyPoll is how often a standby tries to get the slot, half to one and a half times.
	standbyPoll = 300 * time.Millisecond
	// standbyLook is how often it looks at the leader.
	standbyLook = time.Second
)

// standby waits for a slot that somebody else holds.
type standby struct {
	reader *reader
	conn   Conn

	admin      Admin
	lookAt     time.Time
	leader     Holder
	silentFrom time.Time // since when reply_time has not changed, on our own clock
	blindPID   uint32    // the walsender whose silence we may not see
	endedPID   uint32    // the walsender that was told to end
	sawBusy    bool      // the walsender was at work at some look since then
}

// wait returns after a short while, for the next try. An error means that the
// connection has to be made anew.
func (s *standby) wait(ctx context.Context) error {
	now := time.Now()
	if !now.Before(s.lookAt) {
		s.lookAt = now.Add(standbyLook)
		if err := s.look(ctx, now); err != nil {
			s.close()
			return err
		}
	}
	d := standbyPoll/2 + time.Duration(s.reader.random()*float64(standbyPoll))
	if !pause(ctx, d) {
		s.close()
		return ctx.Err()
	}
	return nil
}

func (s *standby) close() {
	if s.admin != nil {
		s.admin.Close()
		s.admin = nil
	}
}

// look says who the leader is and takes its walsender away when it is silent.
func (s *standby) look(ctx context.Context, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, catalogTimeout)
	defer cancel()
	r := s.reader
	if s.admin == nil {
		admin, err := r.server.Open(ctx)
		if err != nil {
			return err
		}
		s.admin = admin
	}
	h, held, err := s.admin.SlotHolder(ctx)
	if err != nil {
		return err
	}
	if !held {
		return nil
	}
	r.machine.setPostgres(StateStandby, "slot "+r.cfg.Slot+" is held by "+h.String(), now)
	if h.PID != s.leader.PID || h.ReplyTime != s.leader.ReplyTime {
		s.silentFrom, s.sawBusy = now, false
	}
	s.sawBusy = s.sawBusy || !h.Waiting
	s.leader = h
	if r.cfg.TakeoverAfter > 0 && h.ReplyTime == "" && s.blindPID != h.PID {
		s.blindPID = h.PID
		r.log.Warn("this role cannot see whether the leader is silent: a frozen one is not taken over from before wal_sender_timeout",
			"holder", h.String(), "hint", "GRANT pg_read_all_stats TO the role of --database-url")
	}
	if r.cfg.TakeoverAfter <= 0 || h.ReplyTime == "" || s.sawBusy || now.Sub(s.silentFrom) < r.cfg.TakeoverAfter {
		return nil
	}
	ended, err := s.admin.EndWalsender(ctx, h.PID)
	if replication.SQLState(err) == "42501" {
		r.log.Warn("the leader is silent, but this role may not end its walsender", "holder", h.String(), "error", err.Error())
		s.silentFrom = now
		return nil
	}
	if err != nil {
		return fault.NewTransient("", "", err)
	}
	if !ended {
		s.silentFrom = now
		return nil
	}
	// While its client takes nothing, a walsender hangs in sending its farewell until it is
	// told a second time: silentFrom stays, so that the next look does.
	if s.endedPID != h.PID {
		s.endedPID = h.PID
		r.log.Warn("ended the silent walsender of the slot to take over", "slot", r.cfg.Slot, "holder", h.String(),
			"silent", now.Sub(s.silentFrom).Round(time.Second).String())
	}
	return nil
}
