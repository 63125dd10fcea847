package request_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/request"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

var ourOutbox = request.Outbox{Table: decode.TableName{Schema: "public", Name: "outbox"}, Columns: decode.DefaultMapping(), Publication: "p", SourceName: "a"}

// all reads all rows of a selection.
func all(t *testing.T, admin *replication.Admin, o request.Outbox, s request.Selection) []request.Row {
	t.Helper()
	ctx := testenv.Context(t, testenv.Deadline)
	rows := must(request.OpenRows(ctx, admin, o, s))(t)
	var out []request.Row
	var after *request.Place
	for {
		page := must(rows.Page(ctx, after))(t)
		if len(page) == 0 {
			if n := must(rows.Count(ctx))(t); int(n) != len(out) {
				t.Errorf("%d rows read, %d counted", len(out), n)
			}
			return out
		}
		out = append(out, page...)
		after = &page[len(page)-1].Place
	}
}

func ids(rows []request.Row) []string {
	var out []string
	for _, r := range rows {
		out = append(out, string(r.Event.Value(decode.FieldEventID)))
	}
	return out
}

func TestRowsComeInTheOrderOfTheTableInAnyNumberOfPages(t *testing.T) {
	url, admin := newDatabase(t)
	testenv.Exec(t, url, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, occurred_at)
		SELECT 'order', (i % 3)::text, 'placed', jsonb_build_object('n', i), '2026-01-01T00:00:00Z'::timestamptz + i * interval '1 s' FROM generate_series(1, 1500) i`)
	want := testenv.Query(t, url, "SELECT event_id::text FROM outbox ORDER BY id")
	if got := ids(all(t, admin, ourOutbox, request.Selection{})); !slices.Equal(got, want) {
		t.Errorf("got %d rows", len(got))
	}
	got := ids(all(t, admin, ourOutbox, request.Selection{Aggregate: &request.Aggregate{Type: "order", ID: "1"}}))
	if !slices.Equal(got, testenv.Query(t, url, "SELECT event_id::text FROM outbox WHERE aggregate_id = '1' ORDER BY id")) {
		t.Errorf("got %d rows of an aggregate", len(got))
	}
	since, until := time.Date(2026, 1, 1, 0, 1, 0, 0, time.UTC), time.Date(2026, 1, 1, 0, 2, 0, 0, time.UTC)
	if got := ids(all(t, admin, ourOutbox, request.Selection{Since: &since, Until: &until})); !slices.Equal(got, want[59:119]) {
		t.Errorf("got %d rows of a minute", len(got))
	}
	if got := ids(all(t, admin, ourOutbox, request.Selection{EventIDs: []string{want[7], strings.ToUpper(want[3])}})); !slices.Equal(got, []string{want[3], want[7]}) {
		t.Errorf("got %v", got)
	}
	rows := must(request.OpenRows(t.Context(), admin, ourOutbox, request.Selection{EventIDs: []string{want[7], strings.ToUpper(want[3]), "00000000-0000-0000-0000-000000000000"}}))(t)
	if missing := must(rows.Missing(t.Context()))(t); !slices.Equal(missing, []string{"00000000-0000-0000-0000-000000000000"}) {
		t.Errorf("missing: %v", missing)
	}
}

// The bytes must be those that the slot sends, or a replayed message differs from the first.
func TestValuesOfRowsAreThoseThatTheSlotSends(t *testing.T) {
	url := testenv.Postgres(t).NewDatabase(t)
	admin := openAdmin(t, url)
	testenv.Exec(t, url, `CREATE DOMAIN money_text AS bytea`,
		`CREATE TABLE outbox_dead_letter (source text, event_id text, resolved_at timestamptz)`,
		`CREATE TABLE "Out.Box" ("Id" char(8) PRIMARY KEY, kind boolean, version float8, body money_text, note text, spare int, at timestamp)`,
		`INSERT INTO "Out.Box" VALUES ('e1', true, 0.1::float8 + 0.2::float8, '\x00ff', '', NULL, '2026-01-02 03:04:05.6'), ('e2', NULL, 'NaN', NULL, NULL, 7, NULL), ('e3', false, 1, '', 'x', 1, NULL)`)
	columns := must(decode.ParseMapping(`event_id=Id,aggregate_type=kind,aggregate_version=version,payload=body,topic=note,occurred_at=at,spare=spare`))(t)
	o := request.Outbox{Table: decode.TableName{Schema: "public", Name: "Out.Box"}, Columns: columns}
	rows := all(t, admin, o, request.Selection{})
	var got []string
	for _, r := range rows {
		e := r.Event
		got = append(got, fmt.Sprintf("%q %q %q %q %v %q %q %s %s", e.Value(decode.FieldEventID), e.Value(decode.FieldAggregateType),
			e.Value(decode.FieldAggregateVersion), e.Value(decode.FieldPayload), e.Value(decode.FieldTopic) == nil, e.Extra(0), e.Value(decode.FieldOccurredAt),
			e.Kind(decode.FieldPayload), e.Kind(decode.FieldAggregateType)))
	}
	want := []string{
		`"e1      " "t" "0.30000000000000004" "\\x00ff" false "" "2026-01-02 03:04:05.6" bytea bool`,
		`"e2      " "" "NaN" "" true "7" "" bytea bool`,
		`"e3      " "f" "1" "\\x" false "1" "" bytea bool`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// Ordered by their time, those without one last, also where a page ends among them.
	rest := must(must(request.OpenRows(t.Context(), admin, o, request.Selection{}))(t).Page(t.Context(), &rows[1].Place))(t)
	if len(rest) != 1 || rest[0].Place.EventID != "e3      " {
		t.Errorf("got %+v", rest)
	}
}

func TestRowsThatThePublicationFiltersOutAreNoEvents(t *testing.T) {
	url, admin := newDatabase(t)
	if server := must(admin.Server(t.Context()))(t); server.Major() < 15 {
		t.Log("row filters need PostgreSQL 15")
		return
	}
	testenv.Exec(t, url, `ALTER TABLE outbox REPLICA IDENTITY FULL`, `CREATE PUBLICATION p FOR TABLE outbox WHERE (aggregate_type = 'a') WITH (publish = 'insert')`,
		`INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('a', '1', 'x'), ('b', '1', 'x'), ('a', '2', 'x')`)
	if rows := all(t, admin, ourOutbox, request.Selection{}); len(rows) != 2 {
		t.Errorf("got %d rows", len(rows))
	}
}

func TestRowsWithAnOpenDeadLetterAreMarked(t *testing.T) {
	url, admin := newDatabase(t)
	testenv.Exec(t, url, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type) SELECT 'a', i::text, 'x' FROM generate_series(1, 3) i`,
		`INSERT INTO outbox_dead_letter (source, position, event_id, reason_code, reason, attempts, first_failed_at, dead_at, resolved_at)
			SELECT CASE id WHEN 3 THEN '7/other' ELSE '7/a' END, id::text, event_id::text, 'held', '', 0, now(), now(), CASE id WHEN 2 THEN now() END FROM outbox`)
	page := all(t, admin, ourOutbox, request.Selection{})
	expect := func(want ...bool) {
		t.Helper()
		var dead []bool
		for _, r := range page {
			dead = append(dead, r.Dead)
		}
		if !slices.Equal(dead, want) {
			t.Errorf("got %v, want %v", dead, want)
		}
	}
	expect(true, false, false)
	testenv.Exec(t, url, `UPDATE outbox_dead_letter SET source = '7/a', resolved_at = CASE position WHEN '1' THEN now() END`)
	rows := must(request.OpenRows(t.Context(), admin, ourOutbox, request.Selection{}))(t)
	if err := rows.LookForLetters(t.Context(), page); err != nil {
		t.Fatal(err)
	}
	expect(false, true, true)
}

