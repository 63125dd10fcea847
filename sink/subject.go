package sink

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// maxSubjectBytes keeps a subject well below the server's limit for a protocol line.
const maxSubjectBytes = 1024

// Template makes a subject from an event's columns.
type Template struct {
	text  string
	parts []templatePart
}

type templatePart struct {
	literal string // when column is empty
	column  string
	field   decode.Field
	extra   int // index of an extra column, or -1
}

// ParseTemplate reads a subject template such as
// "outbox.{aggregate_type}.{event_type}"; the names in braces are those of the mapping.
func ParseTemplate(text string, mapping decode.Mapping) (Template, error) {
	t := Template{text: text}
	rest := text
	for rest != "" {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			t.parts = append(t.parts, templatePart{literal: rest})
			break
		}
		if rest[open] == '}' {
			return Template{}, fmt.Errorf("subject template %q has a } without a {", text)
		}
		if open > 0 {
			t.parts = append(t.parts, templatePart{literal: rest[:open]})
		}
		end := strings.IndexByte(rest, '}')
		if end < open {
			return Template{}, fmt.Errorf("subject template %q has a { without a }", text)
		}
		part, err := columnPart(rest[open+1:end], mapping)
		if err != nil {
			return Template{}, fmt.Errorf("subject template %q: %w", text, err)
		}
		t.parts = append(t.parts, part)
		rest = rest[end+1:]
	}
	probe := t.probe()
	if reason := invalidSubject(probe); reason != "" {
		return Template{}, fmt.Errorf("subject template %q does not make valid subjects: %s", text, reason)
	}
	return t, nil
}

func columnPart(name string, mapping decode.Mapping) (templatePart, error) {
	if f, ok := decode.ParseField(name); ok {
		if mapping.Column(f) == "" {
			return templatePart{}, fmt.Errorf("{%s} has no column in the mapping", name)
		}
		return templatePart{column: name, field: f, extra: -1}, nil
	}
	if i, ok := mapping.ExtraIndex(name); ok {
		return templatePart{column: name, extra: i}, nil
	}
	return templatePart{}, fmt.Errorf("{%s} is not a mapped column", name)
}

// String returns the template's text.
func (t Template) String() string { return t.text }

// Fields returns the fields that the template uses.
func (t Template) Fields() []decode.Field {
	var out []decode.Field
	for _, p := range t.parts {
		if p.column != "" && p.extra < 0 {
			out = append(out, p.field)
		}
	}
	return out
}

// probe returns a subject of the template with harmless values.
func (t Template) probe() string {
	var b []byte
	for _, p := range t.parts {
		if p.column == "" {
			b = append(b, p.literal...)
		} else {
			b = append(b, 'x')
		}
	}
	return string(b)
}

// append writes the subject of an event.
func (t Template) append(b []byte, ev *decode.Event) []byte {
	for _, p := range t.parts {
		switch {
		case p.column == "":
			b = append(b, p.literal...)
		case p.extra >= 0:
			b = appendToken(b, ev.Extra(p.extra))
		default:
			b = appendToken(b, ev.Value(p.field))
		}
	}
	return b
}

// appendToken writes a value such that it cannot break the subject around it. What
// a token may not hold is percent-encoded; an empty value becomes %00, which no
// text of PostgreSQL can be.
func appendToken(b, value []byte) []byte {
	if len(value) == 0 {
		return append(b, "%00"...)
	}
	for i := 0; i < len(value); {
		c := value[i]
		switch {
		case c == '.':
			if i == 0 || i == len(value)-1 || value[i-1] == '.' {
				b = appendPercent(b, c)
			} else {
				b = append(b, c)
			}
		case c <= ' ' || c == '*' || c == '>' || c == 0x7f:
			b = appendPercent(b, c)
		case c >= utf8.RuneSelf:
			r, size := utf8.DecodeRune(value[i:])
			if (r == utf8.RuneError && size <= 1) || unicode.IsControl(r) {
				for _, c := range value[i : i+size] {
					b = appendPercent(b, c)
				}
			} else {
				b = append(b, value[i:i+size]...)
			}
			i += size
			continue
		default:
			b = append(b, c)
		}
		i++
	}
	return b
}

const upperHex = "0123456789ABCDEF"

func appendPercent(b []byte, c byte) []byte {
	return append(b, '%', upperHex[c>>4], upperHex[c&15])
}

// reservedSubject tells whether a subject could reach the server's own API or
// somebody's inbox; a row must never do that.
func reservedSubject(subject string) bool {
	return strings.HasPrefix(subject, "$") || strings.HasPrefix(subject, "_INBOX")
}

// invalidSubject says why a subject cannot be published to, or "".
func invalidSubject(subject string) string {
	if subject == "" {
		return "it is empty"
	}
	tokenStart := 0
	for i := range len(subject) + 1 {
		if i == len(subject) || subject[i] == '.' {
			if i == tokenStart {
				return "it has an empty token"
			}
			tokenStart = i + 1
			continue
		}
		switch c := subject[i]; {
		case c <= ' ' || c == 0x7f:
			return "it holds a blank or a control character"
		case c == '*' || c == '>':
			return "it holds a wildcard"
		}
	}
	if !utf8.ValidString(subject) {
		return "it is not valid UTF-8"
	}
	return ""
}

// subjectMatches tells whether a stream's subject filter covers a subject.
func subjectMatches(filter, subject string) bool {
	for {
		fTok, fRest, fMore := strings.Cut(filter, ".")
		if fTok == ">" && !fMore {
			return subject != ""
		}
		sTok, sRest, sMore := strings.Cut(subject, ".")
		if fTok != "*" && fTok != sTok {
			return false
		}
		if !fMore || !sMore {
			return fMore == sMore
		}
		filter, subject = fRest, sRest
	}
}
