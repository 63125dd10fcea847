package cli

import (
	"context"

	"github.com/outbox-cdc/outbox-cdc/internal/forwarder"
	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
)

func startCommand() command {
	return command{
		name: "start", usage: "forward committed outbox rows to JetStream",
		long: "Reads the slot, publishes each committed row to the stream in commit order, and confirms to\n" +
			"PostgreSQL only what the stream has acknowledged. Any number of processes may run for one slot:\n" +
			"one forwards, the others stand by. A server that is away is waited for. SIGTERM drains and leaves.",
		example:  "outbox-cdc start --slot outbox --database-url postgres://app@127.0.0.1:5432/app --nats-url nats://127.0.0.1:4222",
		settings: forwardingSettings(),
		run:      runStart,
	}
}

func runStart(ctx context.Context, in *invocation) error {
	cfg, err := in.forwarderConfig()
	if err != nil {
		return err
	}
	f, err := forwarder.New(cfg, in.forwarderDeps())
	if err != nil {
		return err //nolint:wrapcheck // it is the user's sentence already
	}
	return f.Run(ctx) //nolint:wrapcheck // it is the user's sentence already
}

func (in *invocation) forwarderDeps() forwarder.Deps {
	b := buildVersion()
	return forwarder.Deps{
		Log: in.log, Metrics: metrics.New(b.Version, b.Revision), HTTPAddress: in.httpAddress(),
		Version: b.Version, Redact: in.redact,
	}
}
