package cli

import (
	"context"
	"errors"
	"strconv"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// openAdmin connects to PostgreSQL for ordinary SQL. The caller closes it.
func (in *invocation) openAdmin(ctx context.Context) (*replication.Admin, error) {
	admin, err := replication.OpenAdmin(ctx, in.str("database-url"), in.applicationName())
	if err == nil {
		return admin, nil
	}
	if err = explain(err); !isFault(err) {
		err = fault.NewTransient("", "check that PostgreSQL runs there and that --database-url (or DATABASE_URL, PGHOST, PGPORT) is right", err)
	}
	return nil, err
}

// dialNATS connects to NATS. The caller closes it.
func (in *invocation) dialNATS(ctx context.Context) (*sink.Client, error) {
	client, err := sink.Dial(ctx, in.natsConfig(), in.log)
	if err == nil {
		return client, nil
	}
	if err = explain(err); !isFault(err) {
		err = fault.NewTransient("", "check that nats-server runs there, that --nats-url (or NATS_URL) is right, and the credentials", err)
	}
	return nil, err
}

// names say which outbox the command is about. Messages is set only where the command takes it.
func (in *invocation) names() (provision.Names, error) {
	columns, err := in.mapping()
	if err != nil {
		return provision.Names{}, err
	}
	return provision.Names{
		Slot: in.str("slot"), Publication: in.publication(), Table: in.table(), Columns: columns,
		Subject: in.str("subject"), Messages: in.has("messages") && in.on("messages"),
	}, nil
}

// explain gives the server's answer its class and hint, by its code and never by its text. Other
// errors are returned as they are.
func explain(err error) error {
	if err == nil || isFault(err) || errors.Is(err, context.Canceled) {
		return err
	}
	var config *sink.ConfigError
	if errors.As(err, &config) {
		return fault.NewOperator("nats-config", config.What, config.Hint, nil)
	}
	var setting *replication.SettingError
	if errors.As(err, &setting) {
		return fault.NewOperator("database-url", err.Error(), setting.Hint(), nil)
	}
	if sink.NoJetStream(err) {
		return fault.NewTransient("", sink.NoJetStreamHint, err)
	}
	var row fault.Row
	switch state, code := replication.SQLState(err), sink.ErrorCode(err); {
	case state != "":
		row = fault.PostgresRow(state)
	case code != 0:
		row = fault.JetStreamRow(strconv.Itoa(code))
	default:
		return err
	}
	return &fault.Error{Class: row.Class, Code: row.Code, What: row.Title, Hint: row.Hint, Err: err}
}

func isFault(err error) bool {
	var fe *fault.Error
	return errors.As(err, &fe)
}
