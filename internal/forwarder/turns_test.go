package forwarder

import (
	"log/slog"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// While NATS is away nothing of a turn gets on. Whoever asked has to learn all the same
// whether the request is still wanted, also when what a predecessor published is not found yet.
func TestATurnIsAnsweredInTimeAlsoBeforeTheStreamWasReadBack(t *testing.T) {
	start := time.Unix(1000, 0)
	for _, events := range [][]*decode.Event{nil, {eventAt(1, "a")}} {
		p := &publisher{sink: sink.NewPublisher(sink.PublisherConfig{Log: slog.New(slog.DiscardHandler)})}
		turn := &turn{readFrom: 7, events: events, answer: make(chan turnAnswer, 1)}
		p.beginTurn(turn, start)
		turn.stepped = start
		for now := start; now.Before(start.Add(turnTime)); now = now.Add(p.turnWait(now)) {
			if p.takeTurn(nil, now); p.turns.now == nil {
				t.Fatalf("the turn ended after %s", now.Sub(start))
			}
			if wait := p.turnWait(now); wait < turnTime/2 {
				t.Fatalf("the publisher wakes after %s although nothing is due", wait)
			}
		}
		p.takeTurn(nil, start.Add(turnTime))
		if p.turns.now != nil {
			t.Fatal("the turn is still worked on")
		}
		answer := <-turn.answer
		if answer.err != nil || answer.done || answer.sequence != 0 || turn.readFrom != 7 {
			t.Errorf("got %+v, and it reads on from %d", answer, turn.readFrom)
		}
	}
}
