package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// TestSimulatedStreamAnswersAsTheRealOneDoes plays the exchanges to the simulated
// stream and to real servers: with one replica, and with three.
func TestSimulatedStreamAnswersAsTheRealOneDoes(t *testing.T) {
	single := testenv.NATS(t).URL()
	cluster := testenv.NATSCluster(t, 3).URL()
	for _, e := range exchanges {
		for _, replicas := range []int{1, 3} {
			want := e.want
			if replicas == 3 && e.want3 != "" {
				want = e.want3
			}
			name := fmt.Sprintf("%s/R%d/", e.name, replicas)
			t.Run(name+"simulated", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(1)
					defer w.end()
					cfg := streamConfig{
						name: "CONF", subjects: []string{"conf.>"}, replicas: replicas, batched: !e.unbatched, maxPayload: 1 << 20,
						window: 2 * time.Minute, maxMsgs: e.maxMsgs, maxMsgSize: e.maxMsgSize,
					}
					if e.window > 0 {
						cfg.window = e.window
					}
					js := newJetStream(w, cfg)
					c := &conversation{t: t, stream: cfg.name, delete: func(seq uint64) {
						w.mu.Lock()
						defer w.mu.Unlock()
						js.remove(seq)
					}}
					broker, err := js.dialer(&process{w: w, name: "client"})(t.Context(), c.answers())
					c.talk(e, broker, err, want)
				})
			})
			t.Run(name+"real", func(t *testing.T) {
				url := single
				if replicas == 3 {
					url = cluster
				}
				c := &conversation{t: t}
				c.real(url, replicas, e)
				dial := sink.Dialer(sink.PublisherConfig{Client: sink.ClientConfig{URL: url, Name: "test"}, Log: slog.New(slog.DiscardHandler)})
				broker, err := dial(t.Context(), c.answers())
				c.talk(e, broker, err, want)
			})
		}
	}
}

// real makes a stream on a real server.
func (c *conversation) real(url string, replicas int, e exchange) {
	c.t.Helper()
	cfg := jetstream.StreamConfig{
		Name: "CONF", Subjects: []string{"conf.>"}, Replicas: replicas, AllowBatchPublish: !e.unbatched,
		Duplicates: e.window, MaxMsgs: -1, MaxMsgSize: -1, Discard: jetstream.DiscardNew,
	}
	if e.maxMsgs > 0 {
		cfg.MaxMsgs = int64(e.maxMsgs)
	}
	if e.maxMsgSize > 0 {
		cfg.MaxMsgSize = int32(e.maxMsgSize)
	}
	js := testenv.JetStream(c.t, url)
	ctx := testenv.Context(c.t, testenv.Deadline)
	stream, err := js.CreateStream(ctx, cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.stream = cfg.Name
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testenv.Deadline)
		defer cancel()
		_ = js.DeleteStream(ctx, cfg.Name)
	})
	c.delete = func(seq uint64) {
		if err := stream.DeleteMsg(ctx, seq); err != nil {
			c.t.Fatal(err)
		}
	}
}

// conversation is one exchange with one stream.
type conversation struct {
	t      *testing.T
	stream string
	delete func(seq uint64)
	broker sink.Broker

	mu   sync.Mutex
	said []string
	more chan struct{}
	log  []string
}

const conformanceInbox = "_INBOX.conformance"

func (c *conversation) answers() sink.Answers {
	c.more = make(chan struct{}, 1)
	return sink.Answers{Inbox: conformanceInbox, Disconnected: func() {}, Reconnected: func() {}, Take: func(subject, status string, body []byte) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.said = append(c.said, describeAnswer(subject, status, body))
		select {
		case c.more <- struct{}{}:
		default:
		}
	}}
}

