package decode

import (
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
)

// Each error of this package has a Hint: the next thing to do, as one sentence without
// the word hint. The CLI prints it on its own line.

// NameError says that a table name cannot be read.
type NameError struct {
	Input  string // the whole name as given
	Reason string
}

func (e *NameError) Error() string {
	return fmt.Sprintf("table name %q %s", e.Input, e.Reason)
}

// Hint says how a table name is written.
func (e *NameError) Hint() string {
	return `write schema.table as in SQL, with double quotes around a part that has capitals or special characters: public.outbox or '"Billing-EU"."Order.Outbox"'`
}

// MappingError says that a column mapping cannot be read.
type MappingError struct {
	Input  string // the whole mapping as given
	Key    string // the pair that is wrong
	Reason string
}

func (e *MappingError) Error() string {
	return fmt.Sprintf("column mapping %q: %q %s", e.Input, e.Key, e.Reason)
}

// Hint says how a mapping is written.
func (e *MappingError) Hint() string {
	return "write pairs field=column separated by commas, or debezium; the fields are " + strings.Join(fieldNames[:], ", ") + " and order"
}

// RelationError says that rows of the outbox arrive without a column that is needed.
type RelationError struct {
	Table     TableName
	Field     string        // the field or extra column that needs it
	Column    string        // the missing column; empty when none is mapped to Field
	Columns   []string      // the columns that do arrive
	CommitLSN pglogrepl.LSN // of the transaction whose row could not be read
}

func (e *RelationError) Error() string {
	if e.Column == "" {
		return fmt.Sprintf("table %s: no column is mapped to %s, which is required", e.Table, e.Field)
	}
	return fmt.Sprintf("table %s: no column %s (mapped to %s) in the row committed at %s; columns there: %s",
		e.Table, QuoteIdentifier(e.Column), e.Field, e.CommitLSN, strings.Join(e.Columns, ", "))
}

// Hint says where a column can have gone.
func (e *RelationError) Hint() string {
	if e.Column == "" {
		return fmt.Sprintf("name the column with --columns %s=<column>", e.Field)
	}
	return fmt.Sprintf("if it was renamed, start with --columns %s=<new name>; if not, see whether the publication has a column list that leaves it out, or the column is generated", e.Field)
}

// ProtocolCause says what kind of thing is wrong with a message.
type ProtocolCause uint8

// The causes.
const (
	// CauseMalformed: the bytes are not a message of pgoutput, or come out of turn.
	CauseMalformed ProtocolCause = iota + 1
	// CauseUnknown: a message kind that this version does not know.
	CauseUnknown
	// CauseStreaming: a message of a transaction in progress, which was not asked for.
	CauseStreaming
	// CauseTwoPhase: a message of a prepared transaction: the slot has two_phase on.
	CauseTwoPhase
	// CauseBinary: a value in binary form, which was not asked for.
	CauseBinary
)

// String returns the cause for messages.
func (c ProtocolCause) String() string {
	switch c {
	case CauseMalformed:
		return "malformed"
	case CauseUnknown:
		return "unknown kind"
	case CauseStreaming:
		return "transaction in progress"
	case CauseTwoPhase:
		return "prepared transaction"
	case CauseBinary:
		return "binary value"
	default:
		return fmt.Sprintf("cause(%d)", uint8(c))
	}
}

// ProtocolError says that a message cannot be read. The stream must stop: what follows
// cannot be trusted.
type ProtocolError struct {
	Cause   ProtocolCause
	Message byte   // the message's first byte; 0 for an empty message
	Offset  int    // where in the message, in bytes from its start
	Reason  string // what is wrong
}

func (e *ProtocolError) Error() string {
	if e.Message == 0 {
		return fmt.Sprintf("pgoutput message at byte %d: %s", e.Offset, e.Reason)
	}
	return fmt.Sprintf("pgoutput message %q at byte %d: %s", rune(e.Message), e.Offset, e.Reason)
}

// Hint says what to look at.
func (e *ProtocolError) Hint() string {
	switch e.Cause {
	case CauseTwoPhase:
		return "the slot was created with two_phase; drop it and create it with outbox-cdc setup"
	case CauseStreaming, CauseBinary, CauseUnknown:
		return "the slot must be read with pgoutput, proto_version 1, without streaming and binary; see outbox-cdc slot show"
	default:
		return "start again; if the same message fails again, report it with the server's version"
	}
}

// ValueError says that one event cannot be published as it is; others can. It is found
// in Event.Malformed.
type ValueError struct {
	Field  string // the field, column or "content" for a whole logical message
	Reason string
}

func (e *ValueError) Error() string { return e.Field + ": " + e.Reason }

// Hint says what the writer should do.
func (e *ValueError) Hint() string {
	return "write a logical message as a JSON object with the columns of the outbox table: event_id, aggregate_type, aggregate_id, event_type, payload"
}
