// Command bareloop is the yardstick of make bench: the least that a program has to do to
// carry changes from a replication slot to JetStream, written plainly.
//
// It receives from the slot, looks at nothing but the type of each message, and for each
// inserted row publishes a body and headers of a given size from memory, pipelined, with
// a message id, at most 4096 of them unacknowledged. It decodes no row, keeps no order
// after a failure, confirms no position and survives no error: it must never be used to
// forward anything.
package main
