package decode_test

import (
	"bufio"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

var update = flag.Bool("update", false, "record testdata anew from a throw-away PostgreSQL 15 on this machine")

// TestGolden decodes recordings of a real server and compares with the text beside them.
// After go test ./decode -run TestGolden -update, read the difference in both.
func TestGolden(t *testing.T) {
	var s *server
	if *update {
		s = startServer(t)
		writeFile(t, filepath.Join("testdata", "quote-ident.txt"), s.quoted(t))
	}
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			if s != nil {
				writeFile(t, sc.file(".wal"), s.record(t, sc))
				writeFile(t, sc.file(".txt"), transcript(t, sc))
			}
			want, err := os.ReadFile(sc.file(".txt"))
			if err != nil {
				t.Fatal(err)
			}
			if got := transcript(t, sc); got != string(want) {
				t.Errorf("decoded:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

func (sc scenario) file(ext string) string {
	return filepath.Join("testdata", strings.ReplaceAll(sc.name, "_", "-")+ext)
}

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func named(t testing.TB, name string) scenario {
	t.Helper()
	for _, sc := range scenarios {
		if sc.name == name {
			return sc
		}
	}
	t.Fatalf("no scenario %q", name)
	return scenario{}
}

// messages reads the recorded messages.
func (sc scenario) messages(t testing.TB) [][]byte {
	t.Helper()
	f, err := os.Open(sc.file(".wal"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all [][]byte
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		b, err := hex.DecodeString(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// events decodes the whole recording, which must hold no error.
func (sc scenario) events(t testing.TB) []*decode.Event {
	t.Helper()
	d := decode.New(sc.config)
	var events []*decode.Event
	for _, m := range sc.messages(t) {
		change, err := d.Decode(m)
		if err != nil {
			t.Fatal(err)
		}
		if change.Kind == decode.ChangeEvent {
			events = append(events, change.Event)
		}
	}
	return events
}

// transcript decodes the recording into text. After an error a new Decoder goes on, so
// that a recording of refusals shows them all.
func transcript(t testing.TB, sc scenario) string {
	t.Helper()
	var b strings.Builder
	c := sc.config
	c.ColumnGone = func(table decode.TableName, field, column string) {
		fmt.Fprintf(&b, "gone %s of %s (mapped to %s)\n", column, table, field)
	}
	d := decode.New(c)
	for _, m := range sc.messages(t) {
		change, err := d.Decode(m)
		if err != nil {
			fmt.Fprintf(&b, "error %v\n", err)
			d = decode.New(c)
			continue
		}
		writeChange(&b, change, sc.config.Mapping)
	}
	fmt.Fprintf(&b, "skipped %d, ignored %d, outside transactions %d\n", d.Skipped(), d.IgnoredChanges(), d.NonTransactionalMessages())
	return b.String()
}

func writeChange(b *strings.Builder, c decode.Change, m decode.Mapping) {
	const layout = "2006-01-02 15:04:05.000000"
	switch c.Kind {
	case decode.ChangeNone:
		fmt.Fprintln(b, c.Kind)
	case decode.ChangeBegin:
		fmt.Fprintf(b, "begin xid %d commit %s at %s\n", c.XID, c.CommitLSN, c.CommitTime.Format(layout))
	case decode.ChangeCommit:
		fmt.Fprintf(b, "commit xid %d end %s\n", c.XID, c.CommitEndLSN)
	case decode.ChangeEvent:
		e := c.Event
		fmt.Fprintf(b, "event %s %s\n", e.Position, e.Table)
		for i := range decode.NumFields {
			f := decode.Field(i)
			if v := e.Value(f); v != nil {
				fmt.Fprintf(b, "  %s %s %q\n", f, e.Kind(f), v)
			}
		}
		for i, x := range m.Extra() {
			if v := e.Extra(i); v != nil {
				fmt.Fprintf(b, "  {%s} %q\n", x.Name, v)
			}
		}
		if e.Malformed != nil {
			fmt.Fprintf(b, "  malformed %v\n", e.Malformed)
		}
	}
}
