package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

const setupHelp = `Creates what is missing, in the right order: tables, publication, stream, slot. It never
drops and never changes a publication, stream or table that exists and differs: it prints
the difference and exits with 3, having made nothing. It is safe to repeat.

--dry-run prints the SQL, the stream's configuration and the statements for a role with
the least rights; the output is SQL that psql can run.

The slot starts at this moment: rows that were committed before are not streamed. Its
creation waits for transactions that have written and are still open, in any database.`

// setupSettings are those that say what setup makes; start --setup takes them too.
func setupSettings() []setting {
	return append([]setting{
		{name: "no-stream", usage: "leave the stream to somebody else", group: groupCommand},
		{name: "no-slot", usage: "leave the slot to somebody else", group: groupCommand},
		noFailoverSetting(), timeoutSetting(),
	}, streamSettings()...)
}

func noFailoverSetting() setting {
	return setting{name: "no-failover", usage: "make a slot that standbys do not mirror (PostgreSQL 17 and newer mirror it)", group: groupCommand}
}

func timeoutSetting() setting {
	return setting{
		name: "timeout", value: "DURATION", def: "30s", usage: "how long the creation of the slot may wait for open transactions",
		check: durationBetween(time.Millisecond, 24*time.Hour), group: groupCommand,
	}
}

func setupCommand() command {
	return command{
		name: "setup", usage: "create tables, publication, slot and stream; safe to repeat",
		long:     setupHelp,
		example:  "outbox-cdc setup --dry-run\noutbox-cdc setup --slot outbox --stream OUTBOX",
		settings: append([]setting{dryRunSetting("print the SQL and the stream's configuration, change nothing"), jsonSetting()}, setupSettings()...),
		run:      runSetup,
	}
}

// setupOptions builds the options from setupSettings.
func (in *invocation) setupOptions() (provision.Options, error) {
	names, err := in.names()
	if err != nil {
		return provision.Options{}, err
	}
	return provision.Options{
		Names: names, Stream: in.streamSpec(),
		NoStream: in.on("no-stream"), NoSlot: in.on("no-slot"),
		Failover: !in.on("no-failover"), SlotTimeout: in.duration("timeout"),
	}, nil
}

// streamSpec builds the stream from streamSettings.
func (in *invocation) streamSpec() sink.StreamSpec {
	return sink.StreamSpec{
		Name: in.str("stream"), Subjects: sink.SubjectsFor(in.str("subject")),
		Replicas: in.integer("replicas"), DuplicateWindow: in.duration("duplicate-window"),
		MaxAge: in.duration("max-age"), MaxBytes: in.size("max-bytes"), AllowBatched: true,
	}
}

// setupDocument is the JSON of setup.
type setupDocument struct {
	Actions     []provision.Action `json:"actions"`
	Roles       []string           `json:"roles"` // SQL for a role with the least rights
	Differences provision.Findings `json:"differences"`
	Warnings    provision.Findings `json:"warnings"`
	OK          bool               `json:"ok"`
}

func runSetup(ctx context.Context, in *invocation) error {
	opts, err := in.setupOptions()
	if err != nil {
		return err
	}
	return in.setUp(ctx, opts, func(admin *replication.Admin, plan *provision.Plan) error {
		if in.on("dry-run") {
			if !in.on("json") {
				if err := printf(in.stdout, "%s", plan.Script()); err != nil {
					return err
				}
			}
			return in.reportSetup(plan, opts, nil)
		}
		return in.reportSetup(plan, opts, in.applyPlan(ctx, admin, plan))
	})
}

// setUp connects, makes the plan and gives it to work.
func (in *invocation) setUp(ctx context.Context, opts provision.Options, work func(*replication.Admin, *provision.Plan) error) error {
	admin, err := in.openAdmin(ctx)
	if err != nil {
		return err
	}
	defer admin.Close()
	var nats *sink.Client
	if !opts.NoStream {
		if nats, err = in.dialNATS(ctx); err != nil {
			return err
		}
		defer nats.Close()
	}
	plan, err := provision.MakePlan(ctx, admin, nats, opts)
	if err != nil {
		return err
	}
	return work(admin, plan)
}

// applyPlan makes what is missing and says so on the way.
func (in *invocation) applyPlan(ctx context.Context, admin *replication.Admin, plan *provision.Plan) error {
	if len(plan.Differences) == 0 && plan.NeedsSlot() {
		if err := in.announceWait(ctx, admin); err != nil {
			return err
		}
	}
	return plan.Apply(ctx, func(a provision.Action) {
		if !in.on("json") {
			_ = printf(in.stdout, "%-12s %s: %s\n", a.Part, a.Name, a.Result) // a lost report must not stop the setup half way
		}
	})
}

// announceWait names, on standard error, what the creation of a slot will wait for.
func (in *invocation) announceWait(ctx context.Context, admin *replication.Admin) error {
	open, err := admin.OpenTransactions(ctx)
	if err != nil || len(open) == 0 {
		return err
	}
	return printf(in.stderr, "waiting for %d open transactions before the slot can be made; the oldest is %s\n", len(open), open[0])
}

// reportSetup prints differences and warnings, or the whole document, and returns what setup ends with.
func (in *invocation) reportSetup(plan *provision.Plan, opts provision.Options, err error) error {
	if err == nil {
		err = plan.Differences.Fault()
	}
	if in.on("json") {
		document := setupDocument{
			Actions: plan.Actions, Roles: provision.RoleSQL(opts.Names, plan.Server.Database),
			Differences: orEmpty(plan.Differences), Warnings: orEmpty(plan.Warnings), OK: err == nil,
		}
		if writeErr := printJSON(in.stdout, document); writeErr != nil {
			return writeErr
		}
		return err
	}
	for _, f := range plan.Warnings {
		if writeErr := printf(in.stderr, "warning: %s%s\n", f.Message, fixOf(f)); writeErr != nil {
			return writeErr
		}
	}
	if len(plan.Differences) > 1 { // the first one is the error line
		for _, f := range plan.Differences[1:] {
			if writeErr := printf(in.stderr, "differs: %s%s\n", f.Message, fixOf(f)); writeErr != nil {
				return writeErr
			}
		}
	}
	return err
}

func orEmpty(fs provision.Findings) provision.Findings {
	if fs == nil {
		return provision.Findings{}
	}
	return fs
}

func fixOf(f provision.Finding) string {
	if f.Fix == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", f.Fix)
}

// confirm refuses a dangerous command that was not asked for twice.
func (in *invocation) confirm(lost string) error {
	if in.on("yes") {
		return nil
	}
	return fault.NewUsage(fmt.Sprintf("%s needs --yes: %s", in.command, lost), fmt.Sprintf("outbox-cdc %s --dry-run shows what it would do", in.command))
}
