package decode

import (
	"slices"
	"strings"
)

// ExtraColumn is a column that is no field but may stand in the subject template.
type ExtraColumn struct {
	Name   string // as in the template's braces
	Column string // as in the table, exact
}

// Mapping says from which column each field is read. The zero value is DefaultMapping.
// A Mapping is a value; its methods do not change it.
type Mapping struct {
	given    bool // false: the zero value
	columns  [NumFields]string
	explicit [NumFields]bool
	extra    []ExtraColumn
	order    string
}

// orderKey is the key that names the column by which the table's rows are ordered.
const orderKey = "order"

// DefaultMapping maps each field to the column of its own name; rows are ordered by id.
func DefaultMapping() Mapping {
	return Mapping{given: true, columns: fieldNames, order: "id"}
}

// DebeziumMapping maps the columns of Debezium's outbox event router.
//
// Source: https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html
func DebeziumMapping() Mapping {
	m := DefaultMapping()
	m.order = ""
	setColumn(&m, FieldEventID, "id")
	setColumn(&m, FieldAggregateType, "aggregatetype")
	setColumn(&m, FieldAggregateID, "aggregateid")
	setColumn(&m, FieldEventType, "type")
	setColumn(&m, FieldPayload, "payload")
	return m
}

func setColumn(m *Mapping, f Field, column string) {
	m.columns[f] = column
	m.explicit[f] = column != ""
}

// ParseMapping reads the value of --columns: pairs key=column, separated by commas,
// after the word debezium or without it. A key is a field, `order`, or any other name,
// which is then an extra column. A column is taken exactly as written, or in double
// quotes where it holds a comma, a blank or a quote; an empty one (`topic=`) says that the field has
// no column. Fields that are not named keep the column of their own name, if the table
// has it. The error is a *MappingError.
func ParseMapping(s string) (Mapping, error) {
	m := DefaultMapping()
	seen := map[string]bool{}
	rest := strings.TrimSpace(s)
	for first := true; rest != ""; first = false {
		if first {
			if after, ok := cutPreset(rest); ok {
				m, rest = DebeziumMapping(), after
				continue
			}
		}
		key, column, after, err := parsePair(s, rest)
		if err != nil {
			return Mapping{}, err
		}
		if seen[key] {
			return Mapping{}, &MappingError{Input: s, Key: key, Reason: "is given twice"}
		}
		seen[key] = true
		if err := assign(&m, s, key, column); err != nil {
			return Mapping{}, err
		}
		rest = after
	}
	// The order column must order: a column that is itself a field (an event id, mostly) is no
	// counter unless the user says so.
	if !seen[orderKey] && slices.Contains(m.columns[:], m.order) {
		m.order = ""
	}
	return m, nil
}

// cutPreset reads the word debezium and the comma after it.
func cutPreset(s string) (rest string, ok bool) {
	word, rest, _ := strings.Cut(s, ",")
	if strings.TrimSpace(word) != "debezium" {
		return "", false
	}
	return strings.TrimSpace(rest), true
}

func assign(m *Mapping, input, key, column string) error {
	if f, ok := ParseField(key); ok {
		setColumn(m, f, column)
		return nil
	}
	if key == orderKey {
		m.order = column
		return nil
	}
	if column == "" {
		return &MappingError{Input: input, Key: key, Reason: "has no column"}
	}
	for _, name := range fieldNames {
		if oneEditApart(key, name) {
			return &MappingError{Input: input, Key: key, Reason: "is no field; the nearest is " + name}
		}
	}
	m.extra = append(m.extra, ExtraColumn{Name: key, Column: column})
	return nil
}

