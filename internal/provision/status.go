package provision

import (
	"context"
	"fmt"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/replication"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// State is what can be said of an outbox from outside the forwarder.
type State string

// The states of the status document.
const (
	StateStreaming   State = "streaming"    // a forwarder holds the slot
	StateStopped     State = "stopped"      // nobody does
	StateSlotMissing State = "slot-missing" // all but the slot is there
	StateSlotLost    State = "slot-lost"    // the server has removed WAL that the slot needs
	StateNotSetUp    State = "not-set-up"
)

// Status is the document of `outbox-cdc status --json` and of GET /status. Pointers are
// null where the thing is missing, the server's version has no such value, or the role may not see it.
type Status struct {
	Slot        SlotStatus        `json:"slot"`
	Publication PublicationStatus `json:"publication"`
	Stream      StreamStatus      `json:"stream"`
	LastEvent   *LastEvent        `json:"last_event"`
	// OldestUndeliveredSeconds is the age of the oldest row that the slot has not confirmed.
	OldestUndeliveredSeconds *float64 `json:"oldest_undelivered_seconds"`
	DeadLetters              *int64   `json:"dead_letters"` // open ones
	Held                     *int64   `json:"held"`         // events that wait behind one
	Requests                 *int64   `json:"requests"`     // not finished
	State                    State    `json:"state"`
}

// SlotStatus is the slot's part of a Status.
type SlotStatus struct {
	Name               string  `json:"name"`
	Exists             bool    `json:"exists"`
	Active             bool    `json:"active"`
	ActivePID          *int32  `json:"active_pid"`
	WALStatus          *string `json:"wal_status"`
	ConfirmedFlushLSN  *string `json:"confirmed_flush_lsn"`
	RestartLSN         *string `json:"restart_lsn"`
	LagBytes           *int64  `json:"lag_bytes"`
	RetainedBytes      *int64  `json:"retained_bytes"`
	SafeWALSize        *int64  `json:"safe_wal_size"`
	Failover           *bool   `json:"failover"`
	Synced             *bool   `json:"synced"`
	InvalidationReason *string `json:"invalidation_reason"`
}

// PublicationStatus is the publication's part of a Status.
type PublicationStatus struct {
	Name   string   `json:"name"`
	Exists bool     `json:"exists"`
	Tables []string `json:"tables"`
}

// StreamStatus is the stream's part of a Status.
type StreamStatus struct {
	Name                   string   `json:"name"`
	Exists                 *bool    `json:"exists"` // null when NATS cannot be reached
	Messages               *uint64  `json:"messages"`
	Bytes                  *uint64  `json:"bytes"`
	LastSequence           *uint64  `json:"last_sequence"`
	DuplicateWindowSeconds *float64 `json:"duplicate_window_seconds"`
}

// LastEvent is the newest event of this outbox in the stream.
type LastEvent struct {
	EventID  string    `json:"event_id"`
	Subject  string    `json:"subject"`
	Sequence uint64    `json:"sequence"`
	Position string    `json:"position"`
	StoredAt time.Time `json:"stored_at"`
}

// StatusQuery says what a Status is about.
type StatusQuery struct {
	Names
	Stream string
	Source string // name of the outbox in the stream
}

// ReadStatus looks at both servers. nats may be nil when NATS cannot be reached: then the stream is unknown.
func ReadStatus(ctx context.Context, admin *replication.Admin, nats *sink.Client, q StatusQuery) (Status, error) {
	pg, err := Inspect(ctx, admin, q.Names)
	if err != nil {
		return Status{}, err
	}
	status := Status{
		Slot:        slotStatus(q.Slot, pg.Slot),
		Publication: publicationStatus(q.Publication, pg.Publication),
		Stream:      StreamStatus{Name: q.Stream},
		State:       stateOf(pg),
	}
	if nats != nil {
		if err := readStream(ctx, nats, pg.Server.SystemIdentifier+"/"+q.Source, q, &status); err != nil {
			return Status{}, err
		}
	}
	if err := readTables(ctx, admin, pg, q, &status); err != nil {
		return Status{}, err
	}
	return status, nil
}

func readStream(ctx context.Context, nats *sink.Client, source string, q StatusQuery, status *Status) error {
	stream, err := nats.StreamStatus(ctx, q.Stream)
	if err != nil {
		return err
	}
	status.Stream.Exists = &stream.Exists
	if !stream.Exists {
		return nil
	}
	window := stream.DuplicateWindow.Seconds()
	status.Stream = StreamStatus{
		Name: q.Stream, Exists: &stream.Exists, Messages: &stream.Messages, Bytes: &stream.Bytes,
		LastSequence: &stream.LastSequence, DuplicateWindowSeconds: &window,
	}
	last, err := nats.LastEvent(ctx, q.Stream, source, q.Subject)
	if err != nil {
		return err
	}
	if last != nil {
		status.LastEvent = &LastEvent{
			EventID: last.EventID, Subject: last.Subject, Sequence: last.Sequence, Position: last.Position, StoredAt: last.StoredAt,
		}
	}
	return nil
}

func stateOf(pg Postgres) State {
	switch {
	case pg.Slot == nil && (pg.Publication == nil || pg.Table == nil):
		return StateNotSetUp
	case pg.Slot == nil:
		return StateSlotMissing
	case pg.Slot.Lost():
		return StateSlotLost
	case pg.Slot.Active:
		return StateStreaming
	default:
		return StateStopped
	}
}

func slotStatus(name string, s *replication.SlotInfo) SlotStatus {
	if s == nil {
		return SlotStatus{Name: name}
	}
	return SlotStatus{
		Name: name, Exists: true, Active: s.Active, ActivePID: s.ActivePID, WALStatus: s.WALStatus,
		ConfirmedFlushLSN: s.ConfirmedFlushLSN, RestartLSN: s.RestartLSN, LagBytes: s.LagBytes, RetainedBytes: s.RetainedBytes,
		SafeWALSize: s.SafeWALSize, Failover: s.Failover, Synced: s.Synced, InvalidationReason: s.InvalidationReason,
	}
}

func publicationStatus(name string, p *replication.PublicationInfo) PublicationStatus {
	status := PublicationStatus{Name: name, Tables: []string{}}
	if p == nil {
		return status
	}
	status.Exists = true
	for _, t := range p.Tables {
		status.Tables = append(status.Tables, decode.TableName{Schema: t.Schema, Name: t.Name}.String())
	}
	return status
}

// readTables counts what waits in the tables beside the outbox.
func readTables(ctx context.Context, admin *replication.Admin, pg Postgres, q StatusQuery, status *Status) error {
	schema := q.Table.Schema
	deadLetters, err := admin.Table(ctx, schema, deadletter.Table)
	if err != nil {
		return err
	}
	if deadLetters != nil && deadLetters.Selectable && deadLetters.Column("held_behind") != nil {
		counts, err := deadletter.NewStore(admin, schema).Count(ctx, q.Source)
		if err != nil {
			return err
		}
		status.DeadLetters, status.Held = &counts.Dead, &counts.Held
	}
	requests, err := admin.Table(ctx, schema, "outbox_request")
	if err != nil {
		return err
	}
	if requests != nil && requests.Selectable && requests.Column("finished_at") != nil {
		_, err := admin.Lookup(ctx, []any{&status.Requests}, "SELECT count(*) FROM "+replication.QuoteName(schema, "outbox_request")+" WHERE finished_at IS NULL")
		if err != nil {
			return fmt.Errorf("count requests: %w", err)
		}
	}
	if pg.Table == nil || !pg.Table.Selectable {
		return nil
	}
	oldest := undelivered{table: pg.Table, slot: pg.Slot, columns: q.Columns, deadLetters: deadLetters}
	if status.LastEvent != nil {
		oldest.lastEventID = status.LastEvent.EventID
	}
	status.OldestUndeliveredSeconds, err = oldest.seconds(ctx, admin)
	return err
}

// SlotStatusOf is the slot's part of a Status.
func SlotStatusOf(s *replication.SlotInfo) SlotStatus { return slotStatus(s.Name, s) }
