package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// batchIdle is how long a batch lives without a message.
const batchIdle = 10 * time.Second

// The operations of a fast batch.
const (
	opStart = iota
	opAppend
	opCommit
	opCommitEnd
	opPing
)

// fastBatch is an open batch, as a server holds it; see fastBatch in nats-server.
type fastBatch struct {
	expires          time.Time // once it commits: never
	last             uint64    // highest sequence of the batch that was taken
	stored           uint64    // highest that is stored
	acked            uint64    // when a flow acknowledgement was last sent
	streamSeq        uint64
	pending          int // taken and not stored
	every, everyMost uint64
	reply            string
	conn             *natsConn
	commits          bool
}

// batchRef is what the reply subject of a message says of its batch.
type batchRef struct {
	id   string
	flow uint64
	seq  uint64
	op   int
}

func (r *batchRef) commits() bool { return r.op == opCommit || r.op == opCommitEnd }

// parseBatch reads <inbox>.<id>.<flow>.fail.<sequence>.<operation>.$FI.
func parseBatch(reply string) *batchRef {
	t := strings.Split(reply, ".")
	t = t[len(t)-6:]
	flow, err1 := strconv.ParseUint(t[1], 10, 64)
	seq, err2 := strconv.ParseUint(t[3], 10, 64)
	op, err3 := strconv.Atoi(t[4])
	if err1 != nil || err2 != nil || err3 != nil || t[2] != "fail" {
		panic("sim: reply subject " + reply)
	}
	return &batchRef{id: t[0], flow: flow, seq: seq, op: op}
}

func (js *jetStream) batch(m *member, id string) *fastBatch {
	b := m.batches[id]
	if b != nil && !b.commits && !time.Now().Before(b.expires) {
		delete(m.batches, id)
		return nil
	}
	return b
}

func newBatch(m *member, r *batchRef) *fastBatch {
	b := &fastBatch{everyMost: max(1, r.flow)}
	m.batches[r.id] = b
	b.init(m)
	return b
}

// init sets how often flow is acknowledged.
func (b *fastBatch) init(m *member) {
	b.every = min(500, b.everyMost)
	if len(m.batches) > 1 {
		b.every = 1
	}
}

// processBatch takes one message of a batch; see processJetStreamFastBatchMsg in nats-server.
func (js *jetStream) processBatch(p *publish) {
	r := parseBatch(p.reply)
	m := js.members[js.leader]
	switch {
	case js.cfg.maxMsgSize > 0 && p.size > js.cfg.maxMsgSize:
		js.refuse(p, errTooLarge)
		return
	case !js.cfg.batched:
		js.refuse(p, errNoBatches)
		return
	}
	b := js.batch(m, r.id)
	if b == nil {
		if r.seq != 1 || r.op == opPing {
			js.refuse(p, errNoBatch)
			return
		}
		b = newBatch(m, r)
	}
	b.conn = p.conn
	b.expires = time.Now().Add(batchIdle)
	if b.commits {
		return // nothing more is added, and its end is answered
	}
	b.last++
	if b.last != r.seq {
		js.answerf(p, `{"type":"gap","last_seq":%d,"seq":%d}`, b.last, r.seq)
		b.last--
		js.commitBatch(m, r.id, b, p)
		return
	}
	if r.commits() {
		if r.op == opCommitEnd {
			b.last--
			if b.pending == 0 {
				b.stored = b.last
			}
		}
		js.commitBatch(m, r.id, b, p)
		if r.op == opCommitEnd {
			return
		}
	} else if r.seq == 1 {
		js.answerf(p, `{"type":"ack","seq":0,"msgs":%d}`, b.every)
	}
	code, duplicate := js.check(p, true)
	if code == 0 && duplicate == 0 {
		b.pending++
		js.commit(p, r)
		return
	}
	js.refuseInBatch(m, b, p, r, code, duplicate)
}

