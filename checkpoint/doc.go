// Package checkpoint answers one question: which position may PostgreSQL be told?
//
// The answer is the end LSN of the last transaction such that it and all before it
// are settled, where an event is settled when JetStream has acknowledged it (or when
// something else is durably stored in its place). It is contiguous, never a maximum.
// While nothing is open and nothing is in flight, the WAL end that the server
// names in a keepalive may be told too, so that busy neighbours do not hold WAL.
//
// The package is pure: no I/O, no clock, no goroutine, no lock. A Tracker belongs
// to one goroutine. Its tests are transcripts (testdata).
package checkpoint
