package checkpoint

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/jackc/pglogrepl"
)

// TestTranscripts replays the stories in testdata: each line is what the slot or
// the broker said, each answer what PostgreSQL may be told then.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var tr *Tracker
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out := step(t, &tr, d)
			return out + fmt.Sprintf("confirmable %s, unsettled %d, idle %t\n", tr.ConfirmableLSN(), tr.Unsettled(), tr.Idle())
		})
	})
}

func step(t *testing.T, tr **Tracker, d *datadriven.TestData) (out string) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			out = fmt.Sprintf("panic: %v\n", p)
		}
	}()
	lsn := func() pglogrepl.LSN {
		v, err := pglogrepl.ParseLSN(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		return v
	}
	switch d.Cmd {
	case "start":
		*tr = New(lsn())
	case "begin":
		(*tr).Begin()
	case "event":
		out = fmt.Sprintf("event %d\n", (*tr).Event())
	case "commit":
		(*tr).Commit(lsn())
	case "keepalive":
		(*tr).Keepalive(lsn())
	case "settle":
		n, err := strconv.ParseUint(d.CmdArgs[0].Key, 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		if len(d.CmdArgs) > 1 {
			storedLSN, err := pglogrepl.ParseLSN(d.CmdArgs[1].Key)
			if err != nil {
				t.Fatalf("%s: %v", d.Pos, err)
			}
			(*tr).SettleStored(n, storedLSN)
			break
		}
		(*tr).Settle(n)
	default:
		t.Fatalf("%s: unknown step %q", d.Pos, d.Cmd)
	}
	return out
}

// TestConfirmableIsTheLongestSettledPrefix compares the tracker with the plain
// definition over random histories: the end of the last transaction such that it
// and all before it are settled, or a keepalive right behind it, and that what was stored
// in the place of their events lies before it too.
func TestConfirmableIsTheLongestSettledPrefix(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		tr := New(100)
		model := model{confirmed: 100, settled: map[uint64]bool{}, stored: map[uint64]pglogrepl.LSN{}}
		lsn := pglogrepl.LSN(100)
		open := false
		for range 400 {
			lsn += pglogrepl.LSN(1 + rng.IntN(50))
			switch k := rng.IntN(10); {
			case !open && k < 3:
				tr.Begin()
				open = true
			case open && k < 4:
				model.events = tr.Event()
			case open && k < 6:
				tr.Commit(lsn)
				open = false
				model.ends = append(model.ends, end{model.events, lsn})
			case k == 6:
				tr.Keepalive(lsn)
				if !open {
					model.ends = append(model.ends, end{model.events, lsn})
				}
			case model.events > 0:
				n := 1 + rng.Uint64N(model.events)
				if rng.IntN(2) == 0 { // mostly the oldest one
					for n = 1; n < model.events && model.settled[n]; n++ {
					}
				}
				if !model.settled[n] && rng.IntN(4) == 0 {
					model.stored[n] = lsn + pglogrepl.LSN(rng.IntN(150))
					tr.SettleStored(n, model.stored[n])
				} else {
					tr.Settle(n)
				}
				model.settled[n] = true
			}
			if got, want := tr.ConfirmableLSN(), model.confirmable(); got != want {
				t.Fatalf("seed %d: confirmable is %s, by definition %s", seed, got, want)
			}
		}
	}
}

type end struct {
	lastEvent uint64
	lsn       pglogrepl.LSN
}

type model struct {
	confirmed pglogrepl.LSN
	events    uint64
	ends      []end
	settled   map[uint64]bool
	stored    map[uint64]pglogrepl.LSN // what stands in an event's place is behind this
}

func (m model) confirmable() pglogrepl.LSN {
	out := m.confirmed
	for _, e := range m.ends {
		storedLSN := pglogrepl.LSN(0)
		for n := uint64(1); n <= e.lastEvent; n++ {
			if !m.settled[n] {
				return out
			}
			storedLSN = max(storedLSN, m.stored[n])
		}
		if e.lsn >= storedLSN {
			out = max(out, e.lsn)
		}
	}
	return out
}

// BenchmarkTracker settles a full window of one-event transactions at a time.
func BenchmarkTracker(b *testing.B) {
	const window = 4096
	tr := New(1)
	lsn := pglogrepl.LSN(1)
	b.ReportAllocs()
	for n := uint64(0); b.Loop(); n++ {
		tr.Begin()
		event := tr.Event()
		lsn += 100
		tr.Commit(lsn)
		if event > window {
			tr.Settle(event - window)
		}
	}
}
