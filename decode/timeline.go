package decode

import (
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
)

// TimelineSwitch is the end of a timeline: WAL below EndLSN belongs to Timeline (or to
// one before it), WAL from EndLSN on to a later one.
type TimelineSwitch struct {
	Timeline uint32
	EndLSN   pglogrepl.LSN
}

// Timelines is the history of the server's current timeline. The zero value places
// everything on timeline 0.
type Timelines struct {
	// Switches holds the ancestors of Current in ascending order.
	Switches []TimelineSwitch
	// Current is the timeline that the server writes now.
	Current uint32
}

// At returns the timeline to which WAL at the given LSN belongs. After a promotion
// the slot sends transactions of the old timeline again; their events keep its number.
func (t Timelines) At(lsn pglogrepl.LSN) uint32 {
	for _, s := range t.Switches {
		if lsn < s.EndLSN {
			return s.Timeline
		}
	}
	return t.Current
}

// ParseTimelineHistory reads the content of a timeline history file, as the replication
// command TIMELINE_HISTORY returns it for the timeline current. Timeline 1 has no
// history file: pass nil for it.
//
// Source: readTimeLineHistory in src/backend/access/transam/timeline.c.
func ParseTimelineHistory(content []byte, current uint32) (Timelines, error) {
	t := Timelines{Current: current}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) < 2 {
			return Timelines{}, fmt.Errorf("parse history of timeline %d: line %q has no switch point", current, line)
		}
		id, err := parseDigits(fields[0], 10, 32)
		if err != nil {
			return Timelines{}, fmt.Errorf("parse history of timeline %d: timeline: %w", current, err)
		}
		end, err := parseLSN(fields[1])
		if err != nil {
			return Timelines{}, fmt.Errorf("parse history of timeline %d: switch point: %w", current, err)
		}
		s := TimelineSwitch{Timeline: uint32(id), EndLSN: end}
		if n := len(t.Switches); n > 0 && (s.Timeline <= t.Switches[n-1].Timeline || s.EndLSN < t.Switches[n-1].EndLSN) {
			return Timelines{}, fmt.Errorf("parse history of timeline %d: timeline %d at %s is out of order", current, s.Timeline, s.EndLSN)
		}
		if s.Timeline >= current {
			return Timelines{}, fmt.Errorf("parse history of timeline %d: timeline %d is not an ancestor", current, s.Timeline)
		}
		t.Switches = append(t.Switches, s)
	}
	return t, nil
}
