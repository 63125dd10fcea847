// Package decode turns the messages of PostgreSQL's pgoutput plugin into events.
//
// It owns the wire format (protocol version 1, text values, no streaming of
// transactions in progress), the layout of each relation at the moment of each row,
// and the mapping from column names to the fields of an event.
//
// It promises that a row is read with the layout that was valid when it was written,
// that a value is exactly the bytes that PostgreSQL sent, that an event owns its
// bytes, and that no input makes it panic or allocate out of proportion to the input.
//
// It does no I/O, reads no clock, starts no goroutine, and skips nothing without
// counting it.
//
// Source of the format: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
package decode
