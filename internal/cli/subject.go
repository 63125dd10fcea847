package cli

import (
	"fmt"
	"strings"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// checkSubject looks at the template alone; whether its columns are mapped is looked
// at once the mapping is known (checkSubjectColumns).
func checkSubject(text string) error {
	_, err := templateColumns(text)
	return err
}

// checkSubjectColumns reports a column in braces that the mapping does not know.
func checkSubjectColumns(template string, mapping decode.Mapping) error {
	columns, err := templateColumns(template)
	if err != nil {
		return err
	}
	for _, column := range columns {
		if !mapped(column, mapping) {
			return fmt.Errorf("names {%s}, which is not a mapped column (add %s=COLUMN to --columns)", column, column)
		}
	}
	return nil
}

func mapped(name string, mapping decode.Mapping) bool {
	if field, ok := decode.ParseField(name); ok {
		return mapping.Column(field) != ""
	}
	_, ok := mapping.ExtraIndex(name)
	return ok
}

// templateColumns returns the names in braces, or what is wrong with the template.
func templateColumns(template string) ([]string, error) {
	if template == "" || len(template) > subjectMax {
		return nil, fmt.Errorf("is not a subject template (1 to %d bytes)", subjectMax)
	}
	if strings.HasPrefix(template, "$") || strings.HasPrefix(template, "_INBOX") {
		return nil, fmt.Errorf("is not a subject template: $ and _INBOX belong to NATS")
	}
	var columns []string
	var shape strings.Builder // the template with x for each value
	rest := template
	for {
		text, after, found := strings.Cut(rest, "{")
		if strings.Contains(text, "}") {
			return nil, fmt.Errorf("is not a subject template: } without {")
		}
		if strings.ContainsAny(text, "*>") || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return nil, fmt.Errorf("is not a subject template: spaces, * and > are not allowed")
		}
		shape.WriteString(text)
		if !found {
			break
		}
		name, remains, shut := strings.Cut(after, "}")
		if !shut || name == "" || strings.Contains(name, "{") {
			return nil, fmt.Errorf("is not a subject template: { without a column name and }")
		}
		columns = append(columns, name)
		shape.WriteByte('x')
		rest = remains
	}
	for token := range strings.SplitSeq(shape.String(), ".") {
		if token == "" {
			return nil, fmt.Errorf("is not a subject template: it has an empty token (a dot at an end, or two in a row)")
		}
	}
	return columns, nil
}
