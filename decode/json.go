package decode

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// parseObject returns the members of a JSON object with their text exactly as it stands,
// without the blanks around it. Of members with the same name the last one counts, as
// in jsonb. The texts belong to content.
func parseObject(content []byte) (map[string][]byte, error) {
	switch {
	case !utf8.Valid(content):
		return nil, &ValueError{Field: "content", Reason: "is not UTF-8"}
	case !json.Valid(content):
		return nil, &ValueError{Field: "content", Reason: "is not JSON"}
	}
	s := jsonScanner{text: content}
	if s.blanks(); s.text[s.off] != '{' {
		return nil, &ValueError{Field: "content", Reason: "is not a JSON object"}
	}
	members := map[string][]byte{}
	for s.off++; ; s.off++ { // past { or ,
		s.blanks()
		if s.text[s.off] == '}' {
			return members, nil
		}
		name, problem := unquote(s.value())
		if problem != "" {
			return nil, &ValueError{Field: "content", Reason: "has a member name that " + problem}
		}
		s.blanks()
		s.off++ // past :
		s.blanks()
		members[string(name)] = s.value()
		s.blanks()
		if s.text[s.off] == '}' {
			return members, nil
		}
	}
}

// jsonScanner walks over text that is known to be valid JSON.
type jsonScanner struct {
	text []byte
	off  int
}

func (s *jsonScanner) blanks() {
	for s.off < len(s.text) {
		switch s.text[s.off] {
		case ' ', '\t', '\n', '\r':
			s.off++
		default:
			return
		}
	}
}

// value returns the value at the current place and moves behind it.
func (s *jsonScanner) value() []byte {
	start, depth := s.off, 0
	for ; s.off < len(s.text); s.off++ {
		switch s.text[s.off] {
		case '"':
			s.quoted()
			if depth == 0 {
				s.off++
				return s.text[start:s.off]
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return bytes.TrimRight(s.text[start:s.off], " \t\r\n")
			}
			if depth--; depth == 0 {
				s.off++
				return s.text[start:s.off]
			}
		case ',':
			if depth == 0 {
				return bytes.TrimRight(s.text[start:s.off], " \t\r\n")
			}
		}
	}
	return s.text[start:]
}

// quoted moves from an opening quote to the closing one.
func (s *jsonScanner) quoted() {
	for s.off++; s.off < len(s.text) && s.text[s.off] != '"'; s.off++ {
		if s.text[s.off] == '\\' {
			s.off++
		}
	}
}

func isNull(raw []byte) bool { return len(raw) == 0 || string(raw) == "null" }

// scalarText returns a JSON string's text, or a number or boolean as written; nil for
// null. The problem is empty if all is well.
func scalarText(raw []byte) (text []byte, problem string) {
	if isNull(raw) {
		return nil, ""
	}
	switch raw[0] {
	case '"':
		return unquote(raw)
	case '{', '[':
		return nil, "is not a string or number"
	default:
		return raw, ""
	}
}

// unquote returns the text of a valid JSON string. What PostgreSQL could not store in a
// text column is a problem here too, and is never replaced by another character.
func unquote(raw []byte) (text []byte, problem string) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1], ""
	}
	if problem := badEscape(raw); problem != "" {
		return nil, problem
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, "is not a JSON string"
	}
	return []byte(s), ""
}

// badEscape finds \u0000 and surrogates without their other half.
func badEscape(raw []byte) string {
	unit := func(at int) int64 {
		if at+6 > len(raw) || raw[at] != '\\' || raw[at+1] != 'u' {
			return -1
		}
		v, err := strconv.ParseInt(string(raw[at+2:at+6]), 16, 32)
		if err != nil {
			return -1
		}
		return v
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		switch u := unit(i); {
		case u == 0:
			return `holds \u0000`
		case u >= 0xDC00 && u <= 0xDFFF:
			return "holds half a surrogate pair"
		case u >= 0xD800 && u <= 0xDBFF:
			if low := unit(i + 6); low < 0xDC00 || low > 0xDFFF {
				return "holds half a surrogate pair"
			}
			i += 10 // the loop adds one, and so does the line below
		}
		i++ // past the escaped character
	}
	return ""
}

// integerText returns a bigint as PostgreSQL prints it.
func integerText(value []byte) (text []byte, problem string) {
	n, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil {
		return value, notA("an integer of 64 bits", value)
	}
	return strconv.AppendInt(nil, n, 10), ""
}

// timeText returns a timestamptz as PostgreSQL prints it with TimeZone UTC, from the form
// of to_jsonb or of a cast to text.
func timeText(value []byte) (text []byte, problem string) {
	s := string(value)
	if s == "infinity" || s == "-infinity" {
		return value, ""
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07"} {
		t, err := time.Parse(layout, s)
		if err != nil {
			continue
		}
		t = t.Round(time.Microsecond).UTC()
		if t.Year() < 1 || t.Year() > 9999 {
			break
		}
		return t.AppendFormat(nil, "2006-01-02 15:04:05.999999+00"), ""
	}
	return value, notA("a time with its zone", value)
}
