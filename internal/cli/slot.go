package cli

import (
	"context"
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

func slotCommand() command {
	return command{
		name: "slot", usage: "create, drop, show, advance: the replication slot",
		long:    "The slot remembers how far events were delivered, and holds back the WAL from there on.",
		example: "outbox-cdc slot show --slot outbox",
		commands: []command{
			{
				name: "create", usage: "make the slot; it starts at this moment",
				long: "Make the publication first: one that is made after its slot breaks the slot. Rows that were\n" +
					"committed before are not streamed. A slot that is there and fits is left as it is.",
				example:  "outbox-cdc slot create --slot outbox --timeout 30s",
				settings: []setting{noFailoverSetting(), timeoutSetting(), dryRunSetting("print the SQL, change nothing"), jsonSetting()},
				run:      runSlotCreate,
			},
			{
				name: "drop", usage: "remove the slot and free the WAL that it holds",
				long: "What is lost: the position, and every event that was committed and not yet delivered is never\n" +
					"streamed. The rows are still in the table. A slot that is in use is refused: stop the\n" +
					"forwarder first.",
				example:  "outbox-cdc slot drop --slot outbox --dry-run",
				settings: []setting{yesSetting(), dryRunSetting("say what would be lost, change nothing"), jsonSetting()},
				run:      runSlotDrop,
			},
			{
				name: "show", usage: "the slot as the server has it",
				example:  "outbox-cdc slot show --json",
				settings: []setting{jsonSetting()},
				run:      runSlotShow,
			},
			{
				name: "advance", usage: "move the slot forward without delivering",
				long: "What is lost: every event that was committed between the slot's confirmed position and --to is\n" +
					"never streamed, nor can the slot be moved back. Use it to pass an event that can never be\n" +
					"delivered, or a place at which the slot is broken. Stop the forwarder first.",
				example: "outbox-cdc slot advance --slot outbox --to end --dry-run",
				settings: []setting{
					{name: "to", value: "LSN", usage: "position, such as 0/16B3748, or end: the end of the WAL now", check: checkAdvanceTo, group: groupCommand},
					yesSetting(), dryRunSetting("say what would be lost, change nothing"), jsonSetting(),
				},
				run: runSlotAdvance,
			},
		},
	}
}

const advanceToEnd = "end"

func checkAdvanceTo(text string) error {
	if text == advanceToEnd {
		return nil
	}
	if _, err := pglogrepl.ParseLSN(text); err != nil {
		return fmt.Errorf("is not a position (such as 0/16B3748, or end)")
	}
	return nil
}

// slotDocument is the JSON of slot show.
type slotDocument struct {
	Exists bool `json:"exists"`
	*replication.SlotInfo
	LagBytes      *int64 `json:"lag_bytes"`
	RetainedBytes *int64 `json:"retained_bytes"`
}

// withAdmin connects and runs work.
func (in *invocation) withAdmin(ctx context.Context, work func(*replication.Admin) error) error {
	admin, err := in.openAdmin(ctx)
	if err != nil {
		return err
	}
	defer admin.Close()
	return work(admin)
}

// withSlot connects and runs work with the slot, which must exist.
func (in *invocation) withSlot(ctx context.Context, work func(*replication.Admin, *replication.SlotInfo) error) error {
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		info, err := admin.Slot(ctx, in.str("slot"))
		if err != nil {
			return err
		}
		if info == nil {
			return in.slotMissing()
		}
		return work(admin, info)
	})
}

func (in *invocation) slotMissing() error {
	slot := in.str("slot")
	return fault.NewOperator("slot-missing", fmt.Sprintf("slot %s does not exist on this server", slot), "outbox-cdc setup --slot "+slot+" creates it", nil)
}

func runSlotShow(ctx context.Context, in *invocation) error {
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		info, err := admin.Slot(ctx, in.str("slot"))
		if err != nil {
			return err
		}
		if in.on("json") {
			document := slotDocument{Exists: info != nil, SlotInfo: info}
			if info == nil {
				document.SlotInfo = &replication.SlotInfo{Name: in.str("slot")}
			}
			document.LagBytes, document.RetainedBytes = document.SlotInfo.LagBytes, document.SlotInfo.RetainedBytes
			if err := printJSON(in.stdout, document); err != nil {
				return err
			}
		}
		if info == nil {
			return in.slotMissing()
		}
		if in.on("json") {
			return nil
		}
		return printf(in.stdout, "slot %s\n  plugin      %s\n  database    %s\n  two_phase   %t\n  %s\n",
			info.Name, textOr(info.Plugin, "none (physical)"), textOr(info.Database, "none"), info.TwoPhase, slotLine(provision.SlotStatusOf(info)))
	})
}

