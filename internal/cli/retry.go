package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/request"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

func runDeadLetterRetry(ctx context.Context, in *invocation) error {
	filter, err := in.needLetters()
	if err != nil {
		return err
	}
	selection := in.selection()
	selection.Reason, selection.All, selection.FreshIDs = filter.ReasonCode, in.on("all"), in.on("fresh-ids")
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		names, err := in.names()
		if err != nil {
			return err
		}
		if err := holdable(ctx, admin, names, in); err != nil {
			return err
		}
		selected, err := in.countLetters(ctx, admin, filter)
		if err != nil {
			return err
		}
		if selected == 0 && !selection.All {
			return in.noOpenLetter(filter)
		}
		return in.republish(ctx, admin, request.KindRetry, selection, selected)
	})
}

// noOpenLetter is the refusal where what was named is not there.
func (in *invocation) noOpenLetter(filter deadletter.Filter) error {
	return fault.NewOperator("dead-letter-missing", "there is no such open dead letter of source "+filter.SourceName,
		"outbox-cdc dead-letter list"+in.flags()+" shows those that are open", nil)
}

// countLetters counts the open letters of a filter.
func (in *invocation) countLetters(ctx context.Context, admin *replication.Admin, filter deadletter.Filter) (int64, error) {
	filter.OpenOnly = true
	n := int64(0)
	err := deadletter.NewStore(admin, in.table().Schema).Each(ctx, filter, func(deadletter.Letter) error {
		n++
		return nil
	})
	return n, err //nolint:wrapcheck // it says what was read
}

// discardHeads lets letters be discarded that others wait for: those are published before
// new events of their aggregates are.
func (in *invocation) discardHeads(ctx context.Context, admin *replication.Admin, heads []int64, reason string, document *discardDocument) error {
	names, err := in.names()
	if err != nil {
		return err
	}
	if err := holdable(ctx, admin, names, in); err != nil {
		return err
	}
	selection := request.Selection{Target: in.selectionTarget(), Letters: heads, ReasonText: reason}
	r, err := in.carryOut(ctx, admin, request.KindDiscard, selection, int64(len(heads)))
	if r == nil {
		return err
	}
	if err := in.printRefusals(r); err != nil {
		return err
	}
	document.Released = r.Progress.Stored
	open, countErr := in.countLetters(context.WithoutCancel(ctx), admin, deadletter.Filter{IDs: heads})
	document.Discarded += len(heads) - int(open)
	if err = errors.Join(err, countErr); err != nil {
		return err
	}
	if !r.Progress.Whole() {
		return fault.NewOperator("refused", fmt.Sprintf("%d events that waited behind what was discarded were not published: they are dead letters of their own, or wait for one", r.Progress.Selected-r.Progress.Stored),
			"outbox-cdc dead-letter list"+in.flags()+" shows them", nil)
	}
	return nil
}
