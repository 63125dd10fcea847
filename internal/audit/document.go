package audit

// Document is what verify reports. Lists are cut at 100 entries.
type Document struct {
	Checked             uint64      `json:"checked"`   // selected rows
	InStream            uint64      `json:"in_stream"` // of them, those whose event the stream holds
	Missing             []Event     `json:"missing"`   // in the order of the table
	MissingCount        uint64      `json:"missing_count"`
	Duplicates          []Duplicate `json:"duplicates"`
	DuplicateCount      uint64      `json:"duplicate_count"`
	OrderInversions     []Inversion `json:"order_inversions"`
	OrderInversionCount uint64      `json:"order_inversion_count"`
	// UnknownCount is how many events in the stream have no row.
	UnknownCount uint64 `json:"unknown_count"`
	AgedOutCount uint64 `json:"aged_out_count"`
	// PendingCount is how many rows the slot has yet to send.
	PendingCount uint64 `json:"pending_count"`
	DeadLetters  int64  `json:"dead_letters"` // open ones
	Held         int64  `json:"held"`         // events that wait behind one
	// Repaired is how many events were published again; nil where that was not asked for.
	Repaired *int64 `json:"repaired,omitempty"`
	OK       bool   `json:"ok"`
}

// Event is a row's event.
type Event struct {
	EventID string `json:"event_id"`
}

// Duplicate is an event that was stored more than once.
type Duplicate struct {
	EventID   string   `json:"event_id"`
	Sequences []uint64 `json:"sequences"`
}

// Inversion is an event that was stored behind a later one.
type Inversion struct {
	AggregateID string `json:"aggregate_id"`
	// Sequences are those of the later event, which was stored first, and of this one.
	Sequences []uint64 `json:"sequences"`
}

func (d *Document) judge() {
	d.OK = d.MissingCount == 0 && d.DuplicateCount == 0 && d.OrderInversionCount == 0
}
