// Package redact keeps secrets out of everything that a person or a log collector
// can read. It owns the knowledge of where passwords and tokens hide in connection
// strings, and in which spellings and pieces libraries print them.
//
// It promises that a known secret, whole or in a piece of four bytes or more between
// the characters at which parsers cut (such as @ # % / : ?), is replaced by ***
// in what is written through it. It never looks into data on standard output, and
// it is the second line only: texts of parsers are not printed in the first place.
package redact
