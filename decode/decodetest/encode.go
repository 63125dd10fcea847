package decodetest

import (
	"encoding/binary"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// Begin returns a Begin message.
func Begin(commitLSN pglogrepl.LSN, commitTime time.Time, xid uint32) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'B'}, uint64(commitLSN))
	b = appendTime(b, commitTime)
	return binary.BigEndian.AppendUint32(b, xid)
}

// Commit returns a Commit message.
func Commit(commitLSN, commitEndLSN pglogrepl.LSN, commitTime time.Time) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'C', 0}, uint64(commitLSN))
	b = binary.BigEndian.AppendUint64(b, uint64(commitEndLSN))
	return appendTime(b, commitTime)
}

// Relation returns the Relation message of a table without a key.
func Relation(r decode.Relation) []byte {
	b := binary.BigEndian.AppendUint32([]byte{'R'}, r.OID)
	b = appendString(b, r.Schema)
	b = appendString(b, r.Name)
	b = append(b, 'd') // replica identity: default
	b = binary.BigEndian.AppendUint16(b, uint16(len(r.Columns)))
	for _, c := range r.Columns {
		b = appendString(append(b, 0), c.Name)
		b = binary.BigEndian.AppendUint32(b, c.TypeOID)
		b = binary.BigEndian.AppendUint32(b, 0xFFFFFFFF) // type modifier -1: none
	}
	return b
}

// Insert returns an Insert message; a nil value is NULL.
func Insert(oid uint32, values ...[]byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{'I'}, oid)
	b = append(b, 'N')
	b = binary.BigEndian.AppendUint16(b, uint16(len(values)))
	for _, v := range values {
		if v == nil {
			b = append(b, 'n')
			continue
		}
		b = binary.BigEndian.AppendUint32(append(b, 't'), uint32(len(v)))
		b = append(b, v...)
	}
	return b
}

// Message returns a logical message.
func Message(transactional bool, lsn pglogrepl.LSN, prefix string, content []byte) []byte {
	b := []byte{'M', 0}
	if transactional {
		b[1] = 1
	}
	b = binary.BigEndian.AppendUint64(b, uint64(lsn))
	b = appendString(b, prefix)
	b = binary.BigEndian.AppendUint32(b, uint32(len(content)))
	return append(b, content...)
}

func appendString(b []byte, s string) []byte {
	return append(append(b, s...), 0)
}

// appendTime appends microseconds since 2000-01-01 UTC.
func appendTime(b []byte, t time.Time) []byte {
	const epochMicros = 946684800 * 1_000_000
	return binary.BigEndian.AppendUint64(b, uint64(t.UnixMicro()-epochMicros))
}
