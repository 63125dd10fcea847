package metrics

import "slices"

// SkipReason says why an event was not stored again.
type SkipReason uint8

const (
	// SkippedAlreadyStored is an event found in the stream before it was sent.
	SkippedAlreadyStored SkipReason = iota
	// SkippedDuplicate is an event that JetStream took for a duplicate.
	SkippedDuplicate

	skipReasons
)

// String returns the value of the label.
func (r SkipReason) String() string {
	return [skipReasons]string{"already-stored", "duplicate"}[r]
}

// Side is one end of the forwarder.
type Side uint8

const (
	// SidePostgres is the replication connection.
	SidePostgres Side = iota
	// SideNATS is the connection to the broker.
	SideNATS

	sides
)

// String returns the value of the label.
func (s Side) String() string {
	return [sides]string{"postgres", "nats"}[s]
}

// otherReason collects the reasons of dead letters that are not in the list.
const otherReason = "other"

// deadLetterReasons are the reason codes that have a series of their own.
// They are the codes of sink.Poison and the one of package deadletter.
var deadLetterReasons = [...]string{
	"malformed",
	"event-id-null",
	"event-id-empty",
	"subject-invalid",
	"subject-reserved",
	"subject-too-long",
	"subject-not-in-stream",
	"headers-invalid",
	"headers-too-large",
	"not-utf8",
	"not-json",
	"not-a-number",
	"bytea-invalid",
	"message-too-large",
	"refused",
	"held",
}

// DeadLetterReasons returns the reasons that AddDeadLetter counts apart, in a copy
// that belongs to the caller.
func DeadLetterReasons() []string { return slices.Clone(deadLetterReasons[:]) }

// stateNames are the states of the forwarder, as it prints them.
var stateNames = [...]string{
	"connecting", "standby", "streaming", "backing off", "draining", "stopped", "failed",
}

// States returns the names that SetState knows, in a copy that belongs to the caller.
func States() []string { return slices.Clone(stateNames[:]) }
