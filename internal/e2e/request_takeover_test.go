package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// waitRequest waits until the newest request is in a state, with at least so many events
// stored as its progress says, and returns that number.
func (o *outbox) waitRequest(state string, stored int) int {
	o.tb.Helper()
	var got int
	testenv.Eventually(o.tb, 2*testenv.Deadline, func() error {
		row := testenv.Query(o.tb, o.databaseURL, `SELECT state || ' ' || coalesce(progress->>'stored', '0') FROM outbox_request ORDER BY id DESC LIMIT 1`)
		if len(row) == 0 {
			return fmt.Errorf("there is no request")
		}
		var is string
		if _, err := fmt.Sscan(row[0], &is, &got); err != nil {
			return err
		}
		if is != state || got < stored {
			return fmt.Errorf("the request is %s, want %s with %d stored", row[0], state, stored)
		}
		return nil
	})
	return got
}

// expectOnceEach checks that what was published again is the given events, each once and
// in their order.
func (o *outbox) expectOnceEach(want []string) {
	o.tb.Helper()
	o.expectAgain(want)
	if got := firsts(o.stored()); len(got) > 0 {
		expectPositionsGrow(o.tb, got)
	}
}

func TestReplayUnderLoadKeepsTheOrderOfFirstDeliveriesAndLosesNothing(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	_, side := o.startHTTPStreaming()
	o.insertTx("old", 3000)
	o.waitStored(3000)
	o.waitConfirmed()
	old := o.rows()
	l := o.startLoad(2, 40*time.Millisecond)
	l.waitWritten(500)
	replay := o.run("replay", "--aggregate", "order/old", "--fresh-ids", "--json")
	replay.WaitExit(0, 4*testenv.Deadline)
	l.waitWritten(100)
	l.end()
	o.waitStored(len(o.rows()) + len(old))
	o.waitConfirmed()
	messages := o.stored()
	o.expectOnceEach(old)
	o.expectCommitOrderOf(firsts(messages))
	// They took turns: new events neither waited for the end of the request, nor it for theirs.
	turns := 0
	for i := 1; i < len(messages); i++ {
		if (messages[i].Header.Get("Outbox-Republished") == "") != (messages[i-1].Header.Get("Outbox-Republished") == "") {
			turns++
		}
	}
	if turns < 4 {
		t.Errorf("new events and those of the request took %d turns", turns)
	}
	// The chain of expected sequences went on behind each turn: nothing was refused.
	if n, _ := side.metric("outbox_cdc_publish_retries_total"); n != 0 {
		t.Errorf("%v messages were sent again", n)
	}
	if n, _ := side.metric(`outbox_cdc_events_skipped_total{reason="duplicate"}`); n != 0 {
		t.Errorf("%v first deliveries were swallowed", n)
	}
	t.Logf("%d turns, %d messages", turns, len(messages))
}

func TestASuccessorFinishesAReplayAndPublishesNothingTwice(t *testing.T) {
	t.Parallel()
	for _, fresh := range []bool{true, false} {
		t.Run(fmt.Sprintf("fresh ids %t", fresh), func(t *testing.T) {
			o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
			holder := o.startStreaming("--rate", "1000")
			const events = 1500
			o.insertTx("a", events)
			o.waitStored(events)
			o.waitConfirmed()
			beyondTheWindow()
			standby := o.start("--rate", "1000")
			standby.WaitLine(standbyLine(o.waitHolder("")), testenv.Deadline)
			args := []string{"replay", "--aggregate", "order/a", "--json"}
			if fresh {
				args = append(args, "--fresh-ids")
			}
			replay := o.run(args...)
			for _, at := range []int{200, 700} { // in the middle of a page that was not saved
				o.waitRequest("running", at)
				holder.Kill()
				beyondTheWindow() // by message ids nobody could tell
				standby.WaitLine(`"msg":"streaming"`, testenv.Deadline)
				holder, standby = standby, o.start("--rate", "1000")
			}
			replay.WaitExit(0, 2*testenv.Deadline)
			if want := fmt.Sprintf(`"stored": %d`, events); !strings.Contains(replay.Stdout(), want) {
				t.Errorf("%s, want %s", replay.Stdout(), want)
			}
			o.expectOnceEach(o.rows())
		})
	}
}

