package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

const (
	devDatabase        = "shop"
	devDuplicateWindow = 2 * time.Minute
)

// devServers are what dev has started.
type devServers struct {
	postgres *devstack.Postgres
	nats     *devstack.NATS
}

func (s *devServers) close() error {
	return errors.Join(s.nats.Close(), s.postgres.Close())
}

func (in *invocation) startDevServers(ctx context.Context) (*devServers, error) {
	opts := devstack.PostgresOptions{BinDir: in.str("postgres-bin")}
	natsDir := ""
	if data := in.str("data"); data != "" {
		opts.Dir, natsDir = filepath.Join(data, "postgres"), filepath.Join(data, "nats")
	}
	postgres, err := devstack.StartPostgres(ctx, opts)
	if errors.Is(err, devstack.ErrNoPostgres) && in.on("install") {
		if err = in.installPostgres(ctx); err != nil {
			return nil, err
		}
		postgres, err = devstack.StartPostgres(ctx, opts)
	}
	if errors.Is(err, devstack.ErrNoPostgres) {
		return nil, fault.NewOperator("no-postgres", err.Error(), in.howToGetPostgres(), nil)
	}
	if err != nil {
		return nil, in.devStartFault(ctx, err)
	}
	// In a kept folder nothing locks the store of JetStream but the PostgreSQL beside it.
	nats, err := devstack.StartNATS(ctx, devstack.NATSOptions{Dir: natsDir})
	if err != nil {
		return nil, errors.Join(in.devStartFault(ctx, err), postgres.Close()) //nolint:contextcheck // after a signal, too
	}
	return &devServers{postgres: postgres, nats: nats}, nil
}

// devStartFault is for a person to act on: what keeps a server from starting does not heal.
func (in *invocation) devStartFault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	hint := "run it again with --data DIR: the logs of both servers stay there"
	if in.given("data") {
		hint = "mend it, give --data another folder, or leave it out for a throw-away one"
	}
	return fault.NewOperator("dev-start", "", hint, err)
}

func (in *invocation) installPostgres(ctx context.Context) error {
	if err := printf(in.stderr, "installing PostgreSQL with apt-get\n"); err != nil {
		return err
	}
	err := devstack.InstallPostgres(ctx, in.stderr)
	if errors.Is(err, devstack.ErrCannotInstall) {
		return fault.NewOperator("no-postgres", err.Error(), in.howToGetPostgres(), nil)
	}
	return err
}

func (in *invocation) howToGetPostgres() string {
	switch {
	case in.given("postgres-bin"):
		return "give --postgres-bin the folder that holds initdb and postgres, or leave it out"
	case devstack.HasApt() && os.Geteuid() == 0:
		return "outbox-cdc dev --install gets it with apt-get (or: apt-get install postgresql)"
	case devstack.HasApt():
		return "sudo apt-get install postgresql"
	default:
		return "install a PostgreSQL server, or give --postgres-bin the folder that holds initdb and postgres"
	}
}

// use makes the rest of the invocation speak to the servers.
func (in *invocation) use(servers *devServers) {
	for name, text := range map[string]string{
		"database-url": servers.postgres.URL(devDatabase),
		"nats-url":     servers.nats.URL(),
	} {
		v := in.values[name]
		v.text = text
		in.values[name] = v
	}
}

// setUpDev makes the database and what setup makes.
func (in *invocation) setUpDev(ctx context.Context, servers *devServers) error {
	if err := servers.postgres.CreateDatabase(ctx, devDatabase); err != nil {
		return err
	}
	names, err := in.names()
	if err != nil {
		return err
	}
	admin, err := in.openAdmin(ctx)
	if err != nil {
		return err
	}
	defer admin.Close()
	client, err := in.dialNATS(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	plan, err := provision.MakePlan(ctx, admin, client, provision.Options{
		Names: names, Failover: true, SlotTimeout: devSettleMax,
		Stream: sink.StreamSpec{
			Name: in.str("stream"), Subjects: sink.SubjectsFor(in.str("subject")),
			Replicas: 1, DuplicateWindow: devDuplicateWindow, AllowBatched: true,
		},
	})
	if err != nil {
		return err
	}
	return plan.Apply(ctx, func(provision.Action) {})
}

// freeAddress returns address, or one with another port when somebody listens there.
func freeAddress(ctx context.Context, address string) (string, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", address)
	if err == nil {
		if err := listener.Close(); err != nil {
			return "", fmt.Errorf("try %s: %w", address, err)
		}
		return address, nil
	}
	port, err := devstack.FreePort(ctx)
	if err != nil {
		return "", err
	}
	return devstack.Address(port), nil
}
