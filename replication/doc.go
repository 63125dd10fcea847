// Package replication owns the PostgreSQL side: the replication connection that
// streams a logical slot, and slots and publications as things to inspect and make.
//
// It promises that PostgreSQL is told exactly the position it is asked to tell,
// in all three fields, and that a server going away, a server shutting down and a
// caller's deadline are told apart. It never decodes a row, never decides which
// position may be confirmed, and never retries.
//
// Protocol: https://www.postgresql.org/docs/current/protocol-replication.html
package replication
