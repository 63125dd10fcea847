package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// Apply makes what is missing, in order, and calls report after each part. It does
// nothing when something differs: the error then names the first difference. What another
// setup made in the meantime is no error.
func (p *Plan) Apply(ctx context.Context, report func(Action)) error {
	if err := p.Differences.Fault(); err != nil {
		return err
	}
	for i := range p.Actions {
		action := &p.Actions[i]
		if action.Result == ResultMissing {
			if err := action.apply(ctx); err != nil && !alreadyThere(err) {
				return err
			}
			action.Result = ResultCreated
		}
		report(*action)
	}
	again, err := MakePlan(ctx, p.admin, p.nats, p.opts)
	if err != nil {
		return err
	}
	return again.Differences.Fault()
}

// SQLSTATEs of a thing that exists already: another setup was faster.
const (
	stateDuplicateObject = "42710"
	stateUniqueViolation = "23505" // the same, seen at the very same moment in the catalog
	stateLockTimeout     = "55P03"
	stateCancelled       = "57014"
)

func alreadyThere(err error) bool {
	state := replication.SQLState(err)
	return state == stateDuplicateObject || state == stateUniqueViolation
}

// CreateSlot makes a slot. When an open transaction holds it up for longer than timeout, the
// error names that transaction, and nothing is left behind.
func CreateSlot(ctx context.Context, admin *replication.Admin, name string, failover bool, timeout time.Duration) error {
	_, err := admin.CreateSlot(ctx, name, failover, timeout)
	if err == nil {
		return nil
	}
	state := replication.SQLState(err)
	if (state != stateLockTimeout && state != stateCancelled) || ctx.Err() != nil {
		return err
	}
	open, listErr := admin.OpenTransactions(ctx)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	if len(open) == 0 {
		return fault.NewTransient(fmt.Sprintf("slot %s was not made within %s: creating it waited for an open transaction", name, timeout), "run the same command again", nil)
	}
	return fault.NewTransient(
		fmt.Sprintf("slot %s was not made within %s: creating it waits for an open transaction, %s", name, timeout, open[0]),
		fmt.Sprintf("end that transaction (%s), or give a longer --timeout; nothing was left behind", open[0].EndSQL()), nil)
}

// NeedsSlot reports whether Apply will make the slot.
func (p *Plan) NeedsSlot() bool {
	for _, a := range p.Actions {
		if a.Part == PartSlot && a.Result == ResultMissing {
			return true
		}
	}
	return false
}
