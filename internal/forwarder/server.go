package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

// Server is PostgreSQL as a forwarder uses it, and the one place where a forwarder
// touches it: package sim has another than the real one (sqlserver.go). Its errors are
// told apart by replication.SQLState. It may be called from several goroutines; what it
// opens belongs to one each.
type Server interface {
	// Connect opens a replication connection.
	Connect(ctx context.Context) (Conn, error)
	// Open opens an ordinary SQL connection.
	Open(ctx context.Context) (Admin, error)
	// Letters opens one for the dead letters.
	Letters(ctx context.Context) (Letters, error)
}

// Conn is a replication connection before it streams; see replication.Conn.
type Conn interface {
	IdentifySystem(ctx context.Context) (replication.System, error)
	TimelineHistory(ctx context.Context, timeline uint32) ([]byte, error)
	SlotState(ctx context.Context, slot string) (replication.SlotState, error)
	Start(ctx context.Context, opts replication.StartOptions) (Stream, error)
	ServerVersion() string
	Close()
}

// Stream is a running replication stream; see replication.Stream.
type Stream interface {
	Buffered() bool
	PID() uint32
	Receive(deadline time.Time) (replication.Frame, error)
	SendStatus(status replication.Status, now time.Time) error
	Finish(limit time.Duration) error
	Close()
}

// Admin is what is asked of the catalog over an ordinary SQL connection.
type Admin interface {
	// Preflight looks for what hinders this outbox from being streamed.
	Preflight(ctx context.Context) (provision.Findings, error)
	// WALEnd returns how far the server's WAL goes now.
	WALEnd(ctx context.Context) (pglogrepl.LSN, error)
	// TableOID returns the outbox's, or 0 when there is no such table.
	TableOID(ctx context.Context) (uint32, error)
	// Kinship looks what a relation has to do with the outbox.
	Kinship(ctx context.Context, rel decode.Relation) (Kinship, error)
	// Slot returns the slot; nil when there is none.
	Slot(ctx context.Context) (*replication.SlotInfo, error)
	// SlotHolder returns who holds the slot; false when nobody does.
	SlotHolder(ctx context.Context) (Holder, bool, error)
	// EndWalsender ends the walsender of the slot, if that process still holds it; false
	// when it did not.
	EndWalsender(ctx context.Context, pid uint32) (bool, error)
	// WalsenderBusy tells whether that process is at work rather than waiting for its client.
	WalsenderBusy(ctx context.Context, pid uint32) (bool, error)
	// OpenDeadLetters counts the dead letters that nobody has resolved.
	OpenDeadLetters(ctx context.Context) (int64, error)
	Close()
}

// Kinship says what a relation has to do with the outbox.
type Kinship struct {
	Same        bool // it is the table
	Partition   bool // it is a part of it
	Named       bool // the publication names it by itself
	Partitioned bool // the outbox is partitioned
}

// Holder describes who holds the slot.
type Holder struct {
	PID         uint32
	Application string
	Address     string
	// ReplyTime changes with each status that the server has read from it; empty if it may
	// not be seen, which is not the same as that there was none.
	ReplyTime string
	Waiting   bool // the walsender waits for its client, so that it would read a status
}

// String names the holder for a person.
func (h Holder) String() string {
	return fmt.Sprintf("pid %d (%s, %s)", h.PID, h.Application, h.Address)
}
