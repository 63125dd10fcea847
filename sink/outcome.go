package sink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

// judge turns the cause of the last failure into a wait or an error.
func (p *Publisher) judge(now time.Time) error {
	c := p.seq.cause
	switch c.kind {
	case causeNone, causeGap, causeDuplicates, causeDisconnected:
		return nil
	case causeNobody:
		p.wait(now, fmt.Errorf("no stream answers on the subjects of stream %q", p.cfg.Stream))
		return nil
	case causeTimeout:
		return p.judgeTimeout(now)
	case causeRefused:
	}
	row := fault.JetStreamRow(strconv.Itoa(c.code))
	switch {
	case c.code == codeOtherStream && !p.otherStream:
		// Another stream has the subject. Whether ours has lost it (then this event is poison)
		// is known once it has been read again; if not, somebody stands between us and it.
		p.otherStream = true
		return nil
	case row.Resync:
		switch {
		case p.seq.fruitless >= fruitlessRounds:
			p.retryAt = now.Add(fruitlessPause)
		case c.code != codeWrongLastSeq && p.seq.head == p.seq.headAtSync:
			// At once is for a round that came further: an id may stay "in process" for minutes.
			p.wait(now, fmt.Errorf("stream %q refuses messages with error %d: %s", p.cfg.Stream, c.code, row.Title))
		}
		return nil
	case row.Class == fault.Poison && c.msg != nil:
		code := PoisonRefused
		if c.code == codeMsgTooLarge {
			code = PoisonTooLarge
		}
		p.poisonedAt(c.number, &Poison{
			Code: code, Reason: fmt.Sprintf("stream %q refused it with error %d: %s", p.cfg.Stream, c.code, row.Title),
			EventID: c.msg.EventID, Position: c.msg.Position, Subject: c.msg.Subject,
		})
		return nil
	case row.Class == fault.Operator || row.Class == fault.Poison:
		return fault.NewOperator("stream-refuses", fmt.Sprintf("stream %q refused a message with error %d: %s", p.cfg.Stream, c.code, row.Title), row.Hint, nil)
	default:
		p.wait(now, fmt.Errorf("stream %q refuses messages with error %d: %s%s", p.cfg.Stream, c.code, row.Title, inBrackets(row.Hint)))
		return nil
	}
}

// inBrackets is a next step as the end of a sentence; empty without one.
func inBrackets(hint string) string {
	if hint == "" {
		return ""
	}
	return " (" + hint + ")"
}

// JetStream error codes that are looked at more closely than their rows.
const (
	codeMsgTooLarge          = 10054
	codeOtherStream          = 10060
	codeNotEnabledForAccount = 10039
)

// poisonedAt takes a message and all behind it back: what comes before it is still
// published, then Step returns the poison.
func (p *Publisher) poisonedAt(number uint64, poison *Poison) {
	p.poison = poison
	p.seq.truncate(number)
}

// judgeTimeout looks whether a missing permission explains the silence: NATS says
// so only outside of the publish.
func (p *Publisher) judgeTimeout(now time.Time) error {
	defer p.leaveRefused()
	if p.broker != nil {
		if at, refused := p.broker.AsyncError(); errors.Is(refused, nats.ErrPermissionViolation) && now.Sub(at) < 2*p.cfg.AckTimeout {
			err := fmt.Errorf("NATS refuses: %w", refused)
			if !p.everOpen {
				return fault.NewOperator("nats-permission", "publish to stream \""+p.cfg.Stream+"\"",
					"allow this user to publish to the stream's subjects and to subscribe to _INBOX.>", err)
			}
			p.wait(now, err)
			return nil
		}
	}
	p.wait(now, fmt.Errorf("stream %q did not answer within %s (if it goes on, the log of nats-server tells why: after a full disk it has to be restarted)", p.cfg.Stream, p.cfg.AckTimeout))
	return nil
}

// leaveRefused gives up a connection on which something was not permitted, once nothing
// comes back on it: the server has dropped our subscriptions then, for good, and says what
// it refuses only once to each connection.
func (p *Publisher) leaveRefused() {
	if p.broker == nil {
		return
	}
	if _, refused := p.broker.AsyncError(); errors.Is(refused, nats.ErrPermissionViolation) {
		p.Close()
	}
}

// wait notes why nothing goes out and when to try again.
func (p *Publisher) wait(now time.Time, why error) {
	p.condition = why
	p.retryAt = now.Add(time.Duration(float64(p.backoff.NextBackOff()) * (0.7 + 0.6*p.cfg.Random())))
}

// waitOrFail sorts a failed request or connection attempt.
func (p *Publisher) waitOrFail(ctx context.Context, now time.Time, err error) error {
	if ctx.Err() != nil {
		return nil // the caller knows that it is stopping
	}
	var unusable *StreamUnusableError
	if errors.As(err, &unusable) {
		return fault.NewOperator("stream-unusable", unusable.Error(), unusable.Hint, nil)
	}
	if code := ErrorCode(err); code != 0 {
		row := fault.JetStreamRow(strconv.Itoa(code))
		// JetStream that is taken away from a running forwarder is waited for like a right: a
		// server whose disk is full says the same.
		if row.Class == fault.Operator && (code != codeNotEnabledForAccount || !p.limits.subjectsKnown) {
			return fault.NewOperator("jetstream", row.Title, row.Hint, err)
		}
		err = fmt.Errorf("%w%s", err, inBrackets(row.Hint))
	}
	if NoJetStream(err) {
		err = fmt.Errorf("%w (%s)", err, NoJetStreamHint)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		defer p.leaveRefused()
		// Nobody answers what was not allowed to be asked or to be heard.
		if at, refused := p.broker.AsyncError(); errors.Is(refused, nats.ErrPermissionViolation) && now.Sub(at) < 2*apiTimeout {
			err = fmt.Errorf("%w: NATS refuses: %w", err, refused)
			if !p.limits.subjectsKnown { // the stream could never be read
				return fault.NewOperator("nats-permission", "", "allow this user to publish to $JS.API.> and the stream's subjects, and to subscribe to _INBOX.>", err)
			}
		}
	}
	p.wait(now, err)
	return nil
}

// NoJetStream tells whether a request failed since nobody takes requests to JetStream.
func NoJetStream(err error) bool { return errors.Is(err, nats.ErrNoResponders) }

// NoJetStreamHint is the next step then.
const NoJetStreamHint = "JetStream is off on this nats-server, or the one that has it is not connected to it"
