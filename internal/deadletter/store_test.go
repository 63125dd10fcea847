package deadletter_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
	"github.com/outbox-cdc/outbox-cdc/migrations"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const (
	source = "7000000000000000001/orders"
	table  = "public.outbox_dead_letter"
)

// stand is a database with the table, a store of it, and a slot that a process holds.
type stand struct {
	t     *testing.T
	url   string
	store *deadletter.Store
	slot  string
	pid   uint32
}

func newStand(t *testing.T, databaseOptions ...string) *stand {
	t.Helper()
	url := testenv.Postgres(t).NewDatabase(t, databaseOptions...)
	steps, err := migrations.Steps()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		testenv.Exec(t, url, step.Up(migrations.Target{Schema: "public", Table: "outbox"}))
	}
	s := &stand{t: t, url: url, store: deadletter.NewStore(openAdmin(t, url), "public"), slot: testenv.UniqueName("letters")}
	testenv.Exec(t, url, "create publication "+s.slot, "select pg_create_logical_replication_slot('"+s.slot+"', 'pgoutput')")
	ctx := testenv.Context(t, testenv.Deadline)
	conn, err := replication.Connect(ctx, url, "test")
	if err != nil {
		t.Fatal(err)
	}
	stream, err := conn.Start(ctx, replication.StartOptions{Slot: s.slot, Publication: s.slot})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stream.Close)
	s.pid = stream.PID()
	return s
}

