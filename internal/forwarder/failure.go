package forwarder

import (
	"context"
	"errors"
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// SQLSTATEs that the reader turns on.
const (
	sqlStateObjectInUse      = "55006"
	sqlStateAdminShutdown    = "57P01"
	sqlStateCannotConnectNow = "57P03"
	sqlStateUndefinedTable   = "42P01"
)

// rightsStates are failures that stop a start, and that a running forwarder waits
// out, since rights and passwords are changed under running programs.
var rightsStates = map[string]bool{"28000": true, "28P01": true, "42501": true}

// hinted is an error that knows the next step for a person.
type hinted interface {
	error
	Hint() string
}

// classify turns what ended the reader's session into a fault. everStreamed says
// that the same configuration has worked before in this process.
func classify(err error, everStreamed bool) *fault.Error {
	var already *fault.Error
	if errors.As(err, &already) {
		return already
	}
	var notice *replication.NoticeError
	if errors.As(err, &notice) {
		return fault.NewOperator("publication-missing", "the server skips the publication: "+notice.Error(),
			"create the publication again; rows inserted in between are not in the slot: outbox-cdc setup --dry-run prints the statement", nil)
	}
	var relation *decode.RelationError
	var protocol *decode.ProtocolError
	var withHint hinted
	if errors.As(err, &relation) || errors.As(err, &protocol) {
		hint := ""
		if errors.As(err, &withHint) {
			hint = withHint.Hint()
		}
		return fault.NewOperator("decode", err.Error(), hint, nil)
	}
	var setting *replication.SettingError
	if errors.As(err, &setting) {
		return fault.NewOperator("database-url", err.Error(), setting.Hint(), nil)
	}
	state := replication.SQLState(err)
	if state == "" {
		return fault.NewTransient("", "", err)
	}
	row := fault.PostgresRow(state)
	if row.Class == fault.Operator && (!everStreamed || !rightsStates[state]) {
		return fault.NewOperator("postgres", row.Title, row.Hint, err)
	}
	return fault.NewTransient("", row.Hint, err)
}

// mends says what can be done for a poison event.
func mends(code string) string {
	switch code {
	case sink.PoisonTooLarge:
		return "raise max_payload of nats-server, or the stream's limit (nats stream edit STREAM --max-msg-size BYTES)"
	case sink.PoisonSubjectUncover:
		return "let the stream cover the subject (nats stream edit STREAM --subjects ..., the ones it has included)"
	default:
		return "mend what the reason names (--subject, --columns or --format)"
	}
}

// flags choose this outbox for a command in a hint.
func (c Config) flags() string {
	return provision.Flags(provision.Names{Slot: c.Slot, Table: c.Table}, c.Stream, c.Source)
}

// retryCommand publishes a dead letter; one without an event id has to be chosen by hand.
func (c Config) retryCommand(eventID string) string {
	if eventID == "" {
		return "outbox-cdc dead-letter list" + c.flags()
	}
	return "outbox-cdc dead-letter retry --event-id " + provision.Quote(eventID) + c.flags()
}

// poisonFault is what a poison event ends the forwarder with.
func poisonFault(p *sink.Poison, slot string) error {
	// A transaction is left out once the slot stands behind the start of its commit record.
	skipLSN := p.Position.CommitLSN + 1
	return &fault.Error{
		Class: fault.Poison, Code: p.Code, What: p.Error(),
		Hint: fmt.Sprintf("%s, and start again; or leave out its whole transaction for good: outbox-cdc slot advance --slot %s --to %s --yes",
			mends(p.Code), slot, skipLSN),
	}
}

func isPoison(err error) (*sink.Poison, bool) {
	var p *sink.Poison
	ok := errors.As(err, &p)
	return p, ok
}

func stopping(ctx context.Context) bool { return ctx.Err() != nil }
