package cli

import (
	"fmt"

	"github.com/dustin/go-humanize"
)

// resultDocument is the JSON of a command that makes, moves or drops one thing.
type resultDocument struct {
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Result string `json:"result"`
	SQL    string `json:"sql,omitempty"`
}

// report says what became of one thing; sql is what a dry run would do.
func (in *invocation) report(kind, name, result, sql string) error {
	if in.on("json") {
		return printJSON(in.stdout, resultDocument{Kind: kind, Name: name, Result: result, SQL: sql})
	}
	if sql != "" {
		return printf(in.stdout, "-- %s %s: %s\n%s", kind, name, result, sql)
	}
	return printf(in.stdout, "%s %s: %s\n", kind, name, result)
}

func textOr(text *string, without string) string {
	if text == nil {
		return without
	}
	return *text
}

func bytesOr(bytes *int64, without string) string {
	if bytes == nil {
		return without
	}
	if *bytes < 0 {
		return "-" + humanize.IBytes(uint64(-*bytes))
	}
	return humanize.IBytes(uint64(*bytes))
}

func countOr[N int64 | uint64](n *N, without string) string {
	if n == nil {
		return without
	}
	return humanize.Comma(int64(*n))
}

// secondsText writes an age for a person.
func secondsText(s float64) string {
	switch {
	case s < 60:
		return fmt.Sprintf("%.1fs", s)
	case s < 3600:
		return fmt.Sprintf("%dm%02ds", int(s)/60, int(s)%60)
	case s < 86400:
		return fmt.Sprintf("%dh%02dm", int(s)/3600, int(s)%3600/60)
	default:
		return fmt.Sprintf("%dd%02dh", int(s)/86400, int(s)%86400/3600)
	}
}
