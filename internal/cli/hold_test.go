package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/outbox-cdc/outbox-cdc/internal/request"
)

// newTestHold returns a hold, what it says, and the context that it ends.
func newTestHold(t *testing.T) (*hold, *bytes.Buffer, context.Context) {
	t.Helper()
	var said bytes.Buffer
	ctx, leave := context.WithCancel(t.Context())
	e := &errand{invocation: &invocation{stderr: &said}, id: 3}
	h := e.newHold(leave)
	t.Cleanup(h.end)
	return h, &said, ctx
}

func TestASlotIsNotLeftBeforeTheRequestGotOn(t *testing.T) {
	for _, tc := range []struct{ reads, stays time.Duration }{
		{time.Second, slotHoldMax}, {slotHoldMax, slotHoldMax}, {time.Hour, time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, _, ctx := newTestHold(t)
			left := make(chan time.Duration, 1)
			context.AfterFunc(ctx, func() { left <- time.Since(h.began) })
			for range int(tc.reads / time.Second) {
				<-time.After(time.Second)
				synctest.Wait()
				if ctx.Err() != nil {
					t.Fatalf("the slot is left after %s, before anything was published", time.Since(h.began))
				}
				h.waiting(request.Request{}, 1, 2)
			}
			h.working(request.Request{})
			<-time.After(tc.stays / 2)
			h.working(request.Request{}) // moves nothing
			if got, want := <-left, tc.reads+tc.stays; got != want {
				t.Errorf("after %s of reading the slot is left at %s, want %s", tc.reads, got, want)
			}
		})
	}
}

func TestACommandThatReadsWALSaysSoOnceAndThenHowFarItGot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, said, _ := newTestHold(t)
		const until = pglogrepl.LSN(64 << 20)
		told := func(seconds int, lsn pglogrepl.LSN) string {
			t.Helper()
			said.Reset()
			for range 4 * seconds {
				<-time.After(time.Second / 4)
				h.waiting(request.Request{}, lsn, until)
			}
			if n := strings.Count(said.String(), "\n"); n > 1 {
				t.Errorf("it says %d lines in %d s: %s", n, seconds, said)
			}
			return said.String()
		}
		if got := told(4, 1<<20); got != "" {
			t.Errorf("it says at once %q", got)
		}
		if got := told(60, 1<<20); !strings.Contains(got, "request 3 waits until the WAL") || !strings.Contains(got, "63 MiB to go; Ctrl-C") {
			t.Errorf("it says %q", got)
		}
		if got := told(60, 32<<20); got != "request 3 waits: 32 MiB of WAL to go\n" {
			t.Errorf("when it got further it says %q", got)
		}
		h.working(request.Request{})
		if got := told(60, 33<<20); got != "" {
			t.Errorf("while it publishes it says %q", got)
		}
	})
}
