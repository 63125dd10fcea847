package replication

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// FrameKind says what Receive brought.
type FrameKind uint8

const (
	// FrameNone says that the deadline passed first.
	FrameNone FrameKind = iota
	// FrameData holds one pgoutput message.
	FrameData
	// FrameKeepalive holds the server's position.
	FrameKeepalive
)

// Frame is one message of the stream.
type Frame struct {
	Kind FrameKind
	// Data is one pgoutput message. It is valid until the next Receive.
	Data []byte
	// SentLSN is, in a keepalive, the end of what the server has decoded and handed
	// over. In a data frame it is the change's own LSN, which proves nothing about
	// what may be confirmed.
	SentLSN pglogrepl.LSN
	// ReplyRequested asks for a status at once.
	ReplyRequested bool
}

const (
	statusWriteTimeout = 10 * time.Second
	statusMessageSize  = 1 + 4 + 1 + 8 + 8 + 8 + 8 + 1
	keepaliveSize      = 1 + 8 + 8 + 1
	dataHeaderSize     = 1 + 8 + 8 + 8
)

// microseconds between the Unix epoch and PostgreSQL's (2000-01-01)
const pgEpochOffset = 946684800000000

// Stream is a running replication stream. It belongs to one goroutine.
type Stream struct {
	conn         net.Conn
	frontend     *pgproto3.Frontend
	buffer       *bufio.Reader
	pid          uint32
	readDeadline time.Time
	status       [statusMessageSize]byte
	copyDone     bool // was sent
}

func newStream(conn net.Conn, frontend *pgproto3.Frontend, buffer *bufio.Reader, pid uint32) *Stream {
	return &Stream{conn: conn, frontend: frontend, buffer: buffer, pid: pid}
}

// Buffered tells whether bytes of further messages are here already, so that the
// next Receive is likely not to block.
func (s *Stream) Buffered() bool { return s.frontend.ReadBufferLen() > 0 || s.buffer.Buffered() > 0 }

// PID is the process id of the walsender on the server.
func (s *Stream) PID() uint32 { return s.pid }

// Receive returns the next frame, or a frame of kind FrameNone once the deadline
// has passed; then the stream is whole and Receive may be called again. Any error
// means that the stream is over: ErrStreamEnded for an end in good order, a
// NoticeError for a warning by the server, else the server's or the network's.
func (s *Stream) Receive(deadline time.Time) (Frame, error) {
	if !deadline.Equal(s.readDeadline) {
		if err := s.conn.SetReadDeadline(deadline); err != nil {
			return Frame{}, fmt.Errorf("receive from replication stream: %w", err)
		}
		s.readDeadline = deadline
	}
	msg, err := s.frontend.Receive()
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return Frame{Kind: FrameNone}, nil
		}
		return Frame{}, fmt.Errorf("receive from replication stream: %w", err)
	}
	switch m := msg.(type) {
	case *pgproto3.CopyData:
		return parseFrame(m.Data)
	case *pgproto3.ErrorResponse:
		return Frame{}, fmt.Errorf("replication stream: %w", pgconn.ErrorResponseToPgError(m))
	case *pgproto3.NoticeResponse:
		return Frame{}, &NoticeError{Severity: m.SeverityUnlocalized, SQLState: m.Code, Message: m.Message, SourceFile: m.File}
	case *pgproto3.CopyDone, *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
		return Frame{}, ErrStreamEnded
	case *pgproto3.ParameterStatus:
		return Frame{Kind: FrameNone}, nil
	default:
		return Frame{}, fmt.Errorf("replication stream: unexpected message %T", msg)
	}
}

func parseFrame(b []byte) (Frame, error) {
	if len(b) == 0 {
		return Frame{}, errors.New("replication stream: empty message")
	}
	switch b[0] {
	case 'w':
		if len(b) < dataHeaderSize {
			return Frame{}, fmt.Errorf("replication stream: data message of %d bytes", len(b))
		}
		return Frame{
			Kind: FrameData, Data: b[dataHeaderSize:],
			SentLSN: pglogrepl.LSN(binary.BigEndian.Uint64(b[1:])),
		}, nil
	case 'k':
		if len(b) < keepaliveSize {
			return Frame{}, fmt.Errorf("replication stream: keepalive of %d bytes", len(b))
		}
		return Frame{
			Kind: FrameKeepalive, SentLSN: pglogrepl.LSN(binary.BigEndian.Uint64(b[1:])),
			ReplyRequested: b[17] != 0,
		}, nil
	default:
		return Frame{}, fmt.Errorf("replication stream: unknown message %q", b[0])
	}
}

// Status is what a standby status update says. The three positions are named one
// by one at each call, since a zero is not "unchanged" for every client.
type Status struct {
	WriteLSN, FlushLSN, ApplyLSN pglogrepl.LSN
	// ReplyRequested asks the server for a keepalive, to see that it is there.
	ReplyRequested bool
}

// SendStatus tells the server the position. It blocks until the bytes are with
// the kernel, for at most 10 s; on an error the stream is over.
func (s *Stream) SendStatus(st Status, now time.Time) error {
	b := s.status[:]
	b[0] = 'd'
	binary.BigEndian.PutUint32(b[1:], statusMessageSize-1)
	b[5] = 'r'
	binary.BigEndian.PutUint64(b[6:], uint64(st.WriteLSN))
	binary.BigEndian.PutUint64(b[14:], uint64(st.FlushLSN))
	binary.BigEndian.PutUint64(b[22:], uint64(st.ApplyLSN))
	binary.BigEndian.PutUint64(b[30:], uint64(now.UnixMicro()-pgEpochOffset))
	b[38] = 0
	if st.ReplyRequested {
		b[38] = 1
	}
	if err := s.conn.SetWriteDeadline(now.Add(statusWriteTimeout)); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	if _, err := s.conn.Write(b); err != nil {
		return fmt.Errorf("send status: %w", err)
	}
	return nil
}

// Finish ends the stream in good order: it says CopyDone and waits until the server
// has said the same, by which time it has also read the last status. It blocks for
// at most the given time; what still arrives is dropped. Close is to follow.
func (s *Stream) Finish(limit time.Duration) error {
	deadline := time.Now().Add(limit)
	if err := s.conn.SetDeadline(deadline); err != nil {
		return fmt.Errorf("finish replication stream: %w", err)
	}
	if _, err := s.conn.Write([]byte{'c', 0, 0, 0, 4}); err != nil {
		return fmt.Errorf("finish replication stream: %w", err)
	}
	s.copyDone = true
	for {
		msg, err := s.frontend.Receive()
		if err != nil {
			return fmt.Errorf("finish replication stream: %w", err)
		}
		switch m := msg.(type) {
		case *pgproto3.CommandComplete, *pgproto3.ReadyForQuery:
			return nil
		case *pgproto3.ErrorResponse:
			return fmt.Errorf("finish replication stream: %w", pgconn.ErrorResponseToPgError(m))
		}
	}
}

// Close ends the stream at once: it says CopyDone and Terminate, as far as that
// goes without blocking for long, and closes the socket.
func (s *Stream) Close() {
	_ = s.conn.SetWriteDeadline(time.Now().Add(closeTimeout))
	goodbye := []byte{'c', 0, 0, 0, 4, 'X', 0, 0, 0, 4}
	if s.copyDone {
		goodbye = goodbye[5:]
	}
	_, _ = s.conn.Write(goodbye)
	_ = s.conn.Close()
}
