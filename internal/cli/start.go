package cli

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/forwarder"
	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// setupBackoffMax bounds the wait between two attempts of start --setup.
const setupBackoffMax = 30 * time.Second

func startCommand() command {
	settings := append([]setting{{
		name: "setup", usage: "first do what setup does: create tables, publication, stream and slot where missing", group: groupCommand,
	}}, setupSettings()...)
	return command{
		name: "start", usage: "forward committed outbox rows to JetStream",
		long: "Reads the slot, publishes each committed row to the stream in commit order, and confirms to\n" +
			"PostgreSQL only what the stream has acknowledged. Any number of processes may run for one slot:\n" +
			"one forwards, the others stand by. A server that is away is waited for. SIGTERM drains and leaves.\n" +
			"Without --setup it never creates, drops or alters anything.",
		example:  "outbox-cdc start --slot outbox --stream OUTBOX",
		settings: append(forwardingSettings(), settings...),
		run:      runStart,
	}
}

func runStart(ctx context.Context, in *invocation) error {
	cfg, err := in.forwarderConfig()
	if err != nil {
		return err
	}
	deps := in.forwarderDeps()
	f, err := forwarder.New(cfg, deps)
	if err != nil {
		return err //nolint:wrapcheck // it is the user's sentence already
	}
	if in.on("setup") {
		if err := in.setUpFirst(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
	return f.Run(ctx) //nolint:wrapcheck // it is the user's sentence already
}

// setUpFirst does what setup does, and waits for servers that are away as start does.
func (in *invocation) setUpFirst(ctx context.Context) error {
	opts, err := in.setupOptions()
	if err != nil {
		return err
	}
	bo := backoff.NewExponentialBackOff()
	bo.MaxInterval = setupBackoffMax
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		err := in.setUp(ctx, opts, func(_ *replication.Admin, plan *provision.Plan) error {
			err := plan.Apply(ctx, func(a provision.Action) {
				in.log.Info("setup", "part", string(a.Part), "name", a.Name, "result", a.Result)
			})
			if err == nil {
				err = plan.Differences.Fault()
			}
			return err //nolint:wrapcheck // it is the user's sentence already
		})
		if err == nil || ctx.Err() != nil {
			return nil
		}
		err = explain(err)
		if fault.ExitCode(err) != fault.ExitFailed {
			return err
		}
		wait := bo.NextBackOff()
		in.log.Warn("setup waits", "reason", err.Error(), "again_in", wait.Round(time.Millisecond).String())
		again.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}

func (in *invocation) forwarderDeps() forwarder.Deps {
	b := buildVersion()
	return forwarder.Deps{
		Log: in.log, Metrics: metrics.New(b.Version, b.Revision), HTTPAddress: in.httpAddress(), HTTPOptional: !in.given("http"),
		Version: b.Version, Redact: in.redact, Status: in.runningStatus,
	}
}

// runningDocument is the document of GET /status: that of `outbox-cdc status`, and
// what only the running forwarder knows.
type runningDocument struct {
	*provision.Status
	// Unavailable says why the servers could not be asked; then only the running
	// figures are there.
	Unavailable string            `json:"unavailable,omitempty"`
	Running     forwarder.Figures `json:"running"`
}

// runningStatus makes the document of GET /status.
func (in *invocation) runningStatus(ctx context.Context, figures forwarder.Figures) (any, error) {
	status, err := in.readStatus(ctx)
	if status == nil {
		return runningDocument{Unavailable: err.Error(), Running: figures}, nil
	}
	document := runningDocument{Status: status, Running: figures}
	if err != nil {
		document.Unavailable = err.Error()
	}
	return document, nil
}
