// Package e2e holds the tests of the built binary against real servers, each named
// after what it claims. The package has no code of its own.
package e2e
