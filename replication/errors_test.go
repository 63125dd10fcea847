package replication_test

import (
	"testing"

	"github.com/outbox-cdc/outbox-cdc/replication"
)

// With synchronized_standby_slots, PostgreSQL warns once a second inside the stream, with
// the same SQLSTATE, of a standby that is away.
func TestOnlyTheOutputPluginsWarningMeansThatRowsAreLeftOut(t *testing.T) {
	for _, c := range []struct {
		name   string
		notice replication.NoticeError
		skips  bool
	}{
		{"publication skipped", replication.NoticeError{SQLState: "55000", SourceFile: "pgoutput.c"}, true},
		{"standby away", replication.NoticeError{SQLState: "55000", SourceFile: "slot.c"}, false},
		{"anything else of the plugin", replication.NoticeError{SQLState: "01000", SourceFile: "pgoutput.c"}, false},
	} {
		if got := c.notice.SkipsPublication(); got != c.skips {
			t.Errorf("%s: skips a publication: %v", c.name, got)
		}
	}
}
