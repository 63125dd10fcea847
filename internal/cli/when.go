package cli

import (
	"fmt"
	"strings"
	"time"
)

// whenForms are the ways to write a time; one without a zone is UTC.
var whenForms = []string{
	time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999",
	"2006-01-02T15:04Z07:00", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02",
}

// parseWhen reads a moment: a time, or a duration, which is that long before now.
func parseWhen(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, form := range whenForms {
		if at, err := time.Parse(form, text); err == nil {
			return at.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("must be a time such as 2026-11-30, 2026-11-30T14:00:00Z or 2026-11-30T14:00:00+01:00, or how long ago: 90m, 24h")
}

func checkWhen(text string) error {
	_, err := parseWhen(text, time.Time{})
	return err
}

// whenSettings select rows by their time.
func whenSettings() []setting {
	return []setting{
		{name: "since", value: "TIME", usage: "rows that occurred at or after this time (2026-11-30, 2026-11-30T14:00:00Z; without a zone UTC), or that long ago (24h)", check: checkWhen, group: groupCommand},
		{name: "until", value: "TIME", usage: "rows that occurred before this time, or that long ago", check: checkWhen, group: groupCommand},
	}
}

// when returns the moment that a setting names; zero when it is not given.
func (v values) when(name string, now time.Time) time.Time {
	if !v.given(name) {
		return time.Time{}
	}
	return must(parseWhen(v.str(name), now))
}

// aggregateSetting selects the rows of one aggregate.
func aggregateSetting() setting {
	return setting{name: "aggregate", value: "TYPE/ID", usage: "events of one aggregate", check: checkAggregate, group: groupCommand}
}

// checkAggregate wants a type; the first slash ends it, an id may hold more.
func checkAggregate(text string) error {
	if kind, _, ok := strings.Cut(text, "/"); !ok || kind == "" {
		return fmt.Errorf("must be an aggregate's type and id, such as order/42")
	}
	return nil
}

// aggregate returns the parts of --aggregate; false when it is not given.
func (v values) aggregate() (kind, id string, ok bool) {
	kind, id, _ = strings.Cut(v.str("aggregate"), "/")
	return kind, id, v.given("aggregate")
}
