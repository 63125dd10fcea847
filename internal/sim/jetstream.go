package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/outbox-cdc/outbox-cdc/sink"
)

// JetStream error codes that the simulated stream answers with.
const (
	errNotLeader   = 10008
	errTooLarge    = 10054
	errWrongStream = 10060
	errWrongLast   = 10071
	errFull        = 10077
	errInProcess   = 10158
	errNoBatches   = 10205
	errNoBatch     = 10208
)

// streamConfig is what a simulated stream is made with.
type streamConfig struct {
	name       string
	subjects   []string
	replicas   int // 1 or 3
	window     time.Duration
	batched    bool
	maxPayload int
	maxMsgSize int // 0 is none
	maxMsgs    int // 0 is none; at the limit new messages are refused
}

// publish is a message on its way to the stream.
type publish struct {
	conn     *natsConn // who hears the answer; nil for nobody
	subject  string
	reply    string
	msg      *sink.Message // nil: no headers and no body
	id       string
	stream   string // expected; empty is any
	expected uint64
	expect   bool
	size     int
	sentAt   time.Time
}

// stored is a message in the stream.
type stored struct {
	seq     uint64
	subject string
	at      time.Time
	sentAt  time.Time
	msg     *sink.Message
	header  map[string][]string // made when it is read first
	id      string
	size    int
}

// member is what one server holds of the stream beside its messages, which are the same
// on all.
type member struct {
	ids     map[string]knownID
	batches map[string]*fastBatch
}

// knownID is an id that the duplicate window remembers. With three replicas the leader
// notes it before the message is stored, with sequence 0; such a note stays when the
// leader is deposed and the message never stored.
type knownID struct {
	seq     uint64
	expires time.Time
}

// jetStream is one stream, with one replica or three, and the servers that hold it.
type jetStream struct {
	w    *world
	cfg  streamConfig
	conn map[*natsConn]bool
	made int // connections so far

	messages []*stored // by sequence, from 1; nil where deleted
	deleted  int
	members  []*member
	leader   int // -1 for none
	down     bool

	queue        []*publish // came in and is not looked at yet
	stalledUntil time.Time  // of the ingest queue
	refusing     int        // a code that all messages are refused with for a while
	loses        int        // one in so many answers is lost; 0 for none
	mute         bool       // the API does not answer
	replication  *lane      // proposals on their way; three replicas
	proposed     uint64     // sequence of the last proposal
	onStore      func(*stored)
}

func newJetStream(w *world, cfg streamConfig) *jetStream {
	js := &jetStream{w: w, cfg: cfg, conn: map[*natsConn]bool{}, onStore: func(*stored) {}}
	for range cfg.replicas {
		js.members = append(js.members, newMember())
	}
	js.replication = &lane{w: w}
	return js
}

func newMember() *member {
	return &member{ids: map[string]knownID{}, batches: map[string]*fastBatch{}}
}

func (js *jetStream) clustered() bool { return js.cfg.replicas > 1 }

func (js *jetStream) lastSeq() uint64 { return uint64(len(js.messages)) }

// at returns a message, or nil.
func (js *jetStream) at(seq uint64) *stored {
	if seq == 0 || seq > js.lastSeq() {
		return nil
	}
	return js.messages[seq-1]
}

// covers tells whether the stream listens on a subject.
func (js *jetStream) covers(subject string) bool {
	for _, f := range js.cfg.subjects {
		if f == subject || strings.HasSuffix(f, ">") && strings.HasPrefix(subject, f[:len(f)-1]) {
			return true
		}
	}
	return false
}

// arrive takes a message from the network.
func (js *jetStream) arrive(p *publish) {
	switch {
	case js.down:
	case !js.covers(p.subject):
		js.nobody(p)
	case js.leader < 0:
		if !js.w.chance(4) { // a router says so, or the message is with the one who was leader
			js.nobody(p)
		}
	case len(js.queue) > 0:
		js.queue = append(js.queue, p)
	case time.Now().Before(js.stalledUntil):
		js.queue = append(js.queue, p)
		js.w.after(time.Until(js.stalledUntil), js.drain)
	default:
		js.process(p)
	}
}

// drain works off what came in while the stream stood still.
func (js *jetStream) drain() {
	if now := time.Now(); now.Before(js.stalledUntil) {
		js.w.after(js.stalledUntil.Sub(now), js.drain)
		return
	}
	queue := js.queue
	js.queue = nil
	for _, p := range queue {
		js.process(p)
	}
}

