package decode_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/decode/decodetest"
)

// values returns one field of each event as text, with NULL as "<null>".
func values(events []*decode.Event, f decode.Field) []string {
	var all []string
	for _, e := range events {
		v := e.Value(f)
		if v == nil {
			all = append(all, "<null>")
			continue
		}
		all = append(all, string(v))
	}
	return all
}

func wantValues(t *testing.T, events []*decode.Event, f decode.Field, want ...string) {
	t.Helper()
	if got := values(events, f); !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", f, got, want)
	}
}

func TestRowsOfOneCopyHaveDistinctPositionsUnderOneLSN(t *testing.T) {
	events := named(t, "copy").events(t)
	wantValues(t, events, decode.FieldEventID, "e1", "e2", "e3", "e4", "s1", "s2", "s3")
	for i, e := range events[:4] {
		if e.Position.Ordinal != uint64(i) || e.Position.CommitLSN != events[0].Position.CommitLSN {
			t.Errorf("event %d of the COPY is at %s", i, e.Position)
		}
	}
}

func TestEventsComeInCommitOrderWithGrowingPositions(t *testing.T) {
	events := named(t, "interleaved").events(t)
	// e6 was prepared and rolled back, e8 was rolled back to a savepoint.
	wantValues(t, events, decode.FieldEventID, "e2", "e1", "e3", "e5", "e4", "e7", "e9", "e10")
	for i := 1; i < len(events); i++ {
		if events[i-1].Position.Compare(events[i].Position) >= 0 {
			t.Errorf("%s is followed by %s", events[i-1].Position, events[i].Position)
		}
	}
}

func TestTransactionSpansBeginToCommit(t *testing.T) {
	d := decode.New(decode.Config{Table: outbox})
	var commits int
	for _, m := range named(t, "interleaved").messages(t) {
		before := d.InTransaction()
		c, err := d.Decode(m)
		if err != nil {
			t.Fatal(err)
		}
		switch c.Kind {
		case decode.ChangeBegin:
			if before || !d.InTransaction() {
				t.Errorf("at begin of %d: in a transaction before %t, after %t", c.XID, before, d.InTransaction())
			}
		case decode.ChangeCommit:
			commits++
			if d.InTransaction() || c.CommitEndLSN <= c.CommitLSN || c.XID == 0 {
				t.Errorf("commit %+v", c)
			}
		case decode.ChangeEvent:
			if c.Event.Position.CommitLSN != c.CommitLSN || !c.Event.CommitTime.Equal(c.CommitTime) {
				t.Errorf("event at %s in transaction committed at %s", c.Event.Position, c.CommitLSN)
			}
		case decode.ChangeNone:
		}
	}
	if commits != 5 {
		t.Errorf("%d commits, want 5", commits)
	}
}

func TestTimelineOfAnEventIsTheOneThatHoldsItsCommit(t *testing.T) {
	history := decode.Timelines{Current: 3, Switches: []decode.TimelineSwitch{{Timeline: 1, EndLSN: 100}, {Timeline: 2, EndLSN: 200}}}
	d := decode.New(decode.Config{Table: outbox, Timelines: history})
	at := time.Unix(1e9, 0)
	mustDecode(t, d, decodetest.Relation(standardRelation))
	for _, tc := range []struct {
		commitLSN pglogrepl.LSN
		want      uint32
	}{{99, 1}, {100, 2}, {199, 2}, {200, 3}} {
		mustDecode(t, d, decodetest.Begin(tc.commitLSN, at, 7))
		c := mustDecode(t, d, standardRow())
		mustDecode(t, d, decodetest.Commit(tc.commitLSN, tc.commitLSN+10, at))
		if got := c.Event.Position.Timeline; got != tc.want {
			t.Errorf("commit at %d is on timeline %d, want %d", tc.commitLSN, got, tc.want)
		}
	}
}

func TestEachRowIsReadWithTheLayoutOfItsOwnTime(t *testing.T) {
	events := named(t, "layout").events(t)
	const null = "<null>"
	kv := `{"k": "v"}`
	wantValues(t, events, decode.FieldEventID, "e1", "e2", "e3", "e4", "e5", "e6", "e7")
	wantValues(t, events, decode.FieldPayload, `{"n": 1}`, `{"n": 2}`, `{"n": 3}`, `{"n": 4}`, `{"n": 5}`, `{"n": 6}`, `{"n":7}`)
	wantValues(t, events, decode.FieldTopic, "one", null, null, null, null, null, null)
	wantValues(t, events, decode.FieldHeaders, null, null, kv, kv, kv, kv, kv)
	wantValues(t, events, decode.FieldAggregateType, "a", "a", "a", null, null, null, null)
	wantValues(t, events, decode.FieldEventType, "t", "t", "t", null, null, "t6", null)
	if a, b := events[5].Kind(decode.FieldPayload), events[6].Kind(decode.FieldPayload); a != decode.KindJSON || b != decode.KindText {
		t.Errorf("payload kinds %s and %s, want json and text", a, b)
	}
}

