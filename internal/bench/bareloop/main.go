package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/nats-io/nats.go"
)

const (
	window      = 4096 // published and not acknowledged
	statusEvery = time.Second
)

// sample is the message that is published again and again, each time with another id.
type sample struct {
	Subject  string      `json:"subject"`
	Header   nats.Header `json:"header"` // without Nats-Msg-Id
	BodySize int         `json:"body_size"`
}

func main() {
	databaseURL := flag.String("database-url", "", "PostgreSQL")
	natsURL := flag.String("nats-url", "", "NATS")
	slot := flag.String("slot", "", "slot to read from")
	publication := flag.String("publication", "", "publication to read")
	samplePath := flag.String("sample", "", "JSON `file` with subject, header and body_size")
	flag.Parse()

	var s sample
	text, err := os.ReadFile(*samplePath)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err == nil {
		err = run(context.Background(), *databaseURL, *natsURL, *slot, *publication, s)
	}
	panic(err)
}

// run goes on until something fails or the process is killed.
func run(ctx context.Context, databaseURL, natsURL, slot, publication string, s sample) error {
	pg, err := startReplication(ctx, databaseURL, slot, publication)
	if err != nil {
		return err
	}
	out, err := newPublisher(natsURL, s)
	if err != nil {
		return err
	}
	lastStatus := time.Now()
	for {
		msg, err := pg.ReceiveMessage(ctx)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		switch kind := kindOf(msg); kind {
		case 'I':
			if err := out.publish(); err != nil {
				return err
			}
		case 'C', 'k':
			if kind == 'C' && time.Since(lastStatus) < statusEvery {
				continue
			}
			lastStatus = time.Now()
			// Position 1 lies before all WAL: nothing is confirmed.
			err := pglogrepl.SendStandbyStatusUpdate(ctx, pg, pglogrepl.StandbyStatusUpdate{WALWritePosition: 1})
			if err != nil {
				return fmt.Errorf("send status: %w", err)
			}
		case 'E':
			return fmt.Errorf("PostgreSQL: %v", msg)
		}
	}
}

func startReplication(ctx context.Context, databaseURL, slot, publication string) (*pgconn.PgConn, error) {
	cfg, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("read database URL: %w", err)
	}
	cfg.RuntimeParams["replication"] = "database"
	pg, err := pgconn.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	err = pglogrepl.StartReplication(ctx, pg, slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + publication + "'"},
	})
	if err != nil {
		return nil, fmt.Errorf("start replication: %w", err)
	}
	return pg, nil
}

// kindOf returns the kind of the pgoutput message: I for an inserted row, C for a commit
// and so on; k for a keepalive and E for an error.
func kindOf(msg pgproto3.BackendMessage) byte {
	switch m := msg.(type) {
	case *pgproto3.ErrorResponse:
		return 'E'
	case *pgproto3.CopyData:
		const headerSize = 1 + 8 + 8 + 8 // 'w', start, WAL end, clock
		if m.Data[0] == pglogrepl.XLogDataByteID {
			return m.Data[headerSize]
		}
		return m.Data[0]
	default:
		return 0
	}
}

// publisher publishes the sample and counts acknowledgements.
type publisher struct {
	nc     *nats.Conn
	msg    nats.Msg
	number int
	window chan struct{} // one token for each message on its way
}

func newPublisher(natsURL string, s sample) (*publisher, error) {
	nc, err := nats.Connect(natsURL)
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	p := &publisher{nc: nc, window: make(chan struct{}, window)}
	p.msg = nats.Msg{
		Subject: s.Subject, Reply: nats.NewInbox(), Header: s.Header, Data: bytes.Repeat([]byte{'x'}, s.BodySize),
	}
	sub, err := nc.Subscribe(p.msg.Reply, p.onAck)
	if err != nil {
		return nil, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	return p, nil
}

func (p *publisher) onAck(m *nats.Msg) {
	if len(m.Data) == 0 || bytes.HasPrefix(m.Data, []byte(`{"error"`)) {
		panic("JetStream refused a message: " + string(m.Data))
	}
	<-p.window
}

// publish sends the sample with an id of the length of a uuid, once the window has room.
func (p *publisher) publish() error {
	p.window <- struct{}{}
	p.number++
	p.msg.Header[nats.MsgIdHdr] = []string{fmt.Sprintf("%036d", p.number)}
	if err := p.nc.PublishMsg(&p.msg); err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}
