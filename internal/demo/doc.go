// Package demo shows what an outbox is for: it writes orders, each with its event in one
// transaction, and watches the events arrive.
//
// It owns its writer, its subscriber and the count of both. It promises that the
// count is by event id: an event that never arrives, arrives twice, or arrives although
// its order was rolled back is told apart and makes the summary not OK. It neither starts
// servers nor forwards: it is given both.
package demo
