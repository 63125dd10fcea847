// Package sink turns an event into a JetStream message and publishes messages in
// order. It owns the NATS connection, what an acknowledgement means, and what an
// error code of JetStream means.
//
// It promises that first deliveries are stored in the order in which they were
// handed over, whatever fails in between. It never retries a single message, never
// reports a message as settled that the stream did not acknowledge, and never
// touches PostgreSQL.
package sink
