package forwarder

import (
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// A standby takes the time of the last status for a sign of life: a leader that sends
// them more seldom than the standby waits would be ended again and again.
func TestALeaderSendsStatusesOftenEnoughForItsStandby(t *testing.T) {
	for _, c := range []struct{ interval, takeover, want time.Duration }{
		{time.Second, 10 * time.Second, time.Second},
		{30 * time.Second, 10 * time.Second, 2500 * time.Millisecond},
		{time.Second, time.Second, 250 * time.Millisecond},
		{10 * time.Minute, 0, 10 * time.Minute},
	} {
		cfg := Config{Subject: "a", Columns: decode.DefaultMapping(), StatusInterval: c.interval, TakeoverAfter: c.takeover}
		got, err := cfg.withTemplate()
		if err != nil || got.StatusInterval != c.want {
			t.Errorf("--status-interval %s --takeover-after %s: %s, %v, want %s", c.interval, c.takeover, got.StatusInterval, err, c.want)
		}
	}
}
