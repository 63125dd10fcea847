// Package archtest holds the rules of the house as tests: which package may import
// which, whose types may appear in whose signatures, where goroutines may be started,
// where the process may be ended and signals taken.
//
// It has no code of its own. The rules are tables at the top of each test file: a new
// package or a new place for a goroutine is a new row with its reason. It reads the
// source alone and never builds or runs anything.
package archtest
