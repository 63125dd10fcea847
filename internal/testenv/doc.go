// Package testenv gives tests real servers and the real binary, and a network between
// them that can be cut.
//
// It owns what it starts: PostgreSQL, nats-server inside the test process or as a process
// of its own that can be killed, a TCP proxy, and runs of the built outbox-cdc. All of it
// ends with the test (or, where it is shared, with the test package), and on Linux also
// when the test process is killed. It promises to wait for signals, never for time to
// pass: each wait has a deadline and fails the test with what was seen instead.
//
// It is for tests alone; no other code imports it. A missing server fails a test, it
// never skips one.
//
// Functions that take a testing.TB and methods of what they return fail that test on
// an error. Where a function says nothing else, call it from the test's own goroutine.
package testenv