func TestWhatCannotBeSelectedIsSaidInWords(t *testing.T) {
	url, admin := newDatabase(t)
	testenv.Exec(t, url, `CREATE TABLE short (id uuid PRIMARY KEY, payload jsonb)`)
	short := ourOutbox
	short.Table.Name = "short"
	short.Columns = must(decode.ParseMapping("event_id=id"))(t)
	now := time.Now()
	for name, tc := range map[string]struct {
		outbox    request.Outbox
		selection request.Selection
		word      string
	}{
		"no such table":  {request.Outbox{Table: decode.TableName{Schema: "public", Name: "gone"}}, request.Selection{}, "public.gone does not exist"},
		"no time":        {short, request.Selection{Since: &now}, "--since: the table has no column for occurred_at"},
		"no aggregate":   {short, request.Selection{Aggregate: &request.Aggregate{}}, "--aggregate"},
		"no id of sorts": {ourOutbox, request.Selection{EventIDs: []string{"e1"}}, "invalid input syntax for type uuid"},
	} {
		rows, err := request.OpenRows(t.Context(), admin, tc.outbox, tc.selection)
		if err == nil {
			_, err = rows.Page(t.Context(), nil)
		}
		var f *fault.Error
		if !errors.As(err, &f) || f.Class != fault.Operator || f.Hint == "" || !strings.Contains(f.Error(), tc.word) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
