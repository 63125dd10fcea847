// Package request keeps what commands ask of the holder of the slot, who alone
// publishes: requests in the table outbox_request, each with its selection of rows, its
// state and how far it got. It also reads the rows that a request selects.
//
// It promises that a request is worked on by one process at a time, that what a process
// which lost it still writes has no effect, and that rows come in the order of the table
// with a bounded number of bytes in memory. It never publishes, and starts no goroutine.
package request
