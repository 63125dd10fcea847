package decode_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

func TestPositionIsWrittenAndReadAlike(t *testing.T) {
	for want, p := range map[string]decode.Position{
		"1:0/16B3748:0": {Timeline: 1, CommitLSN: 0x16B3748},
		"0:0/0:0":       {},
		"4294967295:FFFFFFFF/FFFFFFFF:18446744073709551615": {Timeline: math.MaxUint32, CommitLSN: math.MaxUint64, Ordinal: math.MaxUint64},
		"2:A/0:10":          {Timeline: 2, CommitLSN: 0xA_0000_0000, Ordinal: 10},
		"2:10/1000:1":       {Timeline: 2, CommitLSN: 0x10_0000_1000, Ordinal: 1},
		"3:0/FFFFFFFF:1000": {Timeline: 3, CommitLSN: 0xFFFFFFFF, Ordinal: 1000},
	} {
		if got := p.String(); got != want {
			t.Errorf("%#v is written %s, want %s", p, got, want)
		}
		if lsn := strings.Split(want, ":")[1]; lsn != p.CommitLSN.String() {
			t.Errorf("LSN %s, pglogrepl writes %s", lsn, p.CommitLSN)
		}
		if got, err := decode.ParsePosition(want); err != nil || got != p {
			t.Errorf("%s is read as %#v, %v", want, got, err)
		}
		if got, err := decode.ParsePosition(strings.ToLower(want)); err != nil || got != p {
			t.Errorf("%s in lower case is read as %#v, %v", want, got, err)
		}
	}
}

func TestBadPositionIsRefused(t *testing.T) {
	for _, s := range []string{
		"", ":", "::", "1:0/0", "1:0/0:", ":0/0:0", "1:0:0", "1:/:0", "1:0/:0", "1:0/0:0:0", "+1:0/0:0", "1:0/0:-1", "1:0/g:0", "1: 0/0:0", "1:0/0:0 ",
		"1:0/0:1_0", "1:0x0/0:0", "4294967296:0/0:0", "1:100000000/0:0", "1:0/100000000:0", "1:0/0:18446744073709551616", "a:0/0:0",
	} {
		if p, err := decode.ParsePosition(s); err == nil || !strings.Contains(err.Error(), "position") {
			t.Errorf("%q is read as %s, %v", s, p, err)
		}
	}
}

func TestPositionsCompareAsThreeNumbers(t *testing.T) {
	ascending := []string{"1:0/9:5", "1:0/A:0", "1:0/A:1", "1:0/A:10", "1:0/10:2", "1:1/0:0", "2:0/1:0", "10:0/0:0"}
	for i, a := range ascending {
		for j, b := range ascending {
			p, _ := decode.ParsePosition(a)
			q, _ := decode.ParsePosition(b)
			if got, want := p.Compare(q), compareInt(i, j); got != want {
				t.Errorf("%s against %s: %d, want %d", a, b, got, want)
			}
		}
	}
}

func compareInt(a, b int) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

func TestTimelineHistoryIsReadAsPostgreSQLWritesIt(t *testing.T) {
	history := "1\t0/1519BA8\tno recovery target specified\n\n# a comment\n2\t0/3000000\tbefore 2026-02-01 00:00:00+00\n"
	got, err := decode.ParseTimelineHistory([]byte(history), 4)
	want := []decode.TimelineSwitch{{Timeline: 1, EndLSN: 0x1519BA8}, {Timeline: 2, EndLSN: 0x3000000}}
	if err != nil || got.Current != 4 || !slices.Equal(got.Switches, want) {
		t.Fatalf("%+v, %v", got, err)
	}
	for lsn, timeline := range map[pglogrepl.LSN]uint32{0: 1, 0x1519BA7: 1, 0x1519BA8: 2, 0x2FFFFFF: 2, 0x3000000: 4, math.MaxUint64: 4} {
		if at := got.At(lsn); at != timeline {
			t.Errorf("%s is on timeline %d, want %d", lsn, at, timeline)
		}
	}
	if got, err := decode.ParseTimelineHistory(nil, 1); err != nil || got.At(5) != 1 {
		t.Errorf("without history: %+v, %v", got, err)
	}
}

func TestBadTimelineHistoryIsRefused(t *testing.T) {
	for _, s := range []string{"1", "x\t0/0", "1\t0", "1\t0/0\n1\t0/1", "2\t0/0\n1\t0/1", "1\t0/5\n2\t0/4", "4\t0/0", "5\t0/0"} {
		if got, err := decode.ParseTimelineHistory([]byte(s), 4); err == nil || !strings.Contains(err.Error(), "timeline 4") {
			t.Errorf("%q is read as %+v, %v", s, got, err)
		}
	}
}
