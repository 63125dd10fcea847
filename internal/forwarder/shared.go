package forwarder

import (
	"sync/atomic"
)

// shared is what the goroutines tell each other without waiting.
type shared struct {
	confirmedLSN      atomic.Uint64 // by the reader: PostgreSQL was told
	holding           atomic.Bool   // by the reader: the slot is ours
	walsenderPID      atomic.Uint32 // by the reader; 0 without a stream
	serverStopping    atomic.Bool   // by the watcher: the server shuts down
	busyAt            atomic.Int64  // by the watcher: when the walsender was seen at work, unix nanoseconds
	lastFrameAt       atomic.Int64  // by the reader
	readerTurnedAt    atomic.Int64
	publisherTurnedAt atomic.Int64
	// rereadGeneration is by the publisher: the session that is to end, so that the slot is
	// read again from its own position.
	rereadGeneration atomic.Uint64
	outOfBand        atomic.Uint64 // logical messages that belong to no transaction
	skippedRows      atomic.Uint64 // rows of relations that are not the outbox
}
