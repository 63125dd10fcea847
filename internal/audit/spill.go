package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/outbox-cdc/outbox-cdc/sink"
)

const (
	partitions = 256      // a part of 100 million rows is 13 MB
	blockBytes = 16 << 10 // gathered for each part before it is written
)

// key stands for an event id, in the form of its header. Two ids with the same one do
// not occur.
type key [16]byte

// keyer makes keys. It belongs to one goroutine.
type keyer struct{ text []byte }

// ofRow returns the key of an event id as it stands in a row.
func (k *keyer) ofRow(id []byte) key {
	k.text = sink.AppendEventID(k.text[:0], id)
	return keyOf(k.text)
}

// ofHeader returns the key of an event id as it stands in a message's header.
func (k *keyer) ofHeader(id string) key {
	k.text = append(k.text[:0], id...)
	return keyOf(k.text)
}

func keyOf(text []byte) key {
	sum := sha256.Sum256(text)
	return key(sum[:16])
}

// record is what is kept of a row, a message or a settled event: what the two numbers
// mean is the user's affair.
type record struct {
	key  key
	a, b uint64
}

const recordBytes = 16 + 8 + 8

// spill takes any number of records and gives them back part by part, by key. It holds
// a few megabytes in memory and the rest in a temporary file without a name, so that
// nothing is left behind by a process that is killed. It belongs to one goroutine.
type spill struct {
	parts [partitions]part
	file  *os.File // nil until something is written
	end   int64
	count uint64
}

type part struct {
	buffer []byte
	blocks []int64 // where in the file each block of blockBytes begins
}

// add takes a record.
func (s *spill) add(r record) error {
	p := &s.parts[r.key[0]]
	if len(p.buffer) == blockBytes {
		if err := s.write(p); err != nil {
			return err
		}
	}
	p.buffer = append(p.buffer, r.key[:]...)
	p.buffer = binary.LittleEndian.AppendUint64(p.buffer, r.a)
	p.buffer = binary.LittleEndian.AppendUint64(p.buffer, r.b)
	s.count++
	return nil
}

func (s *spill) write(p *part) error {
	if s.file == nil {
		var err error
		if s.file, err = temporary(); err != nil {
			return err
		}
	}
	if _, err := s.file.WriteAt(p.buffer, s.end); err != nil {
		return fmt.Errorf("write temporary file: %w", err)
	}
	p.blocks = append(p.blocks, s.end)
	s.end += int64(len(p.buffer))
	p.buffer = p.buffer[:0]
	return nil
}

// part returns the records of one part, ordered by key and in the order of adding for
// the same one. into is used for them when it is large enough.
func (s *spill) part(i int, into []record) ([]record, error) {
	p := &s.parts[i]
	into = slices.Grow(into[:0], (len(p.blocks)*blockBytes+len(p.buffer))/recordBytes)
	block := make([]byte, blockBytes)
	for _, at := range p.blocks {
		if _, err := s.file.ReadAt(block, at); err != nil {
			return nil, fmt.Errorf("read temporary file: %w", err)
		}
		into = appendRecords(into, block)
	}
	into = appendRecords(into, p.buffer)
	slices.SortStableFunc(into, func(x, y record) int { return compareKeys(x.key, y.key) })
	return into, nil
}

func appendRecords(to []record, bytes []byte) []record {
	for ; len(bytes) > 0; bytes = bytes[recordBytes:] {
		to = append(to, record{
			key: key(bytes[:16]), a: binary.LittleEndian.Uint64(bytes[16:]), b: binary.LittleEndian.Uint64(bytes[24:]),
		})
	}
	return to
}

func compareKeys(x, y key) int {
	for _, half := range [2]int{0, 8} {
		a, b := binary.BigEndian.Uint64(x[half:]), binary.BigEndian.Uint64(y[half:])
		if a != b {
			if a < b {
				return -1
			}
			return 1
		}
	}
	return 0
}

// close frees the file.
func (s *spill) close() error { return closeFile(s.file) }

// temporary makes a file that has no name any more.
func temporary() (*os.File, error) {
	file, err := os.CreateTemp("", "outbox-cdc-verify-*")
	if err != nil {
		return nil, fmt.Errorf("make a temporary file (TMPDIR says where): %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("unlink temporary file: %w", err), file.Close())
	}
	return file, nil
}

func closeFile(file *os.File) error {
	if file == nil {
		return nil
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("close temporary file: %w", err)
	}
	return nil
}