func (js *jetStream) process(p *publish) {
	if js.leader < 0 {
		return
	}
	js.w.detailf("stream: takes %.8s, reply %s, expects %d %v", p.id, p.reply, p.expected, p.expect)
	if strings.HasSuffix(p.reply, ".$FI") {
		js.processBatch(p)
		return
	}
	if code, dup := js.check(p, js.clustered()); dup > 0 {
		js.answerf(p, `{"stream":%q,"seq":%d,"duplicate": true}`, js.cfg.name, dup)
	} else if code != 0 {
		js.refuse(p, code)
	} else {
		js.commit(p, nil)
	}
}

// check returns why a message cannot be stored, or the sequence of the same message. A
// plain publish to a single replica looks at the sequence before it looks for
// duplicates; everybody else does so afterwards.
func (js *jetStream) check(p *publish, idsFirst bool) (code int, duplicate uint64) {
	if js.refusing != 0 {
		return js.refusing, 0
	}
	if js.cfg.maxMsgSize > 0 && p.size > js.cfg.maxMsgSize {
		return errTooLarge, 0
	}
	if p.stream != "" && p.stream != js.cfg.name {
		return errWrongStream, 0
	}
	wrongLast := p.expect && p.expected != js.tailSeq()
	if wrongLast && !idsFirst {
		return errWrongLast, 0
	}
	if known, ok := js.members[js.leader].known(p.id); ok {
		if known.seq == 0 {
			return errInProcess, 0
		}
		return 0, known.seq
	}
	switch {
	case wrongLast:
		return errWrongLast, 0
	case js.cfg.maxMsgs > 0 && int(js.tailSeq())-js.deleted >= js.cfg.maxMsgs:
		return errFull, 0
	}
	return 0, 0
}

// tailSeq is the last sequence that the leader has given away.
func (js *jetStream) tailSeq() uint64 {
	if js.clustered() {
		return js.proposed
	}
	return js.lastSeq()
}

func (m *member) known(id string) (knownID, bool) {
	if id == "" {
		return knownID{}, false
	}
	known, ok := m.ids[id]
	if ok && !time.Now().Before(known.expires) {
		delete(m.ids, id)
		ok = false
	}
	return known, ok
}

func (js *jetStream) note(m *member, id string, seq uint64) {
	if id != "" {
		m.ids[id] = knownID{seq, time.Now().Add(js.cfg.window)}
	}
}

// commit stores a message: at once, or once the replicas have it.
func (js *jetStream) commit(p *publish, b *batchRef) {
	if !js.clustered() {
		js.apply(p, b, true)
		return
	}
	js.proposed++
	js.note(js.members[js.leader], p.id, 0)
	js.replication.send(js.w.between(50*time.Microsecond, 3*time.Millisecond), func() { js.apply(p, b, true) })
}

// apply makes a message part of the stream on all members.
func (js *jetStream) apply(p *publish, b *batchRef, answers bool) {
	s := &stored{seq: js.lastSeq() + 1, subject: p.subject, at: time.Now(), sentAt: p.sentAt, msg: p.msg, id: p.id, size: p.size}
	js.messages = append(js.messages, s)
	for _, m := range js.members {
		js.note(m, p.id, s.seq)
	}
	js.w.detailf("stream: stores %.8s at %d", p.id, s.seq)
	js.onStore(s)
	if b != nil {
		js.registerBatch(p, b, s.seq)
	} else if answers {
		js.answerf(p, `{"stream":%q,"seq":%d}`, js.cfg.name, s.seq)
	}
}

// refuse answers with an error.
func (js *jetStream) refuse(p *publish, code int) {
	js.answerf(p, `{"error":{"code":400,"err_code":%d,"description":"simulated"},"stream":%q,"seq":0}`, code, js.cfg.name)
}

// nobody answers that no stream listens.
func (js *jetStream) nobody(p *publish) {
	if p.conn != nil {
		p.conn.take(p.reply, "503", nil)
	}
}

func (js *jetStream) answerf(p *publish, format string, args ...any) {
	js.answerTo(p.conn, p.reply, fmt.Appendf(nil, format, args...))
}

func (js *jetStream) answerTo(c *natsConn, reply string, body []byte) {
	if c == nil || reply == "" || js.loses > 0 && js.w.chance(js.loses) {
		js.w.detailf("stream: answer to %s is lost: %s", reply, body)
		return
	}
	js.w.detailf("stream: answers to %s: %s", reply, body)
	c.take(reply, "", body)
}

// remove deletes a message.
func (js *jetStream) remove(seq uint64) {
	if js.at(seq) != nil {
		js.messages[seq-1] = nil
		js.deleted++
	}
}

// firstSeq is the sequence of the first message that is there, or of the next one.
func (js *jetStream) firstSeq() uint64 {
	for i, m := range js.messages {
		if m != nil {
			return uint64(i) + 1
		}
	}
	return js.lastSeq() + 1
}
