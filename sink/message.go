package sink

import (
	"strings"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// Message is an event as it is published. It owns its bytes and does not change
// once Encode has returned it.
type Message struct {
	Subject  string
	ID       string // Nats-Msg-Id
	Position decode.Position

	// For log lines and metrics; empty when the row does not have them.
	EventID     string
	AggregateID string
	TraceID     string
	CommitTime  time.Time

	// Number is the caller's own; it comes back with the settlement.
	Number uint64

	lines     string // the header lines, each with its line end
	body      []byte
	eventSize int
}

type header struct{ name, value string }

// messageOverhead is what a Message costs in memory beside its text and body.
const messageOverhead = 256

// Size returns the bytes that the message holds in memory.
func (m *Message) Size() int {
	return messageOverhead + len(m.Subject) + len(m.lines) + len(m.AggregateID) + len(m.body)
}

// EventSize returns what the event that the message was made from said of its size.
func (m *Message) EventSize() int { return m.eventSize }

// Header returns the value of a header that the message carries of itself, and
// whether it has it. The publisher's own headers (expected sequence and stream)
// are not among them.
func (m *Message) Header(name string) (string, bool) {
	for n, value := range m.Headers {
		if n == name {
			return value, true
		}
	}
	return "", false
}

// Headers calls yield for each header in the order of writing until it returns false.
func (m *Message) Headers(yield func(name, value string) bool) {
	rest := m.lines
	for rest != "" {
		line, after, _ := strings.Cut(rest, lineEnd)
		name, value, _ := strings.Cut(line, separator)
		if !yield(name, value) {
			return
		}
		rest = after
	}
}

// Body returns the body; the caller must not change it.
func (m *Message) Body() []byte { return m.body }

const (
	headerVersion = "NATS/1.0\r\n" // begins the headers
	lineEnd       = "\r\n"         // ends each line, and the headers
	separator     = ": "

	headerStart     = len(headerVersion)
	headerEnd       = len(lineEnd)
	headerLine      = len(separator) + len(lineEnd)
	maxUint64Digits = 20
)

// with returns the message with one header more.
func (m *Message) with(name, value string) *Message {
	more := *m
	more.lines += name + separator + value + lineEnd
	return &more
}

// recordBytes is what the file store of nats-server adds to the headers, body and subject of a message.
const recordBytes = 34

// storedSize returns the bytes that a message takes in the stream, within a few.
func (m *Message) storedSize(stream string) int {
	return m.wireSize(stream) + len(m.Subject) + recordBytes
}

// wireSize returns the bytes that count towards the limits of server and stream,
// with the headers that the publisher adds for the named stream.
func (m *Message) wireSize(stream string) int {
	return headerStart + headerEnd + len(m.lines) +
		len(hdrExpectedStream) + headerLine + len(stream) +
		len(hdrExpectedLastSeq) + headerLine + maxUint64Digits + len(m.body)
}
