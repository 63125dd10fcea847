// Package decodetest writes pgoutput messages as PostgreSQL does, for tests and
// simulations that need a write-ahead log without a server. It owns nothing and
// promises that its bytes equal those of a real server (decode's tests compare them).
package decodetest
