// Package forwarder wires the four stages: it reads a slot, decodes rows, publishes
// messages in order, and tells PostgreSQL the position that is settled.
//
// It owns every goroutine of a running forwarder (run.go), its states (state.go) and
// what a failure leads to (failure.go). Data flows one way, reader to publisher, and
// one number comes back: the LSN that may be confirmed.
//
// It promises that the slot never passes a transaction of which one event is not
// acknowledged, that status messages flow while publishing is stalled, and that what
// only a person can mend ends Run with an error instead of a retry. It never creates,
// drops or alters anything on either side.
package forwarder
