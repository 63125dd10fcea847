package sink

import "github.com/outbox-cdc/outbox-cdc/decode"

// Poison is the error of an event that will never be accepted as it is.
type Poison struct {
	// Code is one of the literal reason codes below.
	Code string
	// Reason says what is wrong, naming the column, subject or limit, never a payload.
	Reason   string
	EventID  string
	Position decode.Position
	Table    decode.TableName
	Subject  string // empty when the event has none
}

// Reason codes of poison.
const (
	PoisonMalformed       = "malformed"
	PoisonEventIDNull     = "event-id-null"
	PoisonEventIDEmpty    = "event-id-empty"
	PoisonSubjectInvalid  = "subject-invalid"
	PoisonSubjectReserved = "subject-reserved"
	PoisonSubjectTooLong  = "subject-too-long"
	PoisonSubjectUncover  = "subject-not-in-stream"
	PoisonHeadersInvalid  = "headers-invalid"
	PoisonHeadersTooLarge = "headers-too-large"
	PoisonNotUTF8         = "not-utf8"
	PoisonNotJSON         = "not-json"
	PoisonNotNumber       = "not-a-number"
	PoisonBytea           = "bytea-invalid"
	PoisonTooLarge        = "message-too-large"
	PoisonRefused         = "refused" // by the server, for this message alone
)

// Error names the event, the position and the reason.
func (p *Poison) Error() string {
	what := "event"
	if p.EventID != "" {
		what += " " + p.EventID
	}
	if p.Table.Name != "" {
		what += " of table " + p.Table.String()
	}
	return what + " at position " + p.Position.String() + " cannot be published (" + p.Code + "): " + p.Reason
}
