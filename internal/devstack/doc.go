// Package devstack starts and stops the two servers that outbox-cdc stands between, on
// this machine and for one process: a PostgreSQL from the machine's own binaries and a
// nats-server with JetStream embedded in the process.
//
// It owns the folders of those servers, their ports on 127.0.0.1 and their processes.
// It promises that nothing is left behind: Close stops what was started and removes
// throw-away folders, and on Linux a PostgreSQL also stops when this process dies
// without a chance to say goodbye. It never listens on another address than 127.0.0.1
// and never touches a server that it did not start.
//
// The servers trust every user of this machine. They are for development and tests.
package devstack
