package decode

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pglogrepl"
)

// Position names an event: the timeline of the server that wrote it, the LSN at which
// the commit record of its transaction starts, and its place among the events of that
// transaction, from 0. For one source positions grow in the order of delivery; the LSNs
// of single rows do not, so nothing else may be compared.
type Position struct {
	Timeline  uint32
	CommitLSN pglogrepl.LSN
	Ordinal   uint64
}

// String returns the form of the Outbox-Position header, such as "1:0/16B3748:0".
func (p Position) String() string {
	return string(p.Append(make([]byte, 0, 48)))
}

// Append appends the form of String to b and returns the extended slice.
func (p Position) Append(b []byte) []byte {
	b = strconv.AppendUint(b, uint64(p.Timeline), 10)
	b = append(b, ':')
	b = appendHex(b, uint32(p.CommitLSN>>32))
	b = append(b, '/')
	b = appendHex(b, uint32(p.CommitLSN))
	b = append(b, ':')
	return strconv.AppendUint(b, p.Ordinal, 10)
}

// appendHex appends v in upper-case hexadecimal without leading zeros, as %X does.
func appendHex(b []byte, v uint32) []byte {
	const digits = "0123456789ABCDEF"
	shift := 28
	for shift > 0 && v>>shift == 0 {
		shift -= 4
	}
	for ; shift >= 0; shift -= 4 {
		b = append(b, digits[v>>shift&0xF])
	}
	return b
}

// Compare returns -1, 0 or 1 as p comes before, is, or comes after q. The timeline
// weighs most: after a promotion LSNs restart below those that were already used.
func (p Position) Compare(q Position) int {
	if c := cmp.Compare(p.Timeline, q.Timeline); c != 0 {
		return c
	}
	if c := cmp.Compare(p.CommitLSN, q.CommitLSN); c != 0 {
		return c
	}
	return cmp.Compare(p.Ordinal, q.Ordinal)
}

// ParsePosition reads what String writes; lower-case hexadecimal digits are accepted.
func ParsePosition(s string) (Position, error) {
	timeline, rest, ok := strings.Cut(s, ":")
	lsn, ordinal, ok2 := strings.Cut(rest, ":")
	if !ok || !ok2 {
		return Position{}, fmt.Errorf("parse position %q: want <timeline>:<commit LSN>:<ordinal>", s)
	}
	t, err := parseDigits(timeline, 10, 32)
	if err != nil {
		return Position{}, fmt.Errorf("parse position %q: timeline: %w", s, err)
	}
	l, err := parseLSN(lsn)
	if err != nil {
		return Position{}, fmt.Errorf("parse position %q: commit LSN: %w", s, err)
	}
	o, err := parseDigits(ordinal, 10, 64)
	if err != nil {
		return Position{}, fmt.Errorf("parse position %q: ordinal: %w", s, err)
	}
	return Position{Timeline: uint32(t), CommitLSN: l, Ordinal: o}, nil
}

// parseLSN is strict where pglogrepl.ParseLSN scans: nothing may follow the number.
func parseLSN(s string) (pglogrepl.LSN, error) {
	hi, lo, ok := strings.Cut(s, "/")
	if !ok {
		return 0, fmt.Errorf("%q is not of the form X/X", s)
	}
	h, err := parseDigits(hi, 16, 32)
	if err != nil {
		return 0, err
	}
	l, err := parseDigits(lo, 16, 32)
	if err != nil {
		return 0, err
	}
	return pglogrepl.LSN(h<<32 | l), nil
}

// parseDigits is strconv.ParseUint with an error that says only what is wrong.
func parseDigits(s string, base, bits int) (uint64, error) {
	v, err := strconv.ParseUint(s, base, bits)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number of %d bits in base %d", s, bits, base)
	}
	return v, nil
}
