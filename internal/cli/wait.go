package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/internal/audit"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

func waitCommand() command {
	return command{
		name: "wait", usage: "return once all that is committed now is in the stream",
		long: "Exit code 0 once every event that was committed before the command began is in the stream or a\n" +
			"dead letter; 1 after --timeout, with a line that says what holds it up. It writes a logical\n" +
			"message without content and waits until the slot has confirmed it. Where no forwarder runs it\n" +
			"is done at once if the slot has nothing to send; else it waits for a forwarder.",
		example: "outbox-cdc wait --timeout 30s",
		settings: []setting{
			{name: "timeout", value: "DURATION", def: "30s", usage: "how long to wait", check: durationBetween(time.Millisecond, 365*24*time.Hour), group: groupCommand},
			{name: "messages", usage: `the forwarder runs with --messages: logical messages with prefix "outbox" count too`, group: groupCommand},
			jsonSetting(),
		},
		run: runWait,
	}
}

// waitDocument is the JSON of wait.
type waitDocument struct {
	Delivered         bool    `json:"delivered"`
	LSN               string  `json:"lsn"` // what the slot has to confirm
	ConfirmedFlushLSN *string `json:"confirmed_flush_lsn"`
	WaitedSeconds     float64 `json:"waited_seconds"`
	Reason            string  `json:"reason,omitempty"` // what holds it up
}

func runWait(ctx context.Context, in *invocation) error {
	names, err := in.names()
	if err != nil {
		return err
	}
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		pg, err := provision.Inspect(ctx, admin, names)
		if err != nil {
			return err
		}
		if pg.Server.InRecovery {
			return in.onStandby()
		}
		if pg.Table == nil && !names.Messages {
			return fault.NewOperator("table-missing", fmt.Sprintf("table %s does not exist in database %s: nothing of it could be delivered", names.Table, pg.Server.Database),
				"give --table the outbox table; outbox-cdc setup creates it", nil)
		}
		if err := provision.SlotFault(pg, names); err != nil {
			return err
		}
		return in.wait(ctx, admin, names)
	})
}

// onStandby is the refusal of commands that must ask the primary.
func (in *invocation) onStandby() error {
	return fault.NewTransient("the server is a standby (in recovery)", "give --database-url the primary, or all hosts separated by commas", nil)
}

func (in *invocation) wait(ctx context.Context, admin *replication.Admin, names provision.Names) error {
	began := time.Now()
	markLSN, err := audit.Mark(ctx, admin)
	if err != nil {
		return err
	}
	slot, delivered, err := in.awaitDelivery(ctx, admin, names, markLSN)
	if err != nil {
		return err
	}
	document := waitDocument{Delivered: delivered, LSN: markLSN.String(), WaitedSeconds: time.Since(began).Seconds()}
	var failure *fault.Error
	if slot != nil {
		document.ConfirmedFlushLSN = slot.ConfirmedFlushLSN
	}
	if !delivered {
		if failure, err = in.whyNotDelivered(ctx, admin, names, slot); err != nil {
			return err
		}
		document.Reason = failure.What
	}
	if in.on("json") {
		if err := printJSON(in.stdout, document); err != nil {
			return err
		}
	}
	if failure != nil {
		return failure
	}
	return nil
}

// awaitDelivery waits for the slot. Where nobody reads it, it looks once whether the slot
// has anything to send at all.
func (in *invocation) awaitDelivery(ctx context.Context, admin *replication.Admin, names provision.Names, markLSN pglogrepl.LSN) (*replication.SlotInfo, bool, error) {
	timeout := in.duration("timeout")
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	slot, delivered, err := audit.AwaitConfirmed(ctx, admin, names.Slot, markLSN, timeout, func(s *replication.SlotInfo) bool { return !s.Active })
	if err != nil || delivered || slot == nil || slot.Active || slot.Lost() {
		return slot, delivered, err
	}
	errSome := errors.New("the slot has an event to send")
	err = audit.EachUnconfirmed(limited, admin, names, markLSN, func([]byte) error { return errSome })
	switch {
	case err == nil:
		return slot, true, nil
	case ctx.Err() != nil:
		return slot, false, ctx.Err()
	case limited.Err() != nil:
		return slot, false, nil
	case !errors.Is(err, errSome) && replication.SQLState(err) != stateObjectInUse:
		return slot, false, err
	}
	deadline, _ := limited.Deadline()
	return audit.AwaitConfirmed(ctx, admin, names.Slot, markLSN, time.Until(deadline), nil)
}

// stateObjectInUse is the SQLSTATE of a slot that somebody else holds.
const stateObjectInUse = "55006"

// whyNotDelivered says what holds delivery up, as far as the server can tell.
func (in *invocation) whyNotDelivered(ctx context.Context, admin *replication.Admin, names provision.Names, slot *replication.SlotInfo) (*fault.Error, error) {
	pg, err := provision.Inspect(ctx, admin, names)
	if err != nil {
		return nil, err
	}
	var operator *fault.Error
	if errors.As(provision.SlotFault(pg, names), &operator) {
		return operator, nil // it was dropped or lost meanwhile
	}
	after := fmt.Sprintf("not all was delivered within %s", formatDuration(in.duration("timeout")))
	if slot == nil || !slot.Active {
		return fault.NewTransient(after+": no forwarder holds slot "+names.Slot, "outbox-cdc start --slot "+names.Slot, nil), nil
	}
	return fault.NewTransient(fmt.Sprintf("%s: slot %s has confirmed %s and is behind by %s", after, names.Slot, textOr(slot.ConfirmedFlushLSN, "nothing"), bytesOr(slot.LagBytes, "?")),
		"/readyz and the log of the forwarder say what it waits for; outbox-cdc status names the age of the oldest undelivered row", nil), nil
}
