package decode

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"
)

// cursor reads one message from front to back. The first read beyond the end is
// remembered; every later one returns zero, so that a caller checks once, at the end,
// and before it trusts a length.
type cursor struct {
	msg []byte
	off int
	err *ProtocolError
}

func (c *cursor) fail(cause ProtocolCause, reason string, args ...any) {
	if c.err == nil {
		c.err = &ProtocolError{Cause: cause, Message: c.msg[0], Offset: c.off, Reason: fmt.Sprintf(reason, args...)}
	}
}

// take returns the next n bytes, which belong to the message; nil if there are fewer.
func (c *cursor) take(n int) []byte {
	if n > len(c.msg)-c.off || n < 0 {
		c.short(n)
		return nil
	}
	b := c.msg[c.off : c.off+n]
	c.off += n
	return b
}

func (c *cursor) short(n int) {
	c.fail(CauseMalformed, "%d bytes wanted, %d left", n, len(c.msg)-c.off)
	c.off = len(c.msg)
}

func (c *cursor) uint8() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) uint16() uint16 {
	if b := c.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) uint32() uint32 {
	if b := c.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) uint64() uint64 {
	if b := c.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// string reads text up to a NUL byte. The result is a copy.
func (c *cursor) string() string {
	n := bytes.IndexByte(c.msg[c.off:], 0)
	if n < 0 {
		c.fail(CauseMalformed, "a string does not end")
		c.off = len(c.msg)
		return ""
	}
	s := string(c.msg[c.off : c.off+n])
	c.off += n + 1
	return s
}

// time reads microseconds since 2000-01-01 UTC.
func (c *cursor) time() time.Time {
	const epochMicros = 946684800 * 1_000_000
	return time.UnixMicro(epochMicros + int64(c.uint64())).UTC()
}

// end fails unless everything was read and returns the first error.
func (c *cursor) end() error {
	if c.err == nil && c.off != len(c.msg) {
		c.fail(CauseMalformed, "%d bytes too many", len(c.msg)-c.off)
	}
	return c.error()
}

// error keeps a nil *ProtocolError from becoming an error that is not nil.
func (c *cursor) error() error {
	if c.err == nil {
		return nil
	}
	return c.err
}
