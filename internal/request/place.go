package request

// Place is where a row stands in the order of a selection.
type Place struct {
	// Order is the text of the order column; nil where it is NULL, or the table has none.
	Order *string `json:"order,omitempty"`
	// EventID tells rows of the same order apart.
	EventID string `json:"event_id"`
}