func runSlotCreate(ctx context.Context, in *invocation) error {
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		names, err := in.names()
		if err != nil {
			return err
		}
		pg, err := provision.Inspect(ctx, admin, names)
		if err != nil {
			return err
		}
		failover := !in.on("no-failover")
		if pg.Slot != nil {
			if err := provision.SlotFault(pg, names); err != nil {
				return err
			}
			return in.report("slot", names.Slot, provision.ResultExists, "")
		}
		sql := replication.CreateSlotSQL(names.Slot, failover, pg.Server.VersionNumber) + ";\n"
		if err := provision.ServerFault(pg); err != nil {
			return err
		}
		if pg.Publication == nil {
			if err := printf(in.stderr, "warning: publication %s does not exist: one that is made after the slot breaks the slot\n", names.Publication); err != nil {
				return err
			}
		}
		if in.on("dry-run") {
			return in.report("slot", names.Slot, provision.ResultMissing, sql)
		}
		if err := in.announceWait(ctx, admin); err != nil {
			return err
		}
		if err := provision.CreateSlot(ctx, admin, names.Slot, failover, in.duration("timeout")); err != nil {
			return err
		}
		return in.report("slot", names.Slot, provision.ResultCreated, "")
	})
}

func runSlotDrop(ctx context.Context, in *invocation) error {
	slot := in.str("slot")
	if !in.on("dry-run") {
		if err := in.confirm("what was committed and not yet delivered is never streamed"); err != nil {
			return err
		}
	}
	return in.withSlot(ctx, func(admin *replication.Admin, info *replication.SlotInfo) error {
		if in.on("dry-run") {
			sql := fmt.Sprintf("-- loses the position %s, %s of WAL not confirmed\nSELECT pg_drop_replication_slot('%s');\n",
				textOr(info.ConfirmedFlushLSN, "?"), bytesOr(info.LagBytes, "an unknown amount"), slot)
			return in.report("slot", slot, "would be dropped", sql)
		}
		if info.ActivePID != nil {
			return in.slotInUse(*info.ActivePID)
		}
		if err := admin.DropSlot(ctx, slot); err != nil {
			return err
		}
		return in.report("slot", slot, "dropped", "")
	})
}

func (in *invocation) slotInUse(pid int32) error {
	return fault.NewTransient(fmt.Sprintf("slot %s is in use by process %d", in.str("slot"), pid),
		"stop the forwarder that holds it, and its standbys, then run the command again", nil)
}

func runSlotAdvance(ctx context.Context, in *invocation) error {
	slot := in.str("slot")
	if in.str("to") == "" {
		return fault.NewUsage("slot advance needs --to", "outbox-cdc slot show names the confirmed position")
	}
	if !in.on("dry-run") {
		if err := in.confirm("what was committed up to --to and not yet delivered is never streamed"); err != nil {
			return err
		}
	}
	return in.withSlot(ctx, func(admin *replication.Admin, info *replication.SlotInfo) error {
		target, err := in.advanceTarget(ctx, admin, info)
		if err != nil {
			return err
		}
		if in.on("dry-run") {
			sql := fmt.Sprintf("-- from %s; what was committed in between is never streamed\nSELECT pg_replication_slot_advance('%s', '%s');\n",
				textOr(info.ConfirmedFlushLSN, "?"), slot, target)
			return in.report("slot", slot, "would be advanced to "+target.String(), sql)
		}
		if info.ActivePID != nil {
			return in.slotInUse(*info.ActivePID)
		}
		end, err := admin.AdvanceSlot(ctx, slot, target)
		if err != nil {
			return err
		}
		return in.report("slot", slot, "advanced to "+end.String(), "")
	})
}

// advanceTarget reads --to and refuses what the slot has passed and what is not written yet.
func (in *invocation) advanceTarget(ctx context.Context, admin *replication.Admin, info *replication.SlotInfo) (pglogrepl.LSN, error) {
	walEndLSN, err := admin.WALEnd(ctx)
	if err != nil || in.str("to") == advanceToEnd {
		return walEndLSN, err
	}
	target := must(pglogrepl.ParseLSN(in.str("to")))
	if target > walEndLSN {
		return 0, fault.NewUsage(fmt.Sprintf("--to %s lies beyond the end of the WAL, %s", target, walEndLSN), "give an earlier position, or end")
	}
	if info.ConfirmedFlushLSN != nil {
		if confirmedLSN, err := pglogrepl.ParseLSN(*info.ConfirmedFlushLSN); err == nil && target < confirmedLSN {
			return 0, fault.NewUsage(fmt.Sprintf("--to %s lies before the slot's confirmed position, %s: a slot cannot be moved back", target, confirmedLSN), "outbox-cdc slot show")
		}
	}
	return target, nil
}
