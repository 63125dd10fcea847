package decode

import (
	"fmt"
	"strings"
)

// identifierMax is PostgreSQL's longest identifier, in bytes (NAMEDATALEN - 1).
const identifierMax = 63

// TableName is a table's schema and name, exactly as in the catalog.
type TableName struct {
	Schema, Name string
}

// String returns schema.name with each part quoted where SQL needs it. An empty name
// gives an empty string; a name without schema stands alone.
func (t TableName) String() string {
	switch {
	case t.Name == "":
		return ""
	case t.Schema == "":
		return QuoteIdentifier(t.Name)
	default:
		return QuoteIdentifier(t.Schema) + "." + QuoteIdentifier(t.Name)
	}
}

// QuoteIdentifier returns the identifier as SQL text: as it is where that is safe, else
// in double quotes. It agrees with PostgreSQL's quote_ident.
func QuoteIdentifier(name string) string {
	if isPlainIdentifier(name) && !keywords[name] {
		return name
	}
	return `"` + strings.ReplaceAll(name, `"`, `""`) + `"`
}

func isPlainIdentifier(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c >= 'a' && c <= 'z' || c == '_' || i > 0 && c >= '0' && c <= '9' {
			continue
		}
		return false
	}
	return name != ""
}

// ParseTableName reads a table name as SQL does: `outbox`, `billing.outbox` or
// `"Billing-EU"."Order.Outbox"`. A part without quotes is folded to lower case, a name
// without schema is in public. The error is a *NameError.
func ParseTableName(s string) (TableName, error) {
	first, rest, err := parseIdentifier(s, s)
	if err != nil {
		return TableName{}, err
	}
	if rest == "" {
		return TableName{Schema: "public", Name: first}, nil
	}
	second, rest, err := parseIdentifier(s, rest[1:])
	if err != nil {
		return TableName{}, err
	}
	if rest != "" {
		return TableName{}, &NameError{Input: s, Reason: "has more than two parts"}
	}
	return TableName{Schema: first, Name: second}, nil
}

// parseIdentifier reads one part of the table name whole from the start of s. What is
// left begins with a dot or is empty.
func parseIdentifier(whole, s string) (name, rest string, err error) {
	if strings.HasPrefix(s, `"`) {
		name, rest, err = parseQuoted(whole, s)
	} else {
		name, rest, err = parseUnquoted(whole, s)
	}
	switch {
	case err != nil:
		return "", "", err
	case name == "":
		return "", "", &NameError{Input: whole, Reason: "has an empty part"}
	case len(name) > identifierMax:
		return "", "", &NameError{Input: whole, Reason: fmt.Sprintf("has a part of more than %d bytes", identifierMax)}
	case strings.IndexByte(name, 0) >= 0:
		return "", "", &NameError{Input: whole, Reason: "holds a NUL character"}
	}
	return name, rest, nil
}

func parseQuoted(whole, s string) (name, rest string, err error) {
	name, rest, closed := cutQuoted(s)
	switch {
	case !closed:
		return "", "", &NameError{Input: whole, Reason: "has a double quote that is not closed"}
	case rest != "" && rest[0] != '.':
		return "", "", &NameError{Input: whole, Reason: "has text after a closing double quote"}
	default:
		return name, rest, nil
	}
}

// cutQuoted reads the name in double quotes at the start of s, where two of them stand
// for one. closed is false when the closing one is missing.
func cutQuoted(s string) (name, rest string, closed bool) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] != '"':
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == '"':
			b.WriteByte('"')
			i++
		default:
			return b.String(), s[i+1:], true
		}
	}
	return "", "", false
}

func parseUnquoted(whole, s string) (name, rest string, err error) {
	end := strings.IndexByte(s, '.')
	if end < 0 {
		end = len(s)
	}
	name, rest = s[:end], s[end:]
	folded := []byte(name)
	for i, c := range folded {
		switch {
		case c >= 'A' && c <= 'Z':
			folded[i] = c + 'a' - 'A'
		case c >= 'a' && c <= 'z', c == '_', c >= 0x80:
		case i > 0 && (c >= '0' && c <= '9' || c == '$'):
		default:
			return "", "", &NameError{Input: whole, Reason: fmt.Sprintf("has the character %q outside double quotes", rune(c))}
		}
	}
	return string(folded), rest, nil
}
