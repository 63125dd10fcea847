package deadletter

import (
	"encoding/json"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// Table is the table's name, in the schema of the outbox.
const Table = "outbox_dead_letter"

// ReasonHeld is the reason code of an event that waits behind another's letter. All other
// reason codes are those of a sink.Poison.
const ReasonHeld = "held"

// HeldMax is how many events of one source may wait behind letters: beyond it somebody has
// to look, before the table takes the place of the stream.
const HeldMax = 10_000

// Letter is a row of the table, without the payload. Pointers are nil for NULL. Its JSON is
// that of `dead-letter list`.
type Letter struct {
	ID            int64           `json:"id"`
	Source        string          `json:"source"` // "<system identifier>/<name>"
	Position      string          `json:"position"`
	EventID       *string         `json:"event_id"`
	AggregateType *string         `json:"aggregate_type"`
	AggregateID   *string         `json:"aggregate_id"`
	Subject       *string         `json:"subject"`
	Headers       json.RawMessage `json:"headers"`
	ReasonCode    string          `json:"reason_code"`
	Reason        string          `json:"reason"`
	Attempts      int32           `json:"attempts"`    // how often it was found undeliverable
	HeldBehind    *int64          `json:"held_behind"` // id of the letter that it waits for
	FirstFailedAt time.Time       `json:"first_failed_at"`
	DeadAt        time.Time       `json:"dead_at"`
	ResolvedAt    *time.Time      `json:"resolved_at"`
	Resolution    *string         `json:"resolution"`
}

// Open tells whether nothing was decided about the letter yet.
func (l Letter) Open() bool { return l.ResolvedAt == nil }

// Filter chooses letters; each field that is set narrows the choice.
type Filter struct {
	// SourceName is the name of the outbox in the stream. It is the same after an upgrade
	// or a logical migration, when the system identifier is another.
	SourceName string
	IDs        []int64
	EventIDs   []string
	Aggregate  Aggregate
	ReasonCode string
	HeldBehind int64 // id of a letter: those that wait for it
	OpenOnly   bool
	AfterID    int64 // only those with a higher id, for reading in portions
	Limit      int   // at most so many; 0 is all
}

// Aggregate is what events are held by.
type Aggregate struct{ Type, ID string }

// AggregateOf returns the aggregate of an event, as the table has it; false for an event
// without one, which is never held.
func AggregateOf(e *decode.Event) (Aggregate, bool) {
	id := e.Value(decode.FieldAggregateID)
	if id == nil {
		return Aggregate{}, false
	}
	return Aggregate{Type: column(string(e.Value(decode.FieldAggregateType))), ID: column(string(id))}, true
}

// Known is a letter that stands for an event which the slot may bring again.
type Known struct {
	ID       int64
	Position decode.Position
	EventID  string // as the column has it; empty for NULL
}

// EventIDOf returns the id of an event as the column event_id has it.
func EventIDOf(e *decode.Event) string { return column(string(e.Value(decode.FieldEventID))) }

// Head is an open letter that later events of its aggregate may wait for.
type Head struct {
	ID        int64
	Aggregate Aggregate
	Source    string
	Position  decode.Position // zero when the column holds none
}
