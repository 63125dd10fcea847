package sink

import (
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

	headers    []header
	headerBuf  [8]header // holds the headers of a message without extra ones
	headerSize int       // bytes of the header lines, without the first and the empty last one
	body       []byte
	eventSize  int
}

type header struct{ name, value string }

// messageOverhead is what a Message costs in memory beside its text and body.
const messageOverhead = 480

// Size returns the bytes that the message holds in memory.
func (m *Message) Size() int { return messageOverhead + 2*m.headerSize + len(m.body) }

// EventSize returns what the event that the message was made from said of its size.
func (m *Message) EventSize() int { return m.eventSize }

// Header returns the value of a header that the message carries of itself, and
// whether it has it. The publisher's own headers (expected sequence and stream)
// are not among them.
func (m *Message) Header(name string) (string, bool) {
	for _, h := range m.headers {
		if h.name == name {
			return h.value, true
		}
	}
	return "", false
}

// Headers calls yield for each header in the order of writing until it returns false.
func (m *Message) Headers(yield func(name, value string) bool) {
	for _, h := range m.headers {
		if !yield(h.name, h.value) {
			return
		}
	}
}

// Body returns the body; the caller must not change it.
func (m *Message) Body() []byte { return m.body }

const (
	headerStart = len("NATS/1.0\r\n")
	headerEnd   = len("\r\n")
	headerLine  = len(": \r\n")
)

// wireSize returns the bytes that count towards the limits of server and stream,
// with the headers that the publisher adds for the named stream.
func (m *Message) wireSize(stream string) int {
	return m.headerBytes(stream) + len(m.body)
}

func (m *Message) headerBytes(stream string) int {
	return headerStart + headerEnd + m.headerSize +
		len(hdrExpectedStream) + headerLine + len(stream) +
		len(hdrExpectedLastSeq) + headerLine + maxUint64Digits
}

const maxUint64Digits = 20
