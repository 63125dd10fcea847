package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/demo"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/forwarder"
)

const devHelp = `Starts a PostgreSQL from the programs of this machine and a JetStream inside this process,
sets both up, and forwards. A small writer commits orders, each with its event in one
transaction, and rolls every tenth back; the events are printed as they arrive.

Without --orders or --duration it runs until Ctrl-C. Then it waits for the last events and
stops everything it has started. Exit 0: each committed order's event arrived, once, and
none of those that were rolled back; else 3.

The servers listen on 127.0.0.1 and trust every user of this machine.`

// devSettleMax is how long the events of the last orders are waited for.
const devSettleMax = 30 * time.Second

func devCommand() command {
	settings := []setting{
		{name: "orders", value: "N", def: "none", usage: "stop after so many committed orders", check: orWord("none", integerBetween(1, 1_000_000_000)), group: groupCommand},
		{name: "duration", value: "DURATION", def: "none", usage: "stop after this time", check: orWord("none", durationBetween(time.Millisecond, 365*24*time.Hour)), group: groupCommand},
		{name: "rate", value: "N", def: "20", usage: "orders a second; none writes as fast as one connection goes", check: orWord("none", positiveRate), group: groupCommand},
		{name: "data", value: "DIR", defText: "a throw-away folder", usage: "keep both servers' data here, and go on with it the next time", group: groupCommand},
		{name: "postgres-bin", value: "DIR", defText: "PATH, else where the distribution puts it", usage: "folder that holds initdb and postgres", group: groupCommand},
		{name: "install", usage: "install PostgreSQL with apt-get when it is missing (as root)", group: groupCommand},
		{name: "json", usage: "print NDJSON on standard output: the events, then the count", group: groupOutput},
	}
	for _, s := range forwardingSettings() {
		if s.name != "rate" { // here it is the writer's
			settings = append(settings, s)
		}
	}
	return command{
		name: "dev", usage: "the whole thing on this machine: PostgreSQL, embedded JetStream, forwarder",
		long:     devHelp,
		example:  "outbox-cdc dev --orders 200\noutbox-cdc dev --data ./dev-data --rate 5",
		settings: settings,
		without:  ofServers,
		run:      runDev,
	}
}

func runDev(ctx context.Context, in *invocation) error {
	if err := in.checkDev(); err != nil {
		return err
	}
	if !in.given("log-level") {
		// the screen is for the events; a state that is not streaming is still told
		in.log = newLogger(in.stderr, in.logFormat(in.terminal), "warn")
	}
	screen := newDevScreen(in)
	summary, err := in.dev(ctx, screen)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return err // interrupted while the servers started
	}
	if err == nil && !summary.OK() {
		err = fault.NewOperator("events-differ", summary.Fault(), "run it again with --data DIR --log-level debug and look at both servers' logs in DIR", nil)
	}
	return errors.Join(err, screen.finish(summary, err))
}

// ofServers are the common settings that say where servers are and what table they hold.
var ofServers = []string{"database-url", "nats-url", "nats-creds", "nats-nkey-file", "nats-ca", "nats-cert", "nats-key", "columns"}

// checkDev refuses flags that say where servers are: dev starts its own.
func (in *invocation) checkDev() error {
	for _, name := range ofServers {
		if in.values[name].origin == "--"+name {
			return fault.NewUsage(fmt.Sprintf("dev starts its own servers and makes its own table: it takes no --%s", name),
				"outbox-cdc setup && outbox-cdc start work on yours")
		}
		in.values[name] = value{setting: in.values[name].setting, command: in.command}
	}
	return nil
}

// dev runs everything, and stops everything before it returns.
func (in *invocation) dev(ctx context.Context, screen *devScreen) (summary demo.Summary, err error) {
	servers, err := in.startDevServers(ctx)
	if err != nil {
		return summary, err
	}
	defer func() { err = errors.Join(err, servers.close()) }() //nolint:contextcheck // after a signal, too
	in.use(servers)
	if err := in.setUpDev(ctx, servers); err != nil {
		return summary, err
	}
	cfg, err := in.forwarderConfig()
	if err != nil {
		return summary, err
	}
	cfg.RateMax = 0
	deps := in.forwarderDeps()
	if !in.given("http") {
		if deps.HTTPAddress, err = freeAddress(ctx, deps.HTTPAddress); err != nil {
			return summary, err
		}
	}
	f, err := forwarder.New(cfg, deps)
	if err != nil {
		return summary, err
	}
	screen.welcome(servers, deps.HTTPAddress, cfg.Stream)
	return demo.Run(ctx, demo.Config{
		DatabaseURL: cfg.DatabaseURL, NATSURL: cfg.NATS.URL, Table: cfg.Table.String(), Stream: cfg.Stream,
		OrdersMax: in.numberOrNone("orders"), RateMax: in.rateOrNone("rate"), DurationMax: in.duration("duration"),
		SettleMax: devSettleMax, OnArrival: screen.arrived, OnRollBack: screen.rolledBack,
	}, f.Run)
}

// numberOrNone returns 0 for the word none.
func (v values) numberOrNone(name string) int {
	if v.isWord(name) {
		return 0
	}
	return v.integer(name)
}

// rateOrNone returns 0 for the word none.
func (v values) rateOrNone(name string) float64 {
	if v.isWord(name) {
		return 0
	}
	return must(strconv.ParseFloat(v.str(name), 64))
}
