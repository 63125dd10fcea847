package forwarder

import (
	"context"
	"errors"
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/request"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// lettersAtOnce is how many dead letters are read at once; their events, one by one.
const (
	lettersAtOnce = 100
	eventsAtOnce  = 16
)

// Reason codes of letters that were not published once more.
const (
	reasonDuplicate  = "duplicate"  // the stream took the message for one that it has
	reasonUnreadable = "unreadable" // the kept event cannot be read
)

// letterJob works on dead letters.
type letterJob struct {
	*job
	store  *deadletter.Store
	filter deadletter.Filter
	extras []string
	// seen are letters that were spoken of with their head.
	seen map[int64]bool
}

// letters publishes dead letters again, each with those that wait behind it, in order.
func (j *job) letters(ctx context.Context) error {
	s := j.request.Selection
	l := &letterJob{job: j, store: deadletter.NewStore(j.admin, j.cfg.Table.Schema), seen: map[int64]bool{}}
	l.filter = deadletter.Filter{SourceName: j.cfg.Source, IDs: s.Letters, EventIDs: s.EventIDs, ReasonCode: s.Reason, OpenOnly: true, Limit: lettersAtOnce}
	if s.Aggregate != nil {
		l.filter.Aggregate = deadletter.Aggregate{Type: s.Aggregate.Type, ID: s.Aggregate.ID}
	}
	for _, extra := range j.cfg.Columns.Extra() {
		l.extras = append(l.extras, extra.Name)
	}
	j.turn.inSequence = true
	if err := j.begin(ctx); err != nil {
		return err
	}
	for {
		l.filter.AfterID = j.request.Progress.Letter
		list, err := l.store.List(ctx, l.filter)
		if err != nil || len(list) == 0 {
			return err //nolint:wrapcheck // it says what was read
		}
		for _, letter := range list {
			if err := l.letter(ctx, letter); err != nil {
				return err
			}
			j.request.Progress.Letter = letter.ID
			if err := j.saveNowAndThen(ctx); err != nil {
				return err
			}
		}
	}
}

// letter works on one of the selection.
func (l *letterJob) letter(ctx context.Context, letter deadletter.Letter) error {
	if l.seen[letter.ID] {
		return nil
	}
	if letter.HeldBehind == nil {
		return l.release(ctx, letter)
	}
	heads, err := l.store.List(ctx, deadletter.Filter{IDs: []int64{*letter.HeldBehind}, OpenOnly: true})
	if err != nil {
		return err //nolint:wrapcheck // it says what was read
	}
	if len(heads) == 0 {
		return l.release(ctx, letter) // what it waited for is resolved
	}
	p := &l.request.Progress
	p.Selected++
	p.Refuse(request.Refusal{EventID: text(letter.EventID), Code: deadletter.ReasonHeld, Reason: fmt.Sprintf(
		"it waits behind dead letter %d (event %s): retry that one, and this follows it", heads[0].ID, text(heads[0].EventID))})
	return nil
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// release publishes a letter, unless it is to be discarded, and those behind it, and notes
// all in one transaction. What it counts is saved with that transaction, too: before it,
// progress stays as it was.
func (l *letterJob) release(ctx context.Context, head deadletter.Letter) error {
	done := l.request.Progress // to be: with this head and those behind it
	release := deadletter.Release{Head: head.ID, Resolution: deadletter.ResolutionRetried}
	if l.request.Kind == request.KindDiscard {
		release.Resolution = deadletter.ResolutionDiscarded + l.request.Selection.ReasonText
	} else {
		outcomes, err := l.publishLetters(ctx, []deadletter.Letter{head}, &done.Sequence)
		if err != nil {
			return err
		}
		count(&done, outcomes[0])
		if !outcomes[0].stored {
			l.request.Progress = done
			return l.refused(ctx, head, outcomes[0])
		}
	}
	waiting := deadletter.Filter{HeldBehind: head.ID, OpenOnly: true, AfterID: head.ID, Limit: eventsAtOnce}
	for more := false; ; {
		held, err := l.store.List(ctx, waiting)
		if err != nil {
			return err //nolint:wrapcheck // it says what was read
		}
		if more && len(held) == 0 {
			return fault.NewOperator("held-order", fmt.Sprintf("events wait behind dead letter %d that came before it", head.ID), "look at column held_behind: somebody has changed it", nil)
		}
		outcomes, err := l.publishLetters(ctx, held, &done.Sequence)
		if err != nil {
			return err
		}
		for i, out := range outcomes {
			count(&done, out)
			waiting.AfterID, l.seen[held[i].ID] = held[i].ID, true
			if out.stored {
				release.Published = append(release.Published, held[i].ID)
				continue
			}
			release.Stuck, release.StuckOnceMore = held[i].ID, out.refusal != nil
			release.StuckCode, release.StuckReason = whyNot(out)
			if err := l.skipBehind(ctx, &done, head.ID, held[i].ID); err != nil {
				return err
			}
		}
		if len(held) > 0 && release.Stuck == 0 {
			continue
		}
		if more, err = l.note(ctx, release, head, done); err != nil || !more {
			return err
		}
	}
}

// note writes down what was done, with the progress.
func (l *letterJob) note(ctx context.Context, release deadletter.Release, head deadletter.Letter, done request.Progress) (more bool, err error) {
	saved := *l.request
	saved.Progress = done
	saved.Progress.Letter = head.ID
	more, err = l.store.Release(ctx, release, func(tx replication.Tx) error {
		ours, err := l.job.store.SaveProgressIn(ctx, tx, &saved)
		if err == nil && !ours {
			err = errNotOurs
		}
		return err
	})
	if errors.Is(err, deadletter.ErrHeadResolved) {
		return false, nil // by somebody else meanwhile
	}
	if err == nil && !more {
		l.request.Progress = saved.Progress
	}
	return more, err
}

// skipBehind counts those that go on waiting.
func (l *letterJob) skipBehind(ctx context.Context, done *request.Progress, head, stuck int64) error {
	return l.store.Each(ctx, deadletter.Filter{HeldBehind: head, OpenOnly: true, AfterID: stuck}, func(letter deadletter.Letter) error {
		l.seen[letter.ID] = true
		done.Selected++
		done.Refuse(request.Refusal{EventID: text(letter.EventID), Code: deadletter.ReasonHeld, Reason: fmt.Sprintf("it waits behind dead letter %d", stuck)})
		return nil
	})
}

// refused notes that a head could not be published once more, and counts those behind it.
func (l *letterJob) refused(ctx context.Context, head deadletter.Letter, out outcome) error {
	if err := l.skipBehind(ctx, &l.request.Progress, head.ID, head.ID); err != nil {
		return err
	}
	if out.refusal == nil {
		return nil
	}
	return l.store.Refuse(ctx, head.ID, out.refusal.Code, out.refusal.Reason)
}

func whyNot(out outcome) (code, reason string) {
	if out.refusal != nil {
		return out.refusal.Code, out.refusal.Reason
	}
	return reasonDuplicate, "the stream took its message id for a duplicate"
}

// publishLetters publishes letters in order, up to the first that is not stored. sequence
// follows the stream: the progress keeps its own until they are resolved, since they may have to be found again.
func (l *letterJob) publishLetters(ctx context.Context, letters []deadletter.Letter, sequence *uint64) ([]outcome, error) {
	p := &l.request.Progress
	before := p.Sequence
	defer func() {
		*sequence = max(*sequence, p.Sequence)
		p.Sequence = before
	}()
	var events []*decode.Event
	unreadable := ""
	for _, letter := range letters {
		e, err := l.store.Event(ctx, letter.ID, l.extras)
		if replication.SQLState(err) != "" || ctx.Err() != nil {
			return nil, err //nolint:wrapcheck // it names the letter
		}
		if err != nil || e == nil {
			unreadable = fmt.Sprintf("dead letter %d is gone", letter.ID)
			if err != nil {
				unreadable = err.Error()
			}
			break
		}
		events = append(events, e)
	}
	var all []outcome
	for len(events) > 0 {
		answer, err := l.ask(ctx, events)
		if err != nil {
			return nil, err
		}
		all, events = append(all, answer.outcomes...), events[len(answer.outcomes):]
		if n := len(all); n > 0 && !all[n-1].stored {
			return all, nil
		}
		after := p.Sequence
		p.Sequence = before
		if err := l.saveNowAndThen(ctx); err != nil { // is it still wanted?
			return nil, err
		}
		p.Sequence = after
	}
	if unreadable != "" {
		letter := letters[len(all)]
		all = append(all, outcome{refusal: &request.Refusal{EventID: text(letter.EventID), Code: reasonUnreadable, Reason: unreadable}})
	}
	return all, nil
}
