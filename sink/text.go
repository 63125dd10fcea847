package sink

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// appendJSONString writes s as a JSON string; s must be valid UTF-8.
func appendJSONString(b, s []byte) []byte {
	b = append(b, '"')
	start := 0
	for i, c := range s {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', "0123456789abcdef"[c>>4], "0123456789abcdef"[c&15])
		}
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// appendHeaderValue writes a value such that nothing in it can end the header
// line, and nothing of it is lost to the trimming of clients: control characters
// and blanks at the ends are percent-encoded.
func appendHeaderValue[T string | []byte](b []byte, value T) []byte {
	for i := range len(value) {
		c := value[i]
		atEnd := i == 0 || i == len(value)-1
		second := i > 0 && value[i-1] == 0xc2 && c < 0xa0 // of a C1 control character in UTF-8
		first := c == 0xc2 && i+1 < len(value) && value[i+1] < 0xa0
		if c < ' ' || c == 0x7f || (c == ' ' && atEnd) || first || second {
			b = appendPercent(b, c)
		} else {
			b = append(b, c)
		}
	}
	return b
}

// appendCloudEventsValue percent-encodes as the CloudEvents bindings say: blanks,
// double quotes, percent signs and everything outside of printable ASCII.
func appendCloudEventsValue(b, value []byte) []byte {
	for _, c := range value {
		if c <= ' ' || c == '"' || c == '%' || c >= 0x7f {
			b = appendPercent(b, c)
		} else {
			b = append(b, c)
		}
	}
	return b
}

// appendIDPart percent-encodes what is outside of the fixed alphabet of message ids.
func appendIDPart(b, value []byte) []byte {
	for _, c := range value {
		switch {
		case c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == ':', c == '-':
			b = append(b, c)
		default:
			b = appendPercent(b, c)
		}
	}
	return b
}

// validHeaderName tells whether NATS takes the name of a header.
func validHeaderName(name string) bool {
	if name == "" {
		return false
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c >= 0x7f || c == ':' {
			return false
		}
	}
	return true
}

// appendTimestamp writes PostgreSQL's ISO text of a timestamp (zone UTC, as the
// replication connection pins it) as RFC 3339 in UTC with microseconds. Years
// beyond 9999 and before 1 get a sign, as ISO 8601 has it (1 BC is year 0);
// infinity stays the word it is. What is no timestamp is written as it is.
func appendTimestamp(b, text []byte) []byte {
	s := string(text)
	body, bc := strings.CutSuffix(s, " BC")
	body = strings.TrimSuffix(body, "+00")
	date, clock, ok := strings.Cut(body, " ")
	yearText, monthDay, ok2 := strings.Cut(date, "-")
	year, err := strconv.Atoi(yearText)
	if !ok || !ok2 || err != nil || len(clock) < len("00:00:00") || len(monthDay) != len("01-02") {
		return append(b, text...)
	}
	if bc {
		year = 1 - year
	}
	switch {
	case year < 0:
		b = append(b, '-')
		year = -year
	case year > 9999:
		b = append(b, '+')
	}
	digits := strconv.Itoa(year)
	b = append(b, "0000"[:max(0, 4-len(digits))]...)
	b = append(b, digits...)
	b = append(b, '-')
	b = append(b, monthDay...)
	b = append(b, 'T')
	b = append(b, clock[:8]...)
	fraction := strings.TrimPrefix(clock[8:], ".")
	b = append(b, '.')
	b = append(b, fraction...)
	b = append(b, "000000"[:max(0, 6-len(fraction))]...)
	return append(b, 'Z')
}

// traceID returns the trace id of a W3C traceparent, or an empty one when it is none.
func traceID[T string | []byte](traceparent T) T {
	const versionLen, idLen = 3, 32
	if len(traceparent) < versionLen+idLen+1 || traceparent[2] != '-' || traceparent[versionLen+idLen] != '-' {
		return traceparent[:0]
	}
	id := traceparent[versionLen : versionLen+idLen]
	zero := true // which W3C calls invalid
	for i := range len(id) {
		c := id[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return traceparent[:0]
		}
		zero = zero && c == '0'
	}
	if zero {
		return traceparent[:0]
	}
	return id
}

// jsonNumber tells whether text is a JSON number.
func jsonNumber(text []byte) bool {
	i := 0
	digits := func() bool {
		start := i
		for i < len(text) && text[i] >= '0' && text[i] <= '9' {
			i++
		}
		return i > start
	}
	if i < len(text) && text[i] == '-' {
		i++
	}
	zero := i < len(text) && text[i] == '0'
	start := i
	if !digits() || (zero && i-start > 1) {
		return false
	}
	if i < len(text) && text[i] == '.' {
		i++
		if !digits() {
			return false
		}
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		i++
		if i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		if !digits() {
			return false
		}
	}
	return i == len(text)
}

func validUTF8(values ...[]byte) bool {
	for _, v := range values {
		if !utf8.Valid(v) {
			return false
		}
	}
	return true
}
