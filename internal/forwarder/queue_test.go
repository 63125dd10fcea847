package forwarder

import (
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

func eventItem(size int) item {
	var v decode.Values
	v.Fields[decode.FieldPayload] = make([]byte, size)
	return item{kind: itemEvent, event: decode.NewEvent(decode.Position{}, time.Time{}, decode.TableName{}, v)}
}

func TestQueueHoldsNoMoreThanItsBoundsUntilEventsAreReleased(t *testing.T) {
	q := newQueue(3, 1<<30)
	q.reset(&session{})
	items := []item{eventItem(10), eventItem(10), eventItem(10), eventItem(10)}
	if n := q.push(items); n != 3 {
		t.Fatalf("%d items were taken, want 3", n)
	}
	q.take(nil) // the publisher has them: they count until they are acknowledged
	if n := q.push(items[3:]); n != 0 {
		t.Fatalf("%d items were taken before anything was released", n)
	}
	q.release(1, 1, int64(items[0].event.Size()))
	if n := q.push(items[3:]); n != 1 {
		t.Fatalf("%d items were taken after one was released", n)
	}
}

func TestQueueBoundsBytesButLetsOneEventInHoweverLarge(t *testing.T) {
	q := newQueue(100, 1000)
	q.reset(&session{})
	if n := q.push([]item{eventItem(100_000), eventItem(1)}); n != 1 {
		t.Fatalf("%d items were taken, want the large one alone", n)
	}
}

func TestQueueJoinsKeepalivesSoThatAnIdleServerFillsNothing(t *testing.T) {
	q := newQueue(1, 1)
	q.reset(&session{})
	for lsn := range pglogrepl.LSN(1000) {
		q.push([]item{{kind: itemKeepalive, lsn: lsn}})
	}
	got := q.take(nil)
	if len(got) != 2 || got[1].lsn != 999 {
		t.Errorf("%d items, the last at %s", len(got), got[len(got)-1].lsn)
	}
}

func TestWhatAnOldSessionConfirmsDoesNotReachANewServer(t *testing.T) {
	q := newQueue(10, 1<<20)
	old := &session{confirmedLSN: 900}
	q.reset(old)
	q.push([]item{eventItem(1)})
	q.confirm(old.generation, 950)
	fresh := &session{confirmedLSN: 500} // a promoted standby: its positions are lower
	q.reset(fresh)
	q.confirm(old.generation, 990)
	q.release(old.generation, 1, 1<<20)
	if got := q.confirmable(); got != 500 {
		t.Errorf("confirmable is %s, want 0/1F4", got)
	}
	if events, bytes := q.load(); events != 0 || bytes != 0 {
		t.Errorf("load is %d events, %d bytes", events, bytes)
	}
	if !q.stale(old.generation) || q.stale(fresh.generation) {
		t.Error("generations are not told apart")
	}
	if items := q.take(nil); len(items) != 1 || items[0].session != fresh {
		t.Errorf("%d items are left of the old session", len(items)-1)
	}
}
