package provision_test

import (
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// What the hint says must be taken by setup: 0s and -1 are not.
func TestAHintWritesNoLimitAsSetupTakesIt(t *testing.T) {
	spec := sink.StreamSpec{Name: "OUTBOX"}
	for _, tc := range []struct {
		difference sink.Difference
		want       string
	}{
		{sink.Difference{Setting: "max_age", Want: "168h0m0s", Have: "0s"}, "nats stream edit OUTBOX --max-age 168h0m0s, or setup with --max-age none"},
		{sink.Difference{Setting: "max_age", Want: "1h0m0s", Have: "24h0m0s"}, "nats stream edit OUTBOX --max-age 1h0m0s, or setup with --max-age 24h0m0s"},
		{sink.Difference{Setting: "max_bytes", Want: "1024", Have: "-1"}, "nats stream edit OUTBOX --max-bytes 1024, or setup with --max-bytes none"},
	} {
		if got := provision.StreamEdit(spec, tc.difference); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}
