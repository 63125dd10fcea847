package audit

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
)

// row is what is kept of a row of the table beside its key.
type row struct {
	id         []byte // event id as it stands in the row; nil for NULL
	occurredAt int64  // microseconds since 1970; noTime where the row has none
	xmin       uint32 // of the transaction that wrote it
}

// noTime is later than any time, so that a row without one is never too old.
const noTime = int64(math.MaxInt64)

const (
	rowsMemory = 1 << 20  // bytes kept before they are written
	rowsBuffer = 64 << 10 // bytes read at once
)

// rowList keeps the rows in the order of the table. A row is known by its place in it,
// from 0. Rows are read from the start to the end only. It belongs to one goroutine.
type rowList struct {
	buffer []byte
	file   *os.File // nil until something is written
	size   int64    // of the file
	count  uint64
}

func (l *rowList) add(r row) error {
	l.buffer = binary.AppendVarint(l.buffer, r.occurredAt)
	l.buffer = binary.AppendUvarint(l.buffer, uint64(r.xmin))
	if r.id == nil {
		l.buffer = binary.AppendUvarint(l.buffer, 0)
	} else {
		l.buffer = binary.AppendUvarint(l.buffer, uint64(len(r.id))+1)
		l.buffer = append(l.buffer, r.id...)
	}
	l.count++
	if len(l.buffer) >= rowsMemory {
		return l.flush()
	}
	return nil
}

func (l *rowList) flush() error {
	if l.file == nil {
		var err error
		if l.file, err = temporary(); err != nil {
			return err
		}
	}
	if _, err := l.file.WriteAt(l.buffer, l.size); err != nil {
		return fmt.Errorf("write temporary file: %w", err)
	}
	l.size += int64(len(l.buffer))
	l.buffer = l.buffer[:0]
	return nil
}

// each calls f with each row that want has, in order; the row's id is valid until f
// returns. It ends at the first error of f.
func (l *rowList) each(want *bitmap, f func(place uint64, r row) error) error {
	if l.file != nil {
		if err := l.flush(); err != nil {
			return err
		}
	}
	in := bufio.NewReaderSize(bytes.NewReader(l.buffer), rowsBuffer)
	if l.file != nil {
		in.Reset(io.NewSectionReader(l.file, 0, l.size))
	}
	var r row
	for place := range l.count {
		if err := readRow(in, &r); err != nil {
			return fmt.Errorf("read temporary file: %w", err)
		}
		if !want.has(place) {
			continue
		}
		if err := f(place, r); err != nil {
			return err
		}
	}
	return nil
}

func (l *rowList) close() error { return closeFile(l.file) }

// readRow reads what add wrote. It uses the memory of the former row's id.
func readRow(in *bufio.Reader, r *row) error {
	var err error
	if r.occurredAt, err = binary.ReadVarint(in); err != nil {
		return err
	}
	xmin, err := binary.ReadUvarint(in)
	if err != nil {
		return err
	}
	length, err := binary.ReadUvarint(in)
	if err != nil {
		return err
	}
	r.xmin = uint32(xmin)
	if length == 0 {
		r.id = nil
		return nil
	}
	r.id = slices.Grow(r.id[:0], int(length))[:length-1]
	_, err = io.ReadFull(in, r.id)
	return err
}

// bitmap is a set of places. A hundred million of them take 12 MB.
type bitmap struct {
	words []uint64
	count uint64
}

func (b *bitmap) add(place uint64) {
	for uint64(len(b.words)) <= place/64 {
		b.words = append(b.words, 0)
	}
	if bit := uint64(1) << (place % 64); b.words[place/64]&bit == 0 {
		b.words[place/64] |= bit
		b.count++
	}
}

func (b *bitmap) has(place uint64) bool {
	return place/64 < uint64(len(b.words)) && b.words[place/64]&(1<<(place%64)) != 0
}