// refuseInBatch ends a batch at a message that is not stored, or skips a duplicate. An
// id that is in process counts as a duplicate here.
func (js *jetStream) refuseInBatch(m *member, b *fastBatch, p *publish, r *batchRef, code int, duplicate uint64) {
	isDuplicate := duplicate > 0 || code == errInProcess
	if isDuplicate {
		if b.pending == 0 {
			b.stored = r.seq
			js.checkFlow(m, b, p.conn, p.reply)
		}
		if !r.commits() {
			return
		}
	}
	if b.last == 1 {
		delete(m.batches, r.id)
		if duplicate > 0 {
			js.answerf(p, `{"stream":%q,"seq":%d,"duplicate": true,"batch":%q,"count":%d}`, js.cfg.name, duplicate, r.id, r.seq)
		} else {
			js.refuse(p, code)
		}
		return
	}
	if !isDuplicate {
		js.answerf(p, `{"type":"err","seq":%d,"error":{"code":400,"err_code":%d,"description":"simulated"}}`, r.seq, code)
		b.last--
		if b.pending == 0 {
			b.stored = b.last
		}
	}
	js.commitBatch(m, r.id, b, p)
}

// commitBatch ends a batch; the answer comes now, or once all of it is stored.
func (js *jetStream) commitBatch(m *member, id string, b *fastBatch, p *publish) {
	b.commits = true
	if b.last == b.stored {
		delete(m.batches, id)
		js.endBatch(p.conn, p.reply, id, b.streamSeq, b.last)
	}
}

func (js *jetStream) endBatch(c *natsConn, reply, id string, streamSeq, count uint64) {
	js.answerTo(c, reply, fmt.Appendf(nil, `{"stream":%q,"seq":%d,"batch":%q,"count":%d}`, js.cfg.name, streamSeq, id, count))
}

// registerBatch notes on each member that a message of a batch is stored; see
// fastBatchRegisterSequences in nats-server.
func (js *jetStream) registerBatch(p *publish, r *batchRef, streamSeq uint64) {
	for i, m := range js.members {
		b := js.batch(m, r.id)
		if i != js.leader || b == nil {
			js.followBatch(m, b, p, r, streamSeq)
			continue
		}
		b.reply, b.conn, b.streamSeq = p.reply, p.conn, streamSeq
		if b.pending > 0 {
			b.pending--
		}
		b.stored = r.seq
		if b.pending == 0 {
			b.stored = b.last
		}
		if b.last == b.stored && b.commits {
			delete(m.batches, r.id)
			js.endBatch(p.conn, p.reply, r.id, streamSeq, b.last)
			continue
		}
		js.checkFlow(m, b, p.conn, p.reply)
	}
}

// followBatch notes on a member that does not lead, or does not know the batch, how far it is.
func (js *jetStream) followBatch(m *member, b *fastBatch, p *publish, r *batchRef, streamSeq uint64) {
	if r.commits() {
		delete(m.batches, r.id)
		return
	}
	if b == nil {
		b = newBatch(m, r)
	}
	b.expires = time.Now().Add(batchIdle)
	b.streamSeq, b.stored, b.last = streamSeq, r.seq, r.seq
	b.reply, b.conn = p.reply, p.conn
}

// checkFlow acknowledges flow when that is due.
func (js *jetStream) checkFlow(m *member, b *fastBatch, c *natsConn, reply string) {
	if b.stored < b.acked+b.every {
		return
	}
	b.acked += (b.stored - b.acked) / b.every * b.every
	most := min(max(1, uint64(500/max(1, len(m.batches)))), b.everyMost)
	switch {
	case b.every < most:
		b.every = min(2*b.every, most)
	case b.every > most:
		b.every = max(b.every/2, most)
	}
	js.sendFlow(b, c, reply, b.acked)
}

func (js *jetStream) sendFlow(b *fastBatch, c *natsConn, reply string, seq uint64) {
	js.answerTo(c, reply, fmt.Appendf(nil, `{"type":"ack","seq":%d,"msgs":%d}`, seq, b.every))
}

// resetBatches is what a new leader does with the batches that it has followed.
func (js *jetStream) resetBatches(m *member) {
	for _, id := range sortedKeys(m.batches) {
		b := js.batch(m, id)
		if b == nil {
			continue
		}
		b.init(m)
		b.expires = time.Now().Add(batchIdle)
		b.commits, b.pending = false, 0
		b.acked, b.last = b.stored, b.stored
		js.sendFlow(b, b.conn, b.reply, b.acked)
	}
}
