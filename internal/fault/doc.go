// Package fault holds the one error policy of the program: what kind of failure
// an error is, what a person is told of it, and which exit code it ends in.
//
// It owns the table of SQLSTATEs and JetStream error codes (table.go). It never
// decides by the text of an error, never logs and never retries: callers ask for
// the class and act on it.
package fault
