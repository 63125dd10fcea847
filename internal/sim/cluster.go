package sim

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// depose takes the stream's leader away; another one leads after a while. What the old
// one has not looked at yet is lost without a word; of what it has proposed, a first
// part is stored by the new one.
func (js *jetStream) depose(leaderless time.Duration) {
	if !js.clustered() || js.leader < 0 {
		return
	}
	js.w.tracef("stream: leader %d is deposed, next one in %s", js.leader, leaderless)
	js.leader = -1
	js.queue, js.stalledUntil = nil, time.Time{}
	js.replication.snap()
	kept := js.replication.items
	js.replication.items = nil
	js.replication = &lane{w: js.w}
	next := js.w.rng.IntN(len(js.members))
	js.w.after(leaderless, func() { js.elect(next, kept) })
}

// elect makes a member the leader. What a majority had of the former one is applied
// before it leads.
func (js *jetStream) elect(next int, kept []laneItem) {
	js.leader = next
	for _, it := range kept {
		it.arrive()
	}
	js.proposed = js.lastSeq()
	js.w.tracef("stream: member %d leads, last sequence %d, %d proposals applied late", next, js.lastSeq(), len(kept))
	js.resetBatches(js.members[next])
}

// crash ends the server (of three: one member) and starts it again. Nothing that was
// acknowledged is lost; batches are, and so is what was not looked at yet.
func (js *jetStream) crash(downFor time.Duration) {
	if js.clustered() {
		victim := js.w.rng.IntN(len(js.members))
		js.w.tracef("stream: member %d crashes", victim)
		js.members[victim] = js.recovered()
		if victim == js.leader {
			js.depose(js.w.between(10*time.Millisecond, 2*time.Second))
		}
		for _, c := range js.conns() {
			if js.w.chance(2) { // it was connected to that one
				c.snap()
			}
		}
		return
	}
	js.w.tracef("stream: the server crashes for %s", downFor)
	js.down = true
	js.queue, js.stalledUntil = nil, time.Time{}
	js.members[0] = js.recovered()
	for _, c := range js.conns() {
		c.snap()
	}
	js.w.after(downFor, func() { js.down = false })
}

// recovered is a member as it starts: the ids of stored messages within the window.
func (js *jetStream) recovered() *member {
	m := newMember()
	for _, s := range js.messages {
		if s != nil && s.id != "" && time.Since(s.at) < js.cfg.window {
			m.ids[s.id] = knownID{s.seq, s.at.Add(js.cfg.window)}
		}
	}
	return m
}

// conns are the connections in the order in which they were made.
func (js *jetStream) conns() []*natsConn {
	return slices.SortedFunc(maps.Keys(js.conn), func(a, b *natsConn) int { return a.number - b.number })
}

// stall lets nothing that comes in be looked at for a while; requests are answered.
func (js *jetStream) stall(d time.Duration) {
	js.w.tracef("stream: takes nothing in for %s", d)
	js.stalledUntil = time.Now().Add(d)
}

// writeForeign stores a message of somebody else.
func (js *jetStream) writeForeign(subject string) {
	js.arrive(&publish{subject: subject, size: 10})
}