func TestAStandbyLeavesRequestsToTheHolderOfTheSlot(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	holder := o.startStreaming("--status-interval", fastStatus)
	o.insert("a", 5)
	o.waitStored(5)
	o.waitConfirmed()
	pid := o.waitHolder("")
	standby := o.start("--takeover-after", "off")
	standby.WaitLine(standbyLine(pid), testenv.Deadline)
	holder.Signal(syscall.SIGSTOP)
	beyondTheWindow()
	replay := o.run("replay", "--aggregate", "order/a")
	replay.WaitLine("waits for the forwarder that holds slot", testenv.Deadline)
	if got := o.requests(); !slices.Equal(got, []string{"replay waiting - of -"}) {
		t.Errorf("requests: %q", got)
	}
	o.expectAgain(nil)
	holder.Signal(syscall.SIGCONT)
	replay.WaitExit(0, testenv.Deadline)
	if o.holder() != pid {
		t.Errorf("the slot went from walsender %s to %s", pid, o.holder())
	}
	o.expectOnceEach(o.rows())
}

func TestCtrlCCancelsAReplayAndTheForwarderGoesOn(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	forwarder := o.startStreaming("--rate", "300")
	const events = 900
	o.insertTx("a", events)
	o.waitStored(events)
	o.waitConfirmed()
	replay := o.run("replay", "--since", "1h", "--fresh-ids", "--json")
	o.waitRequest("running", 50) // progress is to be seen while it runs
	replay.Signal(syscall.SIGINT)
	replay.WaitExit(1, testenv.Deadline)
	stored := o.waitRequest("cancelled", 50)
	if stored >= events || !strings.Contains(replay.Stdout(), `"stored"`) {
		t.Errorf("%d of %d events were stored; it printed %s", stored, events, replay.Stdout())
	}
	forwarder.WaitLine(`"msg":"request ended"`, testenv.Deadline)
	o.insert("b", 5)
	o.waitConfirmed()
	again := again(o.stored())
	if len(again) >= events || !slices.Equal(eventIDs(again), o.rows()[:len(again)]) {
		t.Errorf("%d events were published again", len(again))
	}
	// The next request is worked on as if nothing had been.
	o.expectReport(0, requestReport{Selected: 5, Stored: 5}, "replay", "--aggregate", "order/b", "--fresh-ids")
}

// NATS is killed in the middle: what was on its way may be stored or not.
func TestAReplayOutlivesNATSAndPublishesNothingTwice(t *testing.T) {
	t.Parallel()
	server := testenv.NATSProcess(t)
	o := newOutbox(t, server.URL(), shortWindow)
	o.startStreaming()
	const events = 6000
	o.insertTx("a", events)
	o.waitStored(events)
	o.waitConfirmed()
	beyondTheWindow()
	replay := o.run("replay", "--aggregate", "order/a", "--json")
	for range 3 * soakFactor(t) {
		o.waitRequest("running", 0)
		o.waitStored(len(o.stored()) + 100)
		server.Kill()
		beyondTheWindow()
		server.Start()
		if len(replay.Stdout()) > 0 {
			break
		}
	}
	replay.WaitExit(0, 4*testenv.Deadline)
	o.expectOnceEach(o.rows())
}

// What a predecessor published cannot be looked for meanwhile.
func TestCtrlCCancelsARequestAlsoWhileASuccessorWaitsForNATS(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"replay", "retry"} {
		t.Run(kind, func(t *testing.T) {
			server := testenv.NATSProcess(t)
			o := newOutbox(t, server.URL(), shortWindow)
			args := []string{"--rate", "200", "--on-poison", "hold-aggregate", "--status-interval", fastStatus}
			holder := o.startStreaming(args...)
			const events = 400
			command := []string{"replay", "--aggregate", "order/a", "--fresh-ids"}
			if kind == "retry" {
				bad := o.insertEvent("a", "1", "elsewhere."+o.stream)
				o.insertTx("a", events)
				o.waitConfirmed()
				o.coverElsewhere()
				command = []string{"dead-letter", "retry", "--event-id", bad}
			} else {
				o.insertTx("a", events)
				o.waitStored(events)
				o.waitConfirmed()
			}
			before := len(o.stored())
			asked := o.run(command...)
			o.waitStored(before + 50)
			server.Kill()
			holder.Kill()
			successor := o.start(args...)
			successor.WaitLine(`"msg":"request"`, testenv.Deadline)
			asked.Signal(syscall.SIGINT)
			asked.WaitExit(1, testenv.Deadline)
			successor.WaitLine(`"msg":"request ended".*cancelled`, testenv.Deadline)
			server.Start()
			o.insert("b", 5)
			o.waitConfirmed()
		})
	}
}

