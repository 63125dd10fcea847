package fault

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/ERRORS.md anew")

const errorsHead = `# Error codes

<!-- Made from internal/fault/table.go by: go test ./internal/fault -run TestErrorsPage -update -->

What an error code of PostgreSQL or JetStream means to outbox-cdc. This page is made from the
one table in the program that decides it; texts of errors are never looked at.

| class | what ` + "`start`" + ` does | exit code of a command that it ends |
|---|---|---|
| transient | waits and tries again, for ever, with jittered backoff up to 30 s | 1 |
| resync | reads the stream's newest message and goes on at once from the first event that is not stored | |
| poison | this one event will never be accepted as it is: it becomes a dead letter, or with ` + "`--on-poison halt`" + ` it stops and the slot stays before the event | 3 |
| operator | a person must act: it stops, without one retry | 3 |

A code that is in neither table is ` + "`operator`" + `: unknown means stop and say so. A right or a password
(28, 42501) that is taken away from a forwarder which has streamed before is waited out. A broker
that refuses credentials is waited out too, once it has accepted them.
`

// errorsPage renders the two tables.
func errorsPage() []byte {
	var b bytes.Buffer
	b.WriteString(errorsHead)
	b.WriteString("\n## PostgreSQL: SQLSTATE\n\nA row of two characters stands for all codes of that class that have no row of their own.\n\n")
	writeRows(&b, postgresRows)
	b.WriteString("\n## JetStream: err_code\n\nThe number in `err_code` of an API error. The HTTP-like `code` beside it is no guide.\n\n")
	writeRows(&b, jetStreamRows)
	return b.Bytes()
}

func writeRows(b *bytes.Buffer, rows []Row) {
	b.WriteString("| code | class | meaning | next step |\n|---|---|---|---|\n")
	for _, row := range rows {
		class := row.Class.String()
		if row.Resync {
			class = "resync"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", row.Code, class, cell(row.Title), cell(row.Hint))
	}
}

func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

func TestErrorsPageIsInStepWithTheTable(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "ERRORS.md")
	want := errorsPage()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v\nwrite it with: go test ./internal/fault -run TestErrorsPage -update", err)
	}
	if !bytes.Equal(got, want) {
		t.Error("docs/ERRORS.md is not what internal/fault/table.go says\nwrite it anew with: go test ./internal/fault -run TestErrorsPage -update")
	}
}
