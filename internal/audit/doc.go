// Package audit compares the outbox table with the stream, and knows when what is
// committed has been delivered.
//
// It only looks: at rows in one snapshot, at the slot, at dead letters, and at the headers
// of the stream's messages. The one thing that it writes is a logical message without
// content, whose place in the WAL it waits for. It never publishes; what is missing is
// asked of the holder of the slot.
//
// Its memory does not grow with the table or the stream: both sides are written to
// temporary files, divided by a hash of the event id, and compared part by part.
package audit
