package forwarder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/metrics"
)

// letterServer is a Server and the Letters that it opens: positions with the ordinals of
// known have a letter.
type letterServer struct {
	Server
	known  []uint64
	gone   bool // all letters are resolved
	fails  error
	opened int
	closed int
}

func (s *letterServer) Letters(context.Context) (Letters, error) {
	s.opened++
	return s, nil
}

func (s *letterServer) Close() { s.closed++ }

func (s *letterServer) KnownAfter(_ context.Context, _ string, from decode.Position) ([]deadletter.Known, pglogrepl.LSN, error) {
	var known []deadletter.Known
	for _, n := range s.known {
		if p := eventAt(n, "").Position; p.Compare(from) >= 0 && len(known) < deadletter.KnownMax {
			known = append(known, deadletter.Known{Position: p})
		}
	}
	return known, 0x900, s.fails
}

func (s *letterServer) Heads(_ context.Context, _ string, each func(deadletter.Head)) error {
	if s.gone {
		return nil
	}
	for id, n := range []uint64{10, 20} {
		each(deadletter.Head{ID: int64(id + 1), Aggregate: deadletter.Aggregate{ID: "a"}, Source: "1/ob", Position: eventAt(n, "").Position})
	}
	each(deadletter.Head{ID: 3, Aggregate: deadletter.Aggregate{ID: "b"}, Source: "0/ob", Position: eventAt(99, "").Position}) // of the server before an upgrade
	return nil
}

func (s *letterServer) Count(context.Context, string) (deadletter.Counts, error) {
	return deadletter.Counts{}, nil
}

func (s *letterServer) Insert(context.Context, deadletter.Draft) (deadletter.Receipt, error) {
	return deadletter.Receipt{}, s.fails
}

func eventAt(ordinal uint64, aggregate string) *decode.Event {
	var v decode.Values
	if aggregate != "" {
		v.Fields[decode.FieldAggregateID] = []byte(aggregate)
	}
	return decode.NewEvent(decode.Position{Timeline: 1, CommitLSN: 0x100, Ordinal: ordinal}, time.Time{}, decode.TableName{}, v)
}

func newTestLetters(s *letterServer, policy OnPoison) *letters {
	l := newLetters(Config{Source: "ob", OnPoison: policy, Table: decode.TableName{Schema: "public", Name: "outbox"}}, slog.New(slog.DiscardHandler), s, func() float64 { return 0.5 })
	l.begin("1/ob", decode.Position{Timeline: 1, CommitLSN: 0x100})
	return l
}

func TestLettersOfAHugeTransactionAreReadInPortionsAndNoneIsMissed(t *testing.T) {
	for _, every := range []uint64{1, 2, 7} {
		s := &letterServer{}
		const last = 2*deadletter.KnownMax + 100
		for n := uint64(0); n < last; n += every {
			s.known = append(s.known, n)
		}
		l := newTestLetters(s, PoisonDeadLetter)
		for n := range uint64(last + 2) {
			e := eventAt(n, "a")
			if ok, err := l.ready(t.Context(), e, time.Now()); !ok || err != nil {
				t.Fatal(ok, err)
			}
			if len(l.known) > deadletter.KnownMax {
				t.Fatalf("%d letters are in memory", len(l.known))
			}
			if got, want := l.stands(e), n%every == 0 && n < last; got != want {
				t.Fatalf("event %d: a letter stands for it: %t, want %t", n, got, want)
			}
		}
	}
}