// parsePair reads key=column and the comma after it from the start of s.
func parsePair(input, s string) (key, column, rest string, err error) {
	key, rest, ok := strings.Cut(s, "=")
	key = strings.TrimSpace(key)
	if !ok || strings.Contains(key, ",") {
		word, _, _ := strings.Cut(s, ",")
		return "", "", "", &MappingError{Input: input, Key: strings.TrimSpace(word), Reason: "has no ="}
	}
	if !isKey(key) {
		return "", "", "", &MappingError{Input: input, Key: key, Reason: "is not a name of letters, digits and underscores"}
	}
	rest = strings.TrimSpace(rest)
	quoted := strings.HasPrefix(rest, `"`)
	if quoted {
		column, rest, err = parseQuotedColumn(input, key, rest)
		if err != nil {
			return "", "", "", err
		}
	} else {
		var comma bool
		column, rest, comma = strings.Cut(rest, ",")
		column, rest = strings.TrimSpace(column), strings.TrimSpace(rest)
		if comma && rest == "" {
			return "", "", "", &MappingError{Input: input, Key: key, Reason: "is followed by a comma and nothing else"}
		}
	}
	if len(column) > identifierMax || strings.Contains(column, "\x00") || !quoted && strings.Contains(column, "=") {
		return "", "", "", &MappingError{Input: input, Key: key, Reason: "names a column that PostgreSQL cannot have; is a comma missing?"}
	}
	return key, column, rest, nil
}

// parseQuotedColumn reads "column" and the comma after it.
func parseQuotedColumn(input, key, s string) (column, rest string, err error) {
	wrong := func(reason string) (string, string, error) {
		return "", "", &MappingError{Input: input, Key: key, Reason: reason}
	}
	column, rest, closed := cutQuoted(s)
	rest = strings.TrimSpace(rest)
	switch {
	case !closed:
		return wrong("has a double quote that is not closed")
	case column == "":
		return wrong("names an empty column")
	case rest == "":
		return column, "", nil
	case rest[0] != ',' || strings.TrimSpace(rest[1:]) == "":
		return wrong("has text after the closing double quote")
	default:
		return column, strings.TrimSpace(rest[1:]), nil
	}
}

func isKey(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || i > 0 && c >= '0' && c <= '9' {
			continue
		}
		return false
	}
	return s != ""
}

// oneEditApart reports whether one letter added, dropped or changed makes a into b.
func oneEditApart(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	if len(b)-len(a) > 1 || a == b {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	if len(a) == len(b) {
		return a[i+1:] == b[i+1:]
	}
	return a[i:] == b[i+1:]
}

// orDefault gives the zero value its meaning.
func (m Mapping) orDefault() Mapping {
	if m.given {
		return m
	}
	return DefaultMapping()
}

// Column returns the column of a field; empty means that the field has none.
func (m Mapping) Column(f Field) string { return m.orDefault().columns[f] }

// Explicit reports whether the user named the field's column. Such a column must exist.
func (m Mapping) Explicit(f Field) bool { return m.orDefault().explicit[f] }

// Extra returns the extra columns in the order of Event.Extra. The caller must not change it.
func (m Mapping) Extra() []ExtraColumn { return m.extra }

// ExtraIndex returns the index of the extra column of that name for Event.Extra.
func (m Mapping) ExtraIndex(name string) (int, bool) {
	i := slices.IndexFunc(m.extra, func(x ExtraColumn) bool { return x.Name == name })
	return i, i >= 0
}

// Order returns the column that orders the rows of the table; empty means none is known.
func (m Mapping) Order() string { return m.orDefault().order }

// String returns the mapping in the form that ParseMapping reads, all fields named.
func (m Mapping) String() string {
	m = m.orDefault()
	var b strings.Builder
	for i, column := range m.columns {
		writePair(&b, fieldNames[i], column)
	}
	for _, x := range m.extra {
		writePair(&b, x.Name, x.Column)
	}
	writePair(&b, orderKey, m.order)
	return b.String()
}

func writePair(b *strings.Builder, key, column string) {
	if b.Len() > 0 {
		b.WriteByte(',')
	}
	b.WriteString(key)
	b.WriteByte('=')
	if strings.ContainsAny(column, `,"= `) {
		column = `"` + strings.ReplaceAll(column, `"`, `""`) + `"`
	}
	b.WriteString(column)
}
