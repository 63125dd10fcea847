// Package metrics holds the Prometheus collectors of one forwarder. The names, the
// labels and their meaning are part of the contract with users.
//
// It owns a registry of its own: nothing is registered globally and two Metrics do
// not know of each other. It promises that the number of series depends on the
// program alone, never on data: label values come from fixed sets, and what is
// outside of them is counted under "other". A figure that is not known is absent
// from the output, never 0. It does no I/O and never holds an id, a subject, a
// position or free text.
package metrics
