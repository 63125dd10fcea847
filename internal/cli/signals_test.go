package cli

import (
	"testing"
	"time"
)

func TestASignalThatIsSentTwiceAtOnceIsOneStop(t *testing.T) {
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		after time.Duration
		cuts  bool
	}{
		{0, false}, {time.Millisecond, false}, {sameStop, false}, {sameStop + time.Millisecond, true}, {time.Minute, true},
	} {
		var stops stopSignals
		if stops.cuts(at) {
			t.Error("the first signal cuts the draining short")
		}
		if got := stops.cuts(at.Add(tc.after)); got != tc.cuts {
			t.Errorf("a signal %s after the first cuts: %v, want %v", tc.after, got, tc.cuts)
		}
	}
	var stops stopSignals
	for i := range 4 { // the third is measured from the first, not from the second
		if got, want := stops.cuts(at.Add(time.Duration(i)*60*time.Millisecond)), i >= 2; got != want {
			t.Errorf("signal %d cuts: %v, want %v", i, got, want)
		}
	}
}