// describeAnswer writes an answer in a few words.
func describeAnswer(subject, status string, body []byte) string {
	token := strings.Split(strings.TrimPrefix(subject, conformanceInbox+"."), ".")
	to := token[0] + "." + token[len(token)-1]
	if len(token) > 3 {
		to = token[0] + "." + token[3]
	}
	if status == "503" {
		return to + " nobody"
	}
	var a struct {
		Type      string `json:"type"`
		Seq       uint64 `json:"seq"`
		Msgs      uint64 `json:"msgs"`
		LastSeq   uint64 `json:"last_seq"`
		Stream    string `json:"stream"`
		Batch     string `json:"batch"`
		Count     uint64 `json:"count"`
		Duplicate bool   `json:"duplicate"`
		Error     *struct {
			Code int `json:"err_code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return to + " " + err.Error()
	}
	text := to
	switch {
	case a.Type == "ack":
		return fmt.Sprintf("%s flow %d every %d", to, a.Seq, a.Msgs)
	case a.Type == "gap":
		return fmt.Sprintf("%s gap %d %d", to, a.LastSeq, a.Seq)
	case a.Type == "err":
		return fmt.Sprintf("%s refused at %d with %d", to, a.Seq, a.Error.Code)
	case a.Error != nil:
		return fmt.Sprintf("%s refused with %d", to, a.Error.Code)
	case a.Stream == "":
		return fmt.Sprintf("%s %s", to, body)
	}
	text += fmt.Sprintf(" stored %d", a.Seq)
	if a.Batch != "" {
		text += fmt.Sprintf(" count %d", a.Count)
	}
	if a.Duplicate {
		text += " duplicate"
	}
	return text
}

// talk plays the exchange and compares what came of it.
func (c *conversation) talk(e exchange, broker sink.Broker, err error, want string) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
	defer broker.Close()
	c.broker = broker
	broker.Prepare()
	c.hear(0) // the server knows of the inbox once it has answered
	e.talk(c)
	c.hear(0)
	got := strings.Join(c.log, "\n")
	var lines []string
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if want := strings.Join(lines, "\n"); got != want {
		c.t.Errorf("it says\n%s\n\nwant\n%s", got, want)
	}
}

// hear waits for at least n answers and notes all that are there then.
func (c *conversation) hear(n int) {
	c.t.Helper()
	deadline := time.NewTimer(testenv.Deadline)
	defer deadline.Stop()
	for {
		c.mu.Lock()
		got := len(c.said)
		c.mu.Unlock()
		if got >= n {
			break
		}
		select {
		case <-c.more:
		case <-deadline.C:
			c.t.Fatalf("%d answers of %d: %q", got, n, c.said)
		}
	}
	// What is said behind an answer is heard before that of a later request.
	if _, err := c.broker.StreamStatus(c.t.Context(), c.stream); err != nil {
		c.t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.said)
	c.log = append(c.log, c.said...)
	c.said = nil
}

func (c *conversation) notef(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

const anySequence = -1

// plain publishes event n.
func (c *conversation) plain(reply string, n, expected int) {
	c.t.Helper()
	c.send(c.message(n), fmt.Sprintf("%s.plain.p.%s", conformanceInbox, reply), expected)
}

// batch publishes event n as part of a batch; see processBatch.
func (c *conversation) batch(id string, flow, seq, op, n, expected int) {
	c.t.Helper()
	c.send(c.message(n), fmt.Sprintf("%s.%s.%d.fail.%d.%d.$FI", conformanceInbox, id, flow, seq, op), expected)
}

func (c *conversation) send(m *sink.Message, reply string, expected int) {
	c.t.Helper()
	if err := c.broker.Publish(m, []byte(reply), c.stream, uint64(max(0, expected)), expected != anySequence); err != nil {
		c.t.Fatal(err)
	}
	if err := c.broker.Flush(); err != nil {
		c.t.Fatal(err)
	}
}

// end ends a batch without a message.
func (c *conversation) end(id string, flow, seq int) {
	c.t.Helper()
	reply := fmt.Sprintf("%s.%s.%d.fail.%d.%d.$FI", conformanceInbox, id, flow, seq, opCommitEnd)
	if err := c.broker.PublishEmpty("conf.a", []byte(reply)); err != nil {
		c.t.Fatal(err)
	}
	if err := c.broker.Flush(); err != nil {
		c.t.Fatal(err)
	}
}

// large is the number from which on events are of 2,000 bytes, others of nobody's subject.
const (
	large   = 1000
	nowhere = 2000
)

// message makes event n; every third is on subject conf.b, the others on conf.a.
func (c *conversation) message(n int) *sink.Message {
	c.t.Helper()
	subject, body := "conf.a", `{"n":1}`
	switch {
	case n >= nowhere:
		subject = "nowhere.a"
	case n >= large:
		body = `{"n":"` + strings.Repeat("x", 2000) + `"}`
	case n%3 == 0:
		subject = "conf.b"
	}
	template, err := sink.ParseTemplate(subject, decode.DefaultMapping())
	if err != nil {
		c.t.Fatal(err)
	}
	enc := sink.NewEncoder(sink.EncoderConfig{Template: template, Format: sink.FormatPayload, Headers: sink.HeadersMinimal, Source: "1/o", SourceName: "o"})
	var v decode.Values
	v.Fields[decode.FieldEventID] = fmt.Appendf(nil, "%08d-0000-4000-8000-000000000000", n)
	v.Kinds[decode.FieldEventID] = decode.KindUUID
	v.Fields[decode.FieldPayload], v.Kinds[decode.FieldPayload] = []byte(body), decode.KindJSON
	m, err := enc.Encode(decode.NewEvent(decode.Position{Timeline: 1, CommitLSN: 100, Ordinal: uint64(n)}, time.Unix(0, 0), decode.TableName{}, v))
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// read notes one stored message.
func (c *conversation) read(q sink.MessageQuery) {
	c.t.Helper()
	m, err := c.broker.Message(c.t.Context(), c.stream, q)
	if err != nil {
		c.t.Fatal(err)
	}
	c.notef("%+v: %s", q, describeStored(m))
}

func describeStored(m *sink.Fetched) string {
	if m == nil {
		return "nothing"
	}
	return fmt.Sprintf("%d %s %s", m.Sequence, m.Subject, m.Header.Get(headerPosition))
}

// status notes what the stream says of itself.
func (c *conversation) status() {
	c.t.Helper()
	st, err := c.broker.StreamStatus(c.t.Context(), c.stream)
	if err != nil {
		c.t.Fatal(err)
	}
	c.notef("first %d last %d messages %d", st.FirstSequence, st.LastSequence, st.Messages)
}
