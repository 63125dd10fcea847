package request

import (
	"time"

	"github.com/outbox-cdc/outbox-cdc/replication"
)

// Kind is what is asked for.
type Kind string

// The kinds. The first three are the value of the header Outbox-Republished.
const (
	KindReplay  Kind = "replay"
	KindRepair  Kind = "repair"
	KindRetry   Kind = "retry"
	KindDiscard Kind = "discard"
)

// State is how far a request is.
type State string

// The states. The last three are ends.
const (
	StateWaiting   State = "waiting"
	StateRunning   State = "running"
	StateDone      State = "done"
	StateFailed    State = "failed"
	StateCancelled State = "cancelled"
)

// Target says whose request it is: the holder of which slot, and what it must publish
// from and to.
type Target struct {
	Slot   string `json:"slot"`
	Table  string `json:"table"` // as SQL
	Stream string `json:"stream"`
}

// Selection is the target and which events are meant: all conditions that are set must
// hold. It is stored as JSON.
type Selection struct {
	Target
	EventIDs  []string   `json:"event_ids,omitempty"`
	Aggregate *Aggregate `json:"aggregate,omitempty"`
	Since     *time.Time `json:"since,omitempty"` // inclusive
	Until     *time.Time `json:"until,omitempty"` // exclusive
	// Dead means open dead letters, not rows of the table. Reason is a reason code of theirs.
	Dead   bool   `json:"dead,omitempty"`
	Reason string `json:"reason,omitempty"`
	All    bool   `json:"all,omitempty"`
	// Letters are the ids of dead letters.
	Letters []int64 `json:"letters,omitempty"`
	// FreshIDs gives each message an id of its own, so that it is no duplicate.
	FreshIDs bool `json:"fresh_ids,omitempty"`
	// ReasonText is why dead letters are discarded.
	ReasonText string `json:"reason_text,omitempty"`
}

// Aggregate names one.
type Aggregate struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

// Report is what became of the selected events.
type Report struct {
	Selected  int64 `json:"selected"`
	Stored    int64 `json:"stored"`
	Swallowed int64 `json:"swallowed"` // the stream took them for duplicates
	Refused   int64 `json:"refused"`   // they can never be stored as they are
}

// Whole tells whether all that was selected is stored.
func (r Report) Whole() bool { return r.Stored == r.Selected }

// refusalsMax bounds how many refused events a request names.
const refusalsMax = 20

// Refusal names an event that can never be stored as it is.
type Refusal struct {
	EventID string `json:"event_id"`
	Code    string `json:"reason_code"`
	Reason  string `json:"reason"`
}

// Progress is how far a request got: the report so far, and what the next process needs
// to go on where this one stopped.
type Progress struct {
	Report
	Refusals []Refusal `json:"refusals,omitempty"` // the first ones
	// Hint is the next step for a person, of a failed one.
	Hint string `json:"hint,omitempty"`
	// Holder is the process that works on it.
	Holder string `json:"holder,omitempty"`
	// Place is the last row that is done with; nil before the first.
	Place *Place `json:"place,omitempty"`
	// Letter is the last dead letter that is done with; 0 before the first.
	Letter int64 `json:"letter,omitempty"`
	// Begun says that Sequence is known: one of the stream such that all that was published
	// for rows behind Place has a higher one.
	Begun    bool   `json:"begun,omitempty"`
	Sequence uint64 `json:"sequence,omitempty"`
}

// Refuse counts a refused event.
func (p *Progress) Refuse(r Refusal) {
	p.Refused++
	if len(p.Refusals) < refusalsMax {
		p.Refusals = append(p.Refusals, r)
	}
}

// Request is a row of the table.
type Request struct {
	ID          int64
	Kind        Kind
	Selection   Selection
	State       State
	Progress    Progress
	RequestedAt time.Time
	FinishedAt  *time.Time
	Error       string // of a failed one, for a person
}

// Finished tells whether it has come to an end.
func (r *Request) Finished() bool { return r.FinishedAt != nil }

// TableName is the name of the table, in the schema of the outbox.
const TableName = "outbox_request"

// Channel is notified with the slot's name when a request is made.
const Channel = "outbox_request"

// Store is the table in one schema. All methods block for a round trip or two on the
// connection that they are given.
type Store struct {
	table string
}

// NewStore returns the store of the outboxes in a schema.
func NewStore(schema string) Store { return Store{table: replication.QuoteName(schema, TableName)} }
