package audit

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// scene is a table and a stream in short notation, and what comparing them gives.
type scene struct {
	name     string
	rows     string // ids in the order of the table; a star behind one: not selected; -: no id
	settled  string // ids with their reason: d dead letter, u unconfirmed, such as d:a
	messages string // ids in the order of the stream; r: sent again on request, i: inverted, n: new
	filtered bool
	want     string
}

func (s scene) run(t *testing.T) string {
	t.Helper()
	c := comparison{filtered: s.filtered}
	defer func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	}()
	var k keyer
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for place, text := range strings.Fields(s.rows) {
		id, notSelected := strings.CutSuffix(text, "*")
		must(c.addRow(&k, []byte(strings.Trim(id, "-")), uint64(place), !notSelected))
	}
	for text := range strings.FieldsSeq(s.settled) {
		why, id, _ := strings.Cut(text, ":")
		must(c.addSettled(&k, []byte(strings.Trim(id, "-")), map[string]uint64{"d": deadLetter, "u": unconfirmed}[why]))
	}
	for i, text := range strings.Fields(s.messages) {
		mark, id, marked := strings.Cut(text, ":")
		r := record{a: uint64(i + 1)}
		if !marked {
			mark, id = "", text
		}
		switch mark {
		case "r":
			r.a |= republishedBit
		case "n":
			r.a |= newBit
		case "i":
			r.a |= invertedBit
			r.b = uint64(i)
		}
		r.key = k.ofHeader(id)
		must(c.messages.add(r))
	}
	must(c.compare())
	var absent []string
	for place := range uint64(len(strings.Fields(s.rows))) {
		if c.absent.has(place) {
			absent = append(absent, fmt.Sprint(place))
		}
	}
	text := fmt.Sprintf("%d/%d", c.inStream, c.checked)
	add := func(name string, value string) {
		if value != "" && value != "0" && value != "[]" {
			text += " " + name + " " + value
		}
	}
	add("absent", strings.Join(absent, ","))
	add("pending", fmt.Sprint(c.pending))
	add("unknown", fmt.Sprint(c.unknown))
	for _, list := range []struct {
		name string
		list
	}{{"twice", c.duplicates}, {"inverted", c.inversions}} {
		for _, f := range list.items {
			add(list.name, fmt.Sprint(f.sequences))
		}
	}
	return text
}

func TestEachEventIsJudgedByItsRowsItsMessagesAndWhatSettlesIt(t *testing.T) {
	for _, s := range []scene{
		{name: "nothing", want: "0/0"},
		{name: "all there", rows: "a b c", messages: "a b c", want: "3/3"},
		{name: "one missing", rows: "a b c", messages: "a c", want: "2/3 absent 1"},
		{name: "dead or unconfirmed", rows: "a b c d", settled: "d:b u:c u:x d:y", messages: "a", want: "1/4 absent 3 pending 1"},
		{name: "dead and unconfirmed", rows: "a", settled: "u:a d:a", want: "0/1"},
		{name: "settled and stored", rows: "a", settled: "d:a", messages: "a", want: "1/1"},
		{name: "sent again on request", rows: "a b", messages: "a r:b r:a r:a", want: "2/2"},
		{name: "twice and thrice", rows: "a b c", messages: "a b a c b b", want: "3/3 twice [1 3] twice [2 5 6]"},
		{name: "out of order", rows: "a b", messages: "b i:a", want: "2/2 inverted [1 2]"},
		{name: "a second copy is only twice there", rows: "a b", messages: "a b i:a", want: "2/2 twice [1 3]"},
		{name: "without a row", messages: "a r:b n:c n:c", want: "0/0 unknown 2"},
		{name: "without a row, twice and out of order", rows: "a", messages: "a i:x x i:x", want: "1/1 unknown 1"},
		{name: "two rows of one id", rows: "a a b b", messages: "a", want: "2/4 absent 2,3"},
		{name: "no id, settled by number", rows: "- a - -", settled: "d:- u:-", messages: "a", want: "1/4 absent 3 pending 1"},
		{
			name: "not selected", rows: "a* b* c d", filtered: true, messages: "i:a b b x x c c",
			want: "1/2 absent 3 unknown 1 twice [6 7]",
		},
	} {
		t.Run(s.name, func(t *testing.T) {
			if got := s.run(t); got != s.want {
				t.Errorf("got %q, want %q", got, s.want)
			}
		})
	}
}

func TestControlCharactersInAnIdCompareInTheFormOfTheHeader(t *testing.T) {
	var k keyer
	for id, header := range map[string]string{"a": "a", "p\nq": "p%0Aq", " a ": "%20a%20", "a b": "a b", "100%": "100%"} {
		if k.ofRow([]byte(id)) != k.ofHeader(header) {
			t.Errorf("%q does not match the header %q", id, header)
		}
	}
}

// The oldest message has its row at a place of the table. With one writer all before it
// is too old; where transactions overlap, also what may have been committed before it.
func TestRowsNearTheOldEndAreTooOldAsFarAsCommitsStrayFromTheTable(t *testing.T) {
	for _, tc := range []struct {
		name     string
		from     uint64
		messages [][2]uint64 // sequence and place
		want     uint64
		known    bool
	}{
		{name: "no message", want: 0},
		{name: "one writer", messages: [][2]uint64{{5, 40}, {6, 41}, {7, 42}}, want: 40, known: true},
		{name: "in any order of reading", messages: [][2]uint64{{7, 42}, {5, 40}, {6, 41}}, want: 40, known: true},
		{name: "overlapping", messages: [][2]uint64{{5, 40}, {6, 43}, {7, 41}, {8, 42}}, want: 40 + 2*2, known: true},
		{name: "dropped while it was read", from: 6, messages: [][2]uint64{{5, 40}, {6, 41}}, want: 41, known: true},
		{name: "all newer than the table", messages: [][2]uint64{{5, newerThanAll}, {6, 3}}, want: newerThanAll, known: true},
		{name: "some newer", messages: [][2]uint64{{5, 40}, {6, newerThanAll}, {7, 41}}, want: 40, known: true},
	} {
		o := oldest{from: tc.from}
		for _, m := range tc.messages {
			o.add(m[0], m[1])
		}
		if got, known := o.end(); got != tc.want || known != tc.known {
			t.Errorf("%s: got %d, %t", tc.name, got, known)
		}
	}
}

func TestOnlyTheOldestMessagesAreKept(t *testing.T) {
	var o oldest
	sequences := rand.New(rand.NewPCG(1, 2)).Perm(10 * oldestMax)
	for _, s := range sequences {
		o.add(uint64(s), uint64(s))
		if len(o.placed) > 2*oldestMax {
			t.Fatalf("%d messages are kept", len(o.placed))
		}
	}
	end, _ := o.end()
	if end != 0 || len(o.placed) != oldestMax || o.placed[oldestMax-1].sequence != oldestMax-1 {
		t.Errorf("the oldest of %d is %d, the last kept %d", len(o.placed), end, o.placed[len(o.placed)-1].sequence)
	}
}

func TestListsKeepTheFirstHundredBySequence(t *testing.T) {
	var l list
	for _, s := range rand.New(rand.NewPCG(3, 4)).Perm(1000) {
		l.add(found{sequences: []uint64{uint64(s)}})
	}
	var got []uint64
	for _, f := range l.items {
		got = append(got, f.sequences[0])
	}
	if len(got) != listMax || got[0] != 0 || got[listMax-1] != listMax-1 || !slices.IsSorted(got) || l.count != 1000 {
		t.Errorf("got %v of %d", got, l.count)
	}
}
