package sink

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// scriptWire notes what the sequencer sends.
type scriptWire struct {
	out  strings.Builder
	down bool
}

var errDown = errors.New("down")

func (w *scriptWire) publish(m *Message, reply []byte, expected uint64, expect bool) error {
	if w.down {
		fmt.Fprintf(&w.out, "refused by the connection: %s\n", m.EventID)
		return errDown
	}
	fmt.Fprintf(&w.out, "send %s reply %s", m.EventID, reply)
	if expect {
		fmt.Fprintf(&w.out, " expect %d", expected)
	}
	w.out.WriteByte('\n')
	return nil
}

func (w *scriptWire) endBatch(_ string, reply []byte) error {
	fmt.Fprintf(&w.out, "end batch reply %s\n", reply)
	return nil
}

// TestSequencerTranscripts replays the stories in testdata: what is added, what the
// server answers and when, and what is sent, settled and decided then. Times are
// seconds since the start; the ack timeout is 5 s, the settle grace 1 s.
func TestSequencerTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/sequencer", func(t *testing.T, path string) {
		w := &scriptWire{}
		var s *sequencer
		start := time.Unix(0, 0)
		added := 0
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.out.Reset()
			now := start
			if d.HasArg("at") {
				var seconds int
				d.ScanArgs(t, "at", &seconds)
				now = start.Add(time.Duration(seconds) * time.Second)
			}
			switch d.Cmd {
			case "new":
				var most int
				d.ScanArgs(t, "max", &most)
				s = newSequencer(limits{inFlightMax: most, ackTimeout: 5 * time.Second, settleGrace: time.Second}, w, "S", "I", "b")
			case "synced":
				var last uint64
				d.ScanArgs(t, "last", &last)
				s.synced(tail{lastSeq: last, own: d.HasArg("own"), batched: d.HasArg("batched"), replicated: d.HasArg("replicated")}, now)
			case "add":
				var n int
				d.ScanArgs(t, "n", &n)
				for range n {
					added++
					s.add(&Message{EventID: "e" + strconv.Itoa(added), Subject: "s", Position: decode.Position{Ordinal: uint64(added)}}, false, d.HasArg("suspect"))
				}
			case "pump":
				s.pump(now, d.HasArg("more"))
			case "answer":
				var subject string
				d.ScanArgs(t, "on", &subject)
				status := ""
				if d.HasArg("nobody") {
					status = "503"
				}
				a, ok := parseAnswer(subject, "I", "b", status, []byte(strings.TrimSpace(d.Input)))
				if !ok {
					return "not ours\n"
				}
				s.handle(a, now)
			case "tick":
				s.tick(now)
			case "disconnected":
				s.disconnected()
			case "connection":
				w.down = d.HasArg("down")
			case "pause":
				s.paused = !d.HasArg("off")
			case "stop":
				s.forgetUnsent()
			default:
				t.Fatalf("%s: unknown step %q", d.Pos, d.Cmd)
			}
			return w.out.String() + describe(s)
		})
	})
}

func describe(s *sequencer) string {
	var b strings.Builder
	for _, st := range s.takeSettled() {
		fmt.Fprintf(&b, "settled %s at %d", st.Message.EventID, st.StreamSeq)
		if st.Duplicate {
			b.WriteString(" (duplicate)")
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "%s: %d in flight, %d wait, window %d", s.phase, s.inFlight(), s.unsettled()-s.inFlight(), s.window)
	if s.cause.kind != causeNone {
		fmt.Fprintf(&b, ", %s", s.cause.kind)
	}
	if s.cause.code != 0 {
		fmt.Fprintf(&b, " with %d", s.cause.code)
	}
	if s.orderViolations > 0 {
		fmt.Fprintf(&b, ", %d order violations", s.orderViolations)
	}
	b.WriteByte('\n')
	return b.String()
}