func openAdmin(t *testing.T, url string) *replication.Admin {
	t.Helper()
	admin, err := replication.OpenAdmin(testenv.Context(t, testenv.Deadline), url, "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	return admin
}

func (s *stand) value(sql string) string {
	s.t.Helper()
	return strings.Join(testenv.Query(s.t, s.url, sql), "\n")
}

// draft is the n-th event of an aggregate.
func draft(n uint64, aggregateID string) deadletter.Draft {
	var v decode.Values
	v.Fields[decode.FieldEventID] = fmt.Appendf(nil, "e-%d", n)
	v.Fields[decode.FieldAggregateType] = []byte("order")
	v.Fields[decode.FieldAggregateID] = []byte(aggregateID)
	v.Fields[decode.FieldPayload], v.Kinds[decode.FieldPayload] = []byte(`{"a" : "\u0000"}`), decode.KindJSON
	v.Fields[decode.FieldHeaders] = []byte(`{"k": "v"}`)
	return deadletter.Draft{
		Source: source, Event: decode.NewEvent(decode.Position{Timeline: 1, CommitLSN: 0x100, Ordinal: n}, time.Now(), decode.TableName{Schema: "public", Name: "outbox"}, v),
		Subject: "outbox.order.placed", ReasonCode: "message-too-large", Reason: "too large", Attempts: 1, FirstFailedAt: time.Now(),
	}
}

// held is a draft of the slot's holder.
func (s *stand) held(d deadletter.Draft) deadletter.Draft {
	d.Slot, d.WalsenderPID = s.slot, s.pid
	return d
}

func (s *stand) insert(d deadletter.Draft) deadletter.Receipt {
	s.t.Helper()
	r, err := s.store.Insert(testenv.Context(s.t, testenv.Deadline), s.held(d))
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func TestALetterIsKeptWithTheVeryBytesOfItsPayloadAndItsWholeEvent(t *testing.T) {
	s := newStand(t)
	d := draft(1, "7")
	r := s.insert(d)
	if !r.New || r.StoredLSN == 0 {
		t.Errorf("receipt %+v", r)
	}
	got := s.value(`select concat_ws('|', source, position, event_id, aggregate_type, aggregate_id, subject, headers, convert_from(payload, 'UTF8'), reason_code, reason, attempts,
		held_behind is null, first_failed_at <= dead_at, resolved_at is null) from ` + table)
	want := source + `|1:0/100:1|e-1|order|7|outbox.order.placed|{"k": "v"}|{"a" : "\u0000"}|message-too-large|too large|1|t|t|t`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	e, err := s.store.Event(testenv.Context(t, testenv.Deadline), r.ID, nil)
	if err != nil || string(e.Value(decode.FieldPayload)) != `{"a" : "\u0000"}` || e.Position != d.Event.Position {
		t.Errorf("event %+v, %v", e, err)
	}
}

func TestOnePositionNeverHasTwoLetters(t *testing.T) {
	s := newStand(t)
	first := s.insert(draft(1, "7"))
	again := draft(1, "7")
	again.ReasonCode = "refused"
	second := s.insert(again)
	if second.New || second.ID != first.ID || second.StoredLSN <= first.StoredLSN {
		t.Errorf("first %+v, second %+v: the second must be the same letter, and durable by a commit of its own", first, second)
	}
	if got := s.value(`select count(*)::text || min(reason_code) from ` + table); got != "1message-too-large" {
		t.Errorf("got %s", got)
	}
}

func TestALetterIsDurableWhateverTheSettingOfTheRole(t *testing.T) {
	s := newStand(t)
	testenv.Exec(t, s.url, "alter database "+testenv.DatabaseName(t, s.url)+" set synchronous_commit = off",
		`create function note() returns trigger language plpgsql as $$ begin new.resolution := current_setting('synchronous_commit'); return new; end $$`,
		"create trigger note before insert on "+table+" for each row execute function note()")
	s.store = deadletter.NewStore(openAdmin(t, s.url), "public")
	s.insert(draft(1, "7"))
	if got := s.value("select resolution from " + table); got != "on" {
		t.Errorf("synchronous_commit was %s", got)
	}
}

func TestOnlyTheHolderOfTheSlotStoresLetters(t *testing.T) {
	s := newStand(t)
	d := s.held(draft(1, "7"))
	d.WalsenderPID++ // as it was before another took over
	if _, err := s.store.Insert(testenv.Context(t, testenv.Deadline), d); !errors.Is(err, deadletter.ErrNotHolder) {
		t.Errorf("got %v", err)
	}
	if got := s.value("select count(*) from " + table); got != "0" {
		t.Errorf("%s letters are stored", got)
	}
}

func TestAnEventIsHeldOnlyWhileItsHeadIsOpen(t *testing.T) {
	s := newStand(t)
	ctx := testenv.Context(t, testenv.Deadline)
	head := s.insert(draft(1, "7"))
	held := draft(2, "7")
	held.HeldBehind, held.ReasonCode = head.ID, deadletter.ReasonHeld
	s.insert(held)
	if d, err := s.store.Discard(ctx, head.ID, "no"); err != nil || d.Done || d.Held != 1 {
		t.Errorf("a letter with one behind it was discarded: %+v, %v", d, err)
	}
	heads := func() (list []deadletter.Head) {
		if err := s.store.Heads(ctx, "orders", func(h deadletter.Head) { list = append(list, h) }); err != nil {
			t.Fatal(err)
		}
		return list
	}
	if got := heads(); !slices.Equal(got, []deadletter.Head{{ID: head.ID, Aggregate: deadletter.Aggregate{Type: "order", ID: "7"}, Source: source, Position: draft(1, "7").Event.Position}}) {
		t.Errorf("heads %+v", got)
	}
	if n, err := s.store.Resolve(ctx, deadletter.ResolutionRetried, head.ID, head.ID+1); err != nil || n != 2 {
		t.Errorf("resolved %d, %v", n, err)
	}
	late := draft(3, "7")
	late.HeldBehind, late.ReasonCode = head.ID, deadletter.ReasonHeld
	if _, err := s.store.Insert(ctx, s.held(late)); !errors.Is(err, deadletter.ErrHeadResolved) {
		t.Errorf("an event was stored behind a letter that is resolved: %v", err)
	}
	if got := heads(); len(got) != 0 {
		t.Errorf("heads %+v", got)
	}
}

// Its answer was lost, and by the time it is tried again a retry has published the event.
func TestAHeldEventThatIsStoredKeepsItsLetterAlsoWhenItsHeadIsResolved(t *testing.T) {
	s := newStand(t)
	ctx := testenv.Context(t, testenv.Deadline)
	head := s.insert(draft(1, "7"))
	held := draft(2, "7")
	held.HeldBehind, held.ReasonCode = head.ID, deadletter.ReasonHeld
	first := s.insert(held)
	release := deadletter.Release{Head: head.ID, Resolution: deadletter.ResolutionRetried, Published: []int64{first.ID}}
	if more, err := s.store.Release(ctx, release, func(replication.Tx) error { return nil }); more || err != nil {
		t.Fatal(more, err)
	}
	second, err := s.store.Insert(ctx, s.held(held))
	if err != nil || second.New || second.ID != first.ID || second.StoredLSN <= first.StoredLSN {
		t.Errorf("first %+v, second %+v, %v: the event would be published once more", first, second, err)
	}
	if got := s.value("select count(*) from " + table + " where resolved_at is null"); got != "0" {
		t.Errorf("%s letters are open", got)
	}
}

func TestADiscardAndAnEventThatComesToWaitSeeEachOther(t *testing.T) {
	s := newStand(t)
	ctx := testenv.Context(t, testenv.Deadline)
	head := s.insert(draft(1, "7"))
	conn := testenv.Connect(t, s.url)
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "update "+table+" set resolved_at = now() where id = $1", head.ID); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		held := draft(2, "7")
		held.HeldBehind = head.ID
		_, err := s.store.Insert(ctx, s.held(held))
		done <- err
	}()
	testenv.Eventually(t, testenv.Deadline, func() error {
		if s.value("select count(*) from pg_locks where not granted") == "0" {
			return errors.New("the insert does not wait for the discard")
		}
		return nil
	})
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, deadletter.ErrHeadResolved) {
		t.Errorf("the event was stored behind a letter that is resolved: %v", err)
	}
}