// The rows are there to be read before the forwarder has come to them.
func TestReplayPublishesNothingBeforeItsFirstDelivery(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	o.insert("a", 300)
	o.startStreaming("--rate", "100") // it has to catch up for three seconds
	newest := o.rows()[290:]
	args := []string{"replay", "--fresh-ids"}
	for _, id := range newest {
		args = append(args, "--event-id", id)
	}
	o.expectReport(0, requestReport{Selected: 10, Stored: 10}, args...)
	o.expectOnceEach(newest)
	seen := map[string]bool{}
	for _, m := range o.stored() {
		id := m.Header.Get("Outbox-Event-Id")
		if m.Header.Get("Outbox-Republished") != "" && !seen[id] {
			t.Fatalf("message %d is a second delivery of %s and comes before the first", m.Sequence, id)
		}
		seen[id] = true
	}
	o.expectEvents(firsts(o.stored()), o.rows())
}

// The successor could read the rows before it has come to them; they are held when it has.
func TestASuccessorOfAReplayRefusesWhatIsHeldByTheTimeItsTurnComes(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	args := []string{"--on-poison", "hold-aggregate", "--rate", "20"}
	holder := o.startStreaming(args...)
	const events = 8
	o.insertTx("a", events)
	o.waitStored(events)
	o.waitConfirmed()
	replay := o.run("replay", "--fresh-ids", "--json", "--aggregate", "order/a")
	o.waitStored(events + 1)
	holder.Kill()
	o.insertTx("b", 60) // for some seconds it does not come to what follows
	bad := o.insertEvent("a", "0", "elsewhere."+o.stream)
	held := []string{o.insertEvent("a", "1"), o.insertEvent("a", "2")}
	o.startStreaming(args...)
	replay.WaitExit(3, 2*testenv.Deadline)
	for _, want := range []string{fmt.Sprintf(`"selected": %d`, events+3), fmt.Sprintf(`"stored": %d`, events), `"refused": 3`} {
		if !strings.Contains(replay.Stdout(), want) {
			t.Errorf("%s, want %s", replay.Stdout(), want)
		}
	}
	o.waitConfirmed()
	o.expectOpen(bad+" subject-not-in-stream 1", held[0]+" held 0 "+bad, held[1]+" held 0 "+bad)
	o.expectOnceEach(o.rows()[:events])
}

func TestReplayGoesOnBesideSomebodyElsesMessages(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	holder := o.startStreaming("--rate", "500")
	const events = 1000
	o.insertTx("a", events)
	o.waitStored(events)
	o.waitConfirmed()
	w := o.startForeignWriter(4, time.Millisecond)
	standby := o.start()
	standby.WaitLine(standbyLine(o.waitHolder("")), testenv.Deadline)
	replay := o.run("replay", "--aggregate", "order/a", "--fresh-ids", "--json")
	o.waitRequest("running", 100)
	holder.Kill()
	beyondTheWindow()
	replay.WaitExit(0, 4*testenv.Deadline)
	o.insert("b", 5)
	o.waitConfirmed()
	w.end()
	rows := o.rows()
	o.expectOnceEach(rows[:events])
	o.expectEvents(firsts(o.stored()), rows)
	// What they wrote in between is waited for by nobody.
	for _, p := range []*testenv.Program{holder, standby} {
		for _, line := range p.Lines() {
			if strings.Contains(line, "requests of commands wait") {
				t.Errorf("%s", line)
			}
		}
	}
}

// New events have their turn between the slices of a request, so first deliveries stand
// between what it has published.
func TestASuccessorFinishesARequestBesideNewEventsAndPublishesNothingTwice(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL(), shortWindow)
	holder := o.startStreaming("--on-poison", "hold-aggregate", "--status-interval", fastStatus)
	bad := o.insertEvent("a", "1", "elsewhere."+o.stream)
	const held = 400
	o.insertTx("a", held)
	o.waitConfirmed()
	o.coverElsewhere()
	beyondTheWindow()
	l := o.startLoad(2, 10*time.Millisecond)
	l.waitWritten(50)
	retry := o.run("dead-letter", "retry", "--event-id", bad, "--json")
	testenv.Eventually(t, 2*testenv.Deadline, func() error {
		if n := len(again(o.stored())); n < 150 {
			return fmt.Errorf("%d published again", n)
		}
		return nil
	})
	holder.Kill()
	beyondTheWindow()
	o.startStreaming("--on-poison", "hold-aggregate")
	retry.WaitExit(0, 4*testenv.Deadline)
	l.end()
	copies := map[string]int{}
	for _, m := range again(o.stored()) {
		if copies[m.Header.Get("Outbox-Event-Id")]++; copies[m.Header.Get("Outbox-Event-Id")] == 2 {
			t.Fatalf("event %s was published again twice, among %d", m.Header.Get("Outbox-Event-Id"), len(copies))
		}
	}
	if len(copies) != held+1 {
		t.Errorf("%d events were published again, want %d: %s", len(copies), held+1, retry.Stdout())
	}
}
