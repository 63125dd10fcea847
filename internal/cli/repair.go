package cli

import (
	"context"

	"github.com/outbox-cdc/outbox-cdc/internal/audit"
	"github.com/outbox-cdc/outbox-cdc/internal/request"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// repairPortion is how many events one request names.
const repairPortion = 1000

// repair publishes what is missing until nothing is, and returns the last result. What was
// stored before and is gone, the stream may take for a duplicate; since it is known not to
// be there, it is then sent once more under another message id.
func (in *invocation) repair(ctx context.Context, servers audit.Servers, cfg audit.Config, found *audit.Result) (audit.Document, error) {
	var repaired int64
	for _, freshIDs := range []bool{false, true} {
		if found.MissingCount == 0 {
			break
		}
		report, err := in.publishMissing(ctx, servers.Slot, found, freshIDs)
		if err != nil {
			return audit.Document{}, err
		}
		repaired += report.Stored
		again, err := audit.Verify(ctx, servers, cfg)
		if err != nil {
			return audit.Document{}, err //nolint:wrapcheck // it is the user's sentence already, or explain makes it one
		}
		if err := found.Replace(again); err != nil {
			return audit.Document{}, err //nolint:wrapcheck // it names the file
		}
		if report.Swallowed == 0 {
			break
		}
	}
	found.Document.Repaired = &repaired
	return found.Document, nil
}

// publishMissing lets the holder of the slot publish what is missing, in the order of
// the table.
func (in *invocation) publishMissing(ctx context.Context, admin *replication.Admin, found *audit.Result, freshIDs bool) (request.Report, error) {
	var total request.Report
	var ids []string
	submit := func() error {
		if len(ids) == 0 {
			return nil
		}
		r, err := in.carryOut(ctx, admin, request.KindRepair, request.Selection{
			Target: in.selectionTarget(), EventIDs: ids, FreshIDs: freshIDs,
		}, int64(len(ids)))
		if err != nil {
			return err
		}
		for _, refusal := range r.Progress.Refusals {
			if err := printf(in.stderr, "refused %s (%s): %s\n", refusal.EventID, refusal.Code, refusal.Reason); err != nil {
				return err
			}
		}
		total.Stored += r.Progress.Stored
		total.Swallowed += r.Progress.Swallowed
		ids = ids[:0]
		return nil
	}
	err := found.EachMissing(func(eventID string) error {
		ids = append(ids, eventID)
		if len(ids) < repairPortion {
			return nil
		}
		return submit()
	})
	if err == nil {
		err = submit()
	}
	return total, err
}