func TestKnownLettersComeInTheOrderOfPositionsAndOfOneSourceOnly(t *testing.T) {
	s := newStand(t)
	for _, n := range []uint64{10, 9, 2, 11} {
		s.insert(draft(n, "7"))
	}
	other := draft(3, "7")
	other.Source = "7000000000000000002/orders"
	s.insert(other)
	testenv.Exec(t, s.url, `insert into `+table+` (source, position, reason_code, reason, attempts, first_failed_at, dead_at) values ('`+source+`', 'p', 'c', 'r', 1, now(), now())`)
	known, storedLSN, err := s.store.KnownAfter(testenv.Context(t, testenv.Deadline), source, decode.Position{Timeline: 1, CommitLSN: 0x100, Ordinal: 9})
	if err != nil || storedLSN == 0 {
		t.Fatal(storedLSN, err)
	}
	var got []string
	for _, k := range known {
		got = append(got, k.Position.String()+" "+k.EventID)
	}
	if want := []string{"1:0/100:9 e-9", "1:0/100:10 e-10", "1:0/100:11 e-11"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestLettersAreChosenByWhatTheCommandsOffer(t *testing.T) {
	s := newStand(t)
	ctx := testenv.Context(t, testenv.Deadline)
	first := s.insert(draft(1, "7"))
	s.insert(draft(2, "8"))
	third := draft(3, "7")
	third.HeldBehind, third.ReasonCode, third.Source = first.ID, deadletter.ReasonHeld, "7000000000000000002/orders" // after an upgrade
	s.insert(third)
	foreign := draft(4, "7")
	foreign.Source = "7000000000000000001/bills"
	s.insert(foreign)
	if d, err := s.store.Discard(ctx, first.ID+1, "never mind"); err != nil || !d.Done {
		t.Errorf("discard: %+v, %v", d, err)
	}
	for name, tc := range map[string]struct {
		filter deadletter.Filter
		want   string
	}{
		"name":      {deadletter.Filter{}, "e-1 e-2 e-3"},
		"open":      {deadletter.Filter{OpenOnly: true}, "e-1 e-3"},
		"event ids": {deadletter.Filter{EventIDs: []string{"e-2", "e-3"}}, "e-2 e-3"},
		"aggregate": {deadletter.Filter{Aggregate: deadletter.Aggregate{Type: "order", ID: "7"}}, "e-1 e-3"},
		"reason":    {deadletter.Filter{ReasonCode: "held"}, "e-3"},
		"behind":    {deadletter.Filter{HeldBehind: first.ID}, "e-3"},
		"portion":   {deadletter.Filter{AfterID: first.ID, Limit: 1}, "e-2"},
	} {
		tc.filter.SourceName = "orders"
		letters, err := s.store.List(ctx, tc.filter)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, l := range letters {
			ids = append(ids, *l.EventID)
		}
		if got := strings.Join(ids, " "); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
	if c, err := s.store.Count(ctx, "orders"); err != nil || c != (deadletter.Counts{Dead: 1, Held: 1}) {
		t.Errorf("counts %+v, %v", c, err)
	}
	if got := s.value("select resolution from " + table + " where resolved_at is not null"); got != "discarded: never mind" {
		t.Errorf("resolution %q", got)
	}
}

func TestTextThatTheDatabaseDoesNotHaveStopsNoLetter(t *testing.T) {
	s := newStand(t, "encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0")
	d := draft(1, "7")
	d.Reason, d.Subject = "subject \"日本\" is not covered", "outbox.日本\x00\xff"
	s.insert(d)
	if got := s.value("select concat_ws('|', reason, subject, headers is null, event is not null) from " + table); got != `subject \"\u65e5\u672c\" is not covered|outbox.\u65e5\u672c??|t|t` {
		t.Errorf("got %s", got)
	}
}
