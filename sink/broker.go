package sink

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
)

// Broker is one connection to NATS as a Publisher uses it, and the one place where a
// Publisher touches the network: package sim has another than Dial makes. The methods
// belong to the Publisher's goroutine, but for Close.
type Broker interface {
	// Prepare makes the connection ready to publish after it was made anew underneath.
	// What was gathered and not flushed may be dropped.
	Prepare()
	// Publish gathers a message, with the headers that name the stream and, where expect
	// is set, the stream's last sequence. The message and reply are copied. An error says
	// that the connection cannot take messages: whether those gathered before it were
	// sent is not known.
	Publish(m *Message, reply []byte, stream string, expectedLastSeq uint64, expect bool) error
	// PublishEmpty gathers a message without headers and body.
	PublishEmpty(subject string, reply []byte) error
	// Flush sends what was gathered, in order. It does not wait for the server.
	Flush() error

	// Connected tells whether the connection is up at present. One that is lost comes
	// back by itself.
	Connected() bool
	// Closed is closed when the connection will not come back.
	Closed() <-chan struct{}
	// AsyncError returns the newest error that arrived outside of any call, and when:
	// refused permissions are reported only there.
	AsyncError() (time.Time, error)
	// Close ends the connection. What is in flight stays unanswered. It may be called
	// from any goroutine, and more than once.
	Close()

	// MaxPayload is the most bytes, headers included, that the server takes.
	MaxPayload() int
	// StreamStatus asks the stream's leader for its configuration and state. A stream
	// that does not exist is no error.
	StreamStatus(ctx context.Context, stream string) (StreamStatus, error)
	// Message fetches one stored message from the stream's leader; nil when there is none.
	Message(ctx context.Context, stream string, query MessageQuery) (*Fetched, error)
	// Chunk fetches the messages with sequences first to last, at most chunkSize, from
	// the leader. Those that are gone are left out.
	Chunk(ctx context.Context, stream string, first, last uint64) ([]*Fetched, error)
}

// Answers is where a Broker reports what arrives by itself. Its functions do not block
// and may be called from any goroutine.
type Answers struct {
	// Inbox is the prefix of all reply subjects; a dot follows.
	Inbox string
	// Take takes an answer: its subject, its Status header, its body. The body is not kept.
	Take func(subject, status string, body []byte)
	// Disconnected says that the connection was lost: answers to what was sent before
	// may never come. Reconnected says that it is there again.
	Disconnected, Reconnected func()
}

// MessageQuery says which stored message is wanted: the one with sequence Seq, the first
// at or behind Seq on NextBySubject, or the newest on LastBySubject.
type MessageQuery struct {
	Seq           uint64 `json:"seq,omitempty"`
	NextBySubject string `json:"next_by_subj,omitempty"`
	LastBySubject string `json:"last_by_subj,omitempty"`
}

// Fetched is a stored message without its body.
type Fetched struct {
	Subject  string
	Sequence uint64
	Time     time.Time
	Header   nats.Header
}

// natsBroker is the Broker that Dial makes: a Client with what publishing needs.
type natsBroker struct {
	*Client
	frames frames
	header nats.Header
	values [][]string
	msg    nats.Msg
}

// Dialer returns the Dial of a configuration that gives none.
func Dialer(cfg PublisherConfig) func(context.Context, Answers) (Broker, error) {
	return func(ctx context.Context, a Answers) (Broker, error) { return dialBroker(ctx, cfg, a) }
}

// dialBroker makes one attempt to connect, as Dial does.
func dialBroker(ctx context.Context, cfg PublisherConfig, a Answers) (Broker, error) {
	c, err := Dial(ctx, cfg.Client, cfg.Log)
	if err != nil {
		return nil, err
	}
	if err := c.listen(a); err != nil {
		c.Close()
		return nil, err
	}
	return &natsBroker{Client: c, header: nats.Header{}}, nil
}

// Prepare lets the messages go beside nats.go where the connection allows it.
func (b *natsBroker) Prepare() { b.frames.use(b.plainConn()) }

// Flush writes what was gathered; nats.go writes the rest by itself.
func (b *natsBroker) Flush() error { return b.frames.flush() }

// Publish gathers a message, or hands it to nats.go.
func (b *natsBroker) Publish(m *Message, reply []byte, stream string, expectedLastSeq uint64, expect bool) error {
	if b.frames.conn != nil {
		return b.frames.publish(m, reply, stream, expectedLastSeq, expect)
	}
	clear(b.header)
	n := 0
	set := func(name, value string) {
		if n == len(b.values) {
			b.values = append(b.values, make([]string, 1))
		}
		b.values[n][0] = value
		b.header[name] = b.values[n]
		n++
	}
	for name, value := range m.Headers {
		set(name, value)
	}
	set(hdrExpectedStream, stream)
	if expect {
		set(hdrExpectedLastSeq, strconv.FormatUint(expectedLastSeq, 10))
	}
	b.msg.Subject, b.msg.Reply, b.msg.Header, b.msg.Data = m.Subject, string(reply), b.header, m.body
	return b.nc.PublishMsg(&b.msg)
}

// PublishEmpty gathers a message without headers and body, or hands it to nats.go.
func (b *natsBroker) PublishEmpty(subject string, reply []byte) error {
	if b.frames.conn != nil {
		b.frames.publishEmpty(subject, reply)
		return nil
	}
	return b.nc.PublishRequest(subject, string(reply), nil)
}