func TestAnEventWaitsBehindTheNewestLetterOfItsAggregateThatComesBeforeIt(t *testing.T) {
	server := &letterServer{}
	l := newTestLetters(server, PoisonHoldAggregate)
	if ok, err := l.ready(t.Context(), eventAt(0, "a"), time.Now()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	for _, tc := range []struct {
		ordinal   uint64
		aggregate string
		head      int64
	}{{5, "a", 0}, {15, "a", 1}, {25, "a", 2}, {5, "b", 3}, {25, "c", 0}, {25, "", 0}} {
		if got := l.headOf(eventAt(tc.ordinal, tc.aggregate)); got != tc.head {
			t.Errorf("event %d of aggregate %q waits behind %d, want %d", tc.ordinal, tc.aggregate, got, tc.head)
		}
	}
	server.gone = true
	l.reloadHeads()
	if ok, err := l.ready(t.Context(), eventAt(25, "a"), time.Now()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if got := l.headOf(eventAt(25, "a")); got != 0 {
		t.Errorf("behind %d, want none", got)
	}
}

func TestWhatOnlyAPersonCanMendIsToldAtOnceAndTheRestIsTriedAgain(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code string
		hint string
	}{
		{&pgconn.PgError{Code: "42501"}, "dead-letter-store", "GRANT SELECT, INSERT, UPDATE ON public.outbox_dead_letter"},
		{&pgconn.PgError{Code: "42P01"}, "dead-letter-store", "outbox-cdc migrate up"},
		{&pgconn.PgError{Code: "42703"}, "dead-letter-store", "outbox-cdc migrate up"},
		{&pgconn.PgError{Code: "XX001"}, "dead-letter-store", "log"},
		{&pgconn.PgError{Code: "57014"}, "", ""},
		{&pgconn.PgError{Code: "57P01"}, "", ""},
		{&pgconn.PgError{Code: "53100"}, "", ""},
		{context.DeadlineExceeded, "", ""},
		{deadletter.ErrNotHolder, "", ""},
		{errors.New("connection reset"), "", ""},
	} {
		s := &letterServer{fails: tc.err}
		l := newTestLetters(s, PoisonDeadLetter)
		now := time.Now()
		_, done, err := l.insert(t.Context(), deadletter.Draft{Event: eventAt(1, "a")}, now)
		var f *fault.Error
		if done || errors.As(err, &f) != (tc.code != "") {
			t.Errorf("%v: done %t, error %v", tc.err, done, err)
			continue
		}
		if f != nil {
			if f.Code != tc.code || !regexp.MustCompile(regexp.QuoteMeta(tc.hint)).MatchString(f.Hint) {
				t.Errorf("%v: code %s, hint %q", tc.err, f.Code, f.Hint)
			}
			continue
		}
		if s.opened != s.closed || l.reason == "" {
			t.Errorf("%v: %d opened, %d closed, reason %q", tc.err, s.opened, s.closed, l.reason)
		}
		if _, done, _ = l.insert(t.Context(), deadletter.Draft{Event: eventAt(1, "a")}, now); done || s.opened != 1 {
			t.Errorf("%v: tried again at once", tc.err)
		}
		s.fails = nil
		if _, done, err = l.insert(t.Context(), deadletter.Draft{Event: eventAt(1, "a")}, now.Add(letterBackoffMax)); !done || err != nil || l.reason != "" {
			t.Errorf("%v: not stored when it could be: %v, %q", tc.err, err, l.reason)
		}
	}
}

func TestWithHaltTheTableOfDeadLettersIsNotNeeded(t *testing.T) {
	for _, state := range []string{"42P01", "42703", "42501"} {
		l := newTestLetters(&letterServer{fails: &pgconn.PgError{Code: state}}, PoisonHalt)
		if ok, err := l.ready(t.Context(), eventAt(0, "a"), time.Now()); !ok || err != nil {
			t.Errorf("%s: ready %t, %v", state, ok, err)
		}
	}
}

// A reason that is counted as "other" tells nobody what to look for.
func TestEachReasonCodeHasASeriesOfItsOwn(t *testing.T) {
	content, err := os.ReadFile("../../sink/poison.go")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{deadletter.ReasonHeld}
	for _, code := range regexp.MustCompile(`(?m)^\tPoison\w+ += "([a-z0-9-]+)"`).FindAllStringSubmatch(string(content), -1) {
		want = append(want, code[1])
	}
	got := metrics.DeadLetterReasons()
	slices.Sort(got)
	slices.Sort(want)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("metrics know %q, the codes are %q", got, want)
	}
}
