// Package bench holds the benchmark of make bench: how fast the built forwarder drains a
// backlog, and what each event costs it, beside the bare loop of package bareloop.
//
// Both run as processes of their own against the same PostgreSQL and the same
// nats-server process. Each run reads a copy of one slot, hence the same WAL, into a
// fresh stream, and counts only when the stream holds every row. The figures come from
// the stream's own timestamps and from /proc, so the benchmark needs Linux. Nothing is
// asserted on them. The package has no code of its own.
package bench
