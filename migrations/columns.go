package migrations

// SharedTable is a table besides the outbox, and the columns that later code relies on.
type SharedTable struct {
	Name    string
	Columns map[string]string // name to type, as format_type writes it
	// Added are the columns that a later step adds: before it they are not there.
	Added map[string]string
}

// SharedTables lists the tables that all outboxes of one schema share, with the columns
// of the newest step. A table of that name with others was made by somebody else.
func SharedTables() []SharedTable {
	return []SharedTable{
		{Name: "outbox_dead_letter", Columns: map[string]string{
			"id": "bigint", "source": "text", "position": "text", "event_id": "text", "aggregate_type": "text", "aggregate_id": "text",
			"subject": "text", "headers": "jsonb", "payload": "bytea", "reason_code": "text", "reason": "text", "attempts": "integer",
			"held_behind": "bigint", "first_failed_at": "timestamp with time zone", "dead_at": "timestamp with time zone",
			"resolved_at": "timestamp with time zone", "resolution": "text",
		}, Added: map[string]string{"event": "bytea"}},
		{Name: "outbox_request", Columns: map[string]string{
			"id": "bigint", "kind": "text", "selection": "jsonb", "state": "text", "progress": "jsonb",
			"requested_at": "timestamp with time zone", "finished_at": "timestamp with time zone", "error": "text",
		}},
		{Name: "inbox", Columns: map[string]string{
			"consumer": "text", "event_id": "text", "aggregate_type": "text", "aggregate_id": "text", "aggregate_version": "bigint",
			"processed_at": "timestamp with time zone",
		}},
	}
}
