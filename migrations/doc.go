// Package migrations holds the numbered SQL of the tables, up and down. It owns their
// shape and the table that remembers which steps were done, outbox_cdc_migration.
//
// It promises that a step, once released, never changes: a new shape is a new step. It
// is pure text: it opens no connection; internal/provision runs the steps.
package migrations