func TestVanishedOptionalColumnIsReported(t *testing.T) {
	sc := named(t, "layout")
	var gone []string
	sc.config.ColumnGone = func(table decode.TableName, field, column string) {
		gone = append(gone, table.String()+" "+field+" "+column)
	}
	sc.events(t)
	if want := []string{"public.outbox topic topic", "public.outbox aggregate_type aggregate_type"}; !slices.Equal(gone, want) {
		t.Errorf("reported %q, want %q", gone, want)
	}
}

func TestRowsOfARenamedTableAreNotPassedOffAsEvents(t *testing.T) {
	events := named(t, "renamed_table").events(t)
	wantValues(t, events, decode.FieldEventID, "e1", "e2")
}

func TestRowsAreMatchedToRelationsByOID(t *testing.T) {
	// The leaf's relation message, with another order of columns, comes between the root's and the row.
	for _, name := range []string{"partition_root", "partition_leaf"} {
		events := named(t, name).events(t)
		wantValues(t, events, decode.FieldEventID, "e1", "e2", "e3", "e4", "e5")
		wantValues(t, events, decode.FieldEventType, "t", "t", "t", "t", "t")
	}
}

func TestOtherRelationsAreAskedForOnceAndAgainAfterARename(t *testing.T) {
	var asked []string
	leaf := standardRelation
	leaf.Name = "outbox_p1"
	d := begun(t, decode.Config{Table: outbox, AcceptRelation: func(r decode.Relation) (bool, error) {
		asked = append(asked, r.Name)
		return r.Name == "outbox_p1", nil
	}})
	feed := func(r decode.Relation) decode.ChangeKind {
		mustDecode(t, d, decodetest.Relation(r))
		mustDecode(t, d, standardRow())
		return mustDecode(t, d, standardRow()).Kind
	}
	if got := feed(leaf); got != decode.ChangeEvent {
		t.Errorf("row of an accepted relation: %s", got)
	}
	feed(leaf)
	renamed := leaf
	renamed.Name = "archive"
	if got := feed(renamed); got != decode.ChangeNone {
		t.Errorf("row of a refused relation: %s", got)
	}
	if got := feed(standardRelation); got != decode.ChangeEvent {
		t.Errorf("row of the outbox: %s", got)
	}
	if want := []string{"outbox_p1", "archive"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	if d.Skipped() != 2 {
		t.Errorf("skipped %d, want 2", d.Skipped())
	}
}

func TestErrorOfAcceptRelationIsReturned(t *testing.T) {
	down := errors.New("catalog is away")
	other := standardRelation
	other.Name = "x"
	d := begun(t, decode.Config{Table: outbox, AcceptRelation: func(decode.Relation) (bool, error) { return false, down }})
	mustDecode(t, d, decodetest.Relation(other))
	if _, err := d.Decode(standardRow()); !errors.Is(err, down) {
		t.Errorf("got %v, want %v", err, down)
	}
}

func TestMixedCaseNamesAreComparedExactly(t *testing.T) {
	events := named(t, "names").events(t)
	wantValues(t, events, decode.FieldEventID, id(3))
	wantValues(t, events, decode.FieldPayload, `{"real": true}`)
	wantValues(t, events, decode.FieldAggregateID, "u")
	wantValues(t, events, decode.FieldAggregateType, "o")
}

func TestTableOfTheSameNameInAnotherSchemaIsSkipped(t *testing.T) {
	decoy := standardRelation
	decoy.Schema = "Public"
	d := begun(t, decode.Config{Table: outbox})
	mustDecode(t, d, decodetest.Relation(decoy))
	if c := mustDecode(t, d, standardRow()); c.Kind != decode.ChangeNone || d.Skipped() != 1 {
		t.Errorf("row of %s: %s, skipped %d", decoy.Table(), c.Kind, d.Skipped())
	}
}

func TestChangesThatAreNoInsertsAreIgnoredAndCounted(t *testing.T) {
	d := decode.New(named(t, "kinds").config)
	for _, m := range named(t, "kinds").messages(t) {
		if c := mustDecode(t, d, m); slices.Contains([]byte("UDTOYR"), m[0]) && c.Kind != decode.ChangeNone {
			t.Errorf("message %q is %s", m[0], c.Kind)
		}
	}
	if d.IgnoredChanges() != 6 { // 3 updates, 2 deletes, 1 truncate
		t.Errorf("ignored %d", d.IgnoredChanges())
	}
}

func TestEventKeepsItsBytesWhenTheInputIsReused(t *testing.T) {
	for _, sc := range scenarios {
		if sc.streaming || sc.twoPhase {
			continue
		}
		d := decode.New(sc.config)
		for _, m := range sc.messages(t) {
			c, err := d.Decode(m)
			if err != nil {
				break // the scenario of a renamed column ends so
			}
			if c.Event == nil {
				continue
			}
			before := contents(c.Event, sc.config.Mapping)
			for i := range m {
				m[i] ^= 0xFF
			}
			if !bytes.Equal(before, contents(c.Event, sc.config.Mapping)) {
				t.Errorf("%s: event %s changed with its input", sc.name, c.Event.Position)
			}
		}
	}
}

// contents joins all that an event holds.
func contents(e *decode.Event, m decode.Mapping) []byte {
	var b bytes.Buffer
	add := func(v []byte) {
		if v == nil {
			b.WriteByte(0)
		} else {
			b.WriteByte(1)
			b.Write(v)
		}
	}
	b.WriteString(e.Table.String())
	for i := range decode.NumFields {
		add(e.Value(decode.Field(i)))
	}
	for i := range m.Extra() {
		add(e.Extra(i))
	}
	if e.Malformed != nil {
		b.WriteString(e.Malformed.Error())
	}
	return b.Bytes()
}

func TestValueCannotGrowIntoItsNeighbour(t *testing.T) {
	c := mustDecode(t, begun(t, decode.Config{Table: outbox}), standardRow())
	_ = append(c.Event.Value(decode.FieldAggregateType), "XXXX"...)
	if got := string(c.Event.Value(decode.FieldAggregateID)); got != "order-4711" {
		t.Errorf("the next value is now %q", got)
	}
}

func TestDecodeAllocatesTwicePerEvent(t *testing.T) {
	for _, m := range []string{"", "one=topic,two=traceparent"} {
		d := begun(t, decode.Config{Table: outbox, Mapping: mapping(m)})
		row := standardRow()
		allocs := testing.AllocsPerRun(100, func() {
			if _, err := d.Decode(row); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 2 {
			t.Errorf("mapping %q: %.0f allocations", m, allocs)
		}
	}
}

func TestSizeCountsWhatTheEventHolds(t *testing.T) {
	d := begun(t, decode.Config{Table: outbox})
	row := standardRow()
	small := mustDecode(t, d, row).Event.Size()
	big := decodetest.Insert(16400, append([][]byte{nil, nil, nil, nil, nil, nil, nil, nil, bytes.Repeat([]byte("x"), 1<<20)}, nil, nil, nil)...)
	large := mustDecode(t, d, big).Event.Size()
	if small < 400 || small > 2000 || large < 1<<20 || large > 1<<20+1<<17 {
		t.Errorf("sizes %d and %d", small, large)
	}
}

func mustDecode(t testing.TB, d *decode.Decoder, m []byte) decode.Change {
	t.Helper()
	c, err := d.Decode(m)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNewEventHoldsCopiesOfItsValues(t *testing.T) {
	var v decode.Values
	v.Fields[decode.FieldEventID] = []byte("e1")
	v.Fields[decode.FieldTopic] = []byte{}
	v.Kinds[decode.FieldEventID] = decode.KindUUID
	v.Extras = [][]byte{[]byte("x"), nil, []byte("y"), []byte("z"), []byte("w")}
	e := decode.NewEvent(decode.Position{Ordinal: 5}, time.Unix(9, 0), outbox, v)
	v.Fields[decode.FieldEventID][0] = '!'
	v.Kinds[decode.FieldEventID] = decode.KindOther
	v.Extras[0][0] = '!'
	if string(e.Value(decode.FieldEventID)) != "e1" || e.Kind(decode.FieldEventID) != decode.KindUUID || string(e.Extra(0)) != "x" || string(e.Extra(4)) != "w" {
		t.Errorf("the event changed with the caller's values: %q", contents(e, decode.Mapping{}))
	}
	if e.Value(decode.FieldTopic) == nil || e.Value(decode.FieldPayload) != nil || e.Extra(1) != nil || e.Extra(5) != nil || e.Extra(-1) != nil {
		t.Error("empty and NULL are mixed up")
	}
	if e.Table != outbox || e.Position.Ordinal != 5 || e.CommitTime.Unix() != 9 || !strings.Contains(e.Table.String(), "outbox") {
		t.Errorf("event %+v", e)
	}
}
