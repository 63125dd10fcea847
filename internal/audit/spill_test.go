package audit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"
)

func TestSpillGivesBackAllRecordsOrderedByKeyAndHoldsFewInMemory(t *testing.T) {
	const records = 400_000
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var s spill
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range uint64(records) {
		k := keyOf(binary.LittleEndian.AppendUint64(nil, i/2)) // each key twice
		if err := s.add(record{key: k, a: i, b: ^i}); err != nil {
			t.Fatal(err)
		}
	}
	held := 0
	for i := range s.parts {
		held += cap(s.parts[i].buffer)
	}
	if limit := 2 * partitions * blockBytes; held > limit {
		t.Errorf("%d bytes are held in memory, want at most %d", held, limit)
	}
	// A process that is killed leaves nothing behind.
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 || s.file == nil {
		t.Errorf("%v in the folder for temporary files: %v", left, err)
	}
	seen := make([]bool, records)
	var part []record
	for i := range partitions {
		var err error
		if part, err = s.part(i, part); err != nil {
			t.Fatal(err)
		}
		for at, r := range part {
			if r.b != ^r.a || seen[r.a] {
				t.Fatalf("record %d comes twice or changed", r.a)
			}
			seen[r.a] = true
			if at > 0 {
				former := part[at-1]
				order := compareKeys(former.key, r.key)
				if order > 0 || order == 0 && former.a > r.a || (order == 0) != (former.key == r.key) {
					t.Fatalf("part %d is not in order at %d", i, at)
				}
			}
		}
	}
	for i, ok := range seen {
		if !ok {
			t.Fatalf("record %d is lost", i)
		}
	}
}

func TestRowsComeBackInOrderWithEmptyIdsToldFromNull(t *testing.T) {
	const rows = 50_000 // more than is kept in memory
	for _, n := range []int{0, 10, rows} {
		var l rowList
		row0 := func(i int) row {
			switch i % 3 {
			case 0:
				return row{occurredAt: noTime, xmin: uint32(i)}
			case 1:
				return row{id: []byte{}, occurredAt: never}
			default:
				return row{id: fmt.Appendf(nil, "event %d, a long one", i), occurredAt: int64(-i)}
			}
		}
		var want bitmap
		for i := range n {
			if err := l.add(row0(i)); err != nil {
				t.Fatal(err)
			}
			if i%7 < 3 {
				want.add(uint64(i))
			}
		}
		if len(l.buffer) > rowsMemory {
			t.Errorf("%d bytes are held in memory", len(l.buffer))
		}
		next := uint64(0)
		err := l.each(&want, func(place uint64, r row) error {
			for !want.has(next) {
				next++
			}
			if w := row0(int(place)); place != next || (r.id == nil) != (w.id == nil) || !bytes.Equal(r.id, w.id) || r.occurredAt != w.occurredAt || r.xmin != w.xmin {
				return fmt.Errorf("row %d is %+v, want row %d: %+v", place, r, next, w)
			}
			next++
			return nil
		})
		if err = errors.Join(err, l.close()); err != nil {
			t.Error(err)
		}
		if n > 0 && next < uint64(n-7) {
			t.Errorf("%d of %d rows came", next, n)
		}
	}
}
