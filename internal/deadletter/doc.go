// Package deadletter keeps the events that the stream will never accept as they are, and
// those that wait behind one of them, in the table outbox_dead_letter beside the outbox.
//
// It owns the rows of that table and the form in which a whole event is kept there
// (event.go), so that it can be encoded anew, with the configuration of that day.
//
// It promises that a letter is durable before Insert returns, that one position never has
// two letters, that the bytes of the payload are kept as they were, and that an event is
// held behind a letter only while that letter is open. It publishes nothing, decides
// nothing about an event, and never deletes a row.
package deadletter
