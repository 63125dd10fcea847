package forwarder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/request"
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

func TestAPublisherWithoutASessionEndsATurn(t *testing.T) {
	p := &publisher{}
	turn := &turn{answer: make(chan turnAnswer, 1)}
	p.beginTurn(turn, time.Unix(1000, 0))
	p.takeTurn(p.ableToTurn(context.Background(), false), time.Unix(1000, 0))
	if answer := <-turn.answer; !errors.Is(answer.err, errTurnLost) {
		t.Errorf("got %v", answer.err)
	}
}

func TestARequestTellsHowFarItsWALIsReadAndWhenItGotFurther(t *testing.T) {
	turns := make(chan *turn)
	var told []string
	j := &job{
		requests: &requests{turns: turns, shared: &shared{}, deps: Deps{
			Working: func(r request.Request) { told = append(told, fmt.Sprintf("%d selected", r.Progress.Selected)) },
			Waiting: func(_ request.Request, deliveredLSN, untilLSN pglogrepl.LSN) {
				told = append(told, fmt.Sprintf("%d of %d", deliveredLSN, untilLSN))
			},
		}},
		request: &request.Request{}, savedAt: time.Now().Add(time.Hour), horizonLSN: 30,
		turn: &turn{answer: make(chan turnAnswer, 1)},
	}
	page := []request.Row{{Event: eventAt(1, "a")}}
	for _, answer := range []turnAnswer{{deliveredLSN: 10}, {deliveredLSN: 20}, {deliveredLSN: 30}, {deliveredLSN: 40, outcomes: []outcome{{stored: true}}}} {
		go func() { (<-turns).answer <- answer }()
		if _, err := j.publish(t.Context(), page); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"10 of 30", "20 of 30", "1 selected"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

func TestWhatIsConfirmedHasNotToBeReadForARequest(t *testing.T) {
	p := &publisher{cfg: Config{RequestsOnly: true}}
	p.forgetPassed(500)
	if got := p.deliveredLSN(); got != 500 {
		t.Errorf("delivered up to %s", got)
	}
}
