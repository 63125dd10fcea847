package cli_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// newLetterStand is a stand with the tables and four letters of this outbox: 1 is open and
// 2 waits behind it, 3 is open with a payload that is no text, 4 is resolved.
func newLetterStand(t *testing.T) stand {
	t.Helper()
	s := newStand(t)
	s.env.run("migrate", "up").want(t, 0)
	testenv.Exec(t, s.database, `insert into outbox_dead_letter (source, position, event_id, aggregate_type, aggregate_id, subject, headers, payload, reason_code, reason, attempts, held_behind,
			first_failed_at, dead_at, resolved_at, resolution) values
		('7/`+s.slot+`', '1:0/1:0', '`+uuid(1)+`', 'order', '7/b', 'outbox.order.placed', '{"k": "v"}', '{"a": "ä"}', 'message-too-large', 'too large', 1, null, '2026-02-01 03:04:05+00', '2026-02-01 03:04:06+00', null, null),
		('7/`+s.slot+`', '1:0/1:1', '`+uuid(2)+`', 'order', '7/b', null, null, null, 'held', 'waits', 0, 1, now(), now(), null, null),
		('8/`+s.slot+`', '1:0/1:0', 'a,b', 'order', '8', null, null, '\x00ff', 'refused', 'no', 2, null, now(), now(), null, null),
		('7/`+s.slot+`', '1:0/1:3', '`+uuid(4)+`', 'order', '9', null, null, '', 'refused', 'no', 1, null, now(), now(), now(), 'retried'),
		('7/another', '1:0/1:4', '`+uuid(1)+`', 'order', '7/b', null, null, null, 'refused', 'no', 1, null, now(), now(), null, null)`)
	return s
}

// letters runs the list and returns the ids.
func (s stand) letters(t *testing.T, args ...string) string {
	t.Helper()
	var list []map[string]any
	out := s.env.run(append([]string{"dead-letter", "list", "--json"}, args...)...).want(t, 0).stdout
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var ids []string
	for _, letter := range list {
		ids = append(ids, letter["event_id"].(string))
	}
	return strings.Join(ids, " ")
}

func TestDeadLetterListShowsTheColumnsWithoutThePayload(t *testing.T) {
	s := newLetterStand(t)
	var list []map[string]any
	out := s.env.run("dead-letter", "list", "--json").want(t, 0).stdout
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	want := "aggregate_id aggregate_type attempts dead_at event_id first_failed_at headers held_behind id position reason reason_code resolution resolved_at source subject"
	if got := strings.Join(slices.Sorted(maps.Keys(list[0])), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	first := list[0]
	if first["id"] != 1.0 || first["dead_at"] != "2026-02-01T03:04:06Z" || first["attempts"] != 1.0 || first["held_behind"] != nil || at(t, first, "headers", "k") != "v" || list[1]["held_behind"] != 1.0 {
		t.Errorf("got %v, %v", first, list[1])
	}
	s.env.run("dead-letter", "list").want(t, 0).says(t)
	if text := s.env.run("dead-letter", "list").want(t, 0).stdout; !strings.Contains(text, uuid(1)+"  order/7/b") || !strings.Contains(text, "held behind 1") || strings.Contains(text, "another") {
		t.Errorf("got %s", text)
	}
}

func TestDeadLetterListChoosesOpenOnesOrWhatTheFlagsSay(t *testing.T) {
	s := newLetterStand(t)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, uuid(1) + " " + uuid(2) + " a,b"},
		{[]string{"--all"}, uuid(1) + " " + uuid(2) + " a,b " + uuid(4)},
		{[]string{"--event-id", uuid(2), "--event-id", uuid(4)}, uuid(2) + " " + uuid(4)},
		{[]string{"--event-id", "a,b"}, "a,b"},
		{[]string{"--aggregate", "order/7/b"}, uuid(1) + " " + uuid(2)},
		{[]string{"--reason", "held"}, uuid(2)},
		{[]string{"--reason", "refused", "--event-id", uuid(4)}, uuid(4)},
		{[]string{"--source", "another"}, uuid(1)},
		{[]string{"--reason", "not-utf8"}, ""},
	} {
		if got := s.letters(t, tc.args...); got != tc.want {
			t.Errorf("%q: got %q, want %q", tc.args, got, tc.want)
		}
	}
	testenv.Exec(t, s.database, "delete from outbox_dead_letter")
	if got := s.env.run("dead-letter", "list").want(t, 0).stdout; got != "no dead letters\n" {
		t.Errorf("got %q", got)
	}
}

func TestDeadLetterShowPrintsThePayloadAsItIs(t *testing.T) {
	s := newLetterStand(t)
	document := s.env.run("dead-letter", "show", "--event-id", uuid(1), "--json").want(t, 0).document(t)
	if document["payload"] != `{"a": "ä"}` || document["reason_code"] != "message-too-large" {
		t.Errorf("got %v", document)
	}
	if document := s.env.run("dead-letter", "show", "--event-id", "a,b", "--json").want(t, 0).document(t); document["payload_base64"] != "AP8=" || document["payload"] != nil {
		t.Errorf("got %v", document)
	}
	if lines := strings.Count(s.env.run("dead-letter", "show", "--all", "--json").want(t, 0).stdout, "\n"); lines != 4 {
		t.Errorf("%d lines, want one a letter", lines)
	}
	if text := s.env.run("dead-letter", "show", "--event-id", uuid(1)).want(t, 0).stdout; !strings.Contains(text, `{"a": "ä"}`) || !strings.Contains(text, "message-too-large: too large") {
		t.Errorf("got %s", text)
	}
	s.env.run("dead-letter", "show", "--event-id", uuid(9)).want(t, 3).says(t, "no such dead letter", "hint: outbox-cdc dead-letter list")
	s.env.run("dead-letter", "show").want(t, 2).says(t, "--event-id, --aggregate, --reason or --all")
}

func TestAReasonCodeThatThereIsNotIsRefusedBeforeAnyConnection(t *testing.T) {
	for _, verb := range []string{"list", "show", "retry", "discard"} {
		env{}.run("dead-letter", verb, "--reason", "nosuchcode", "--database-url", "postgres://127.0.0.1:1/x").want(t, 2).
			says(t, `--reason "nosuchcode" must be one of held, `, "message-too-large")
	}
}

func TestDeadLetterDiscardKeepsTheLetterWithTheReason(t *testing.T) {
	s := newLetterStand(t)
	s.env.run("dead-letter", "discard", "--event-id", "a,b").want(t, 2).says(t, "--reason-text")
	s.env.run("dead-letter", "discard", "--reason-text", "x").want(t, 2).says(t, "--all")
	if got := s.env.run("dead-letter", "discard", "--event-id", "a,b", "--reason-text", "of a test", "--json").want(t, 0).document(t); got["selected"] != 1.0 || got["discarded"] != 1.0 {
		t.Errorf("got %v", got)
	}
	if got := s.count(t, "select resolution || (resolved_at is not null) || encode(payload, 'hex') from outbox_dead_letter where event_id = 'a,b'"); got != "discarded: of a testtrue00ff" {
		t.Errorf("got %q", got)
	}
	// What is resolved stays as it is, and what is not there was not discarded.
	for _, named := range [][]string{{"--reason", "refused"}, {"--event-id", uuid(9)}} {
		s.env.run(append([]string{"dead-letter", "discard", "--reason-text", "again"}, named...)...).want(t, 3).says(t, "no such open dead letter", "hint: outbox-cdc dead-letter list")
	}
	if got := s.letters(t); got != uuid(1)+" "+uuid(2) {
		t.Errorf("open are %s", got)
	}
	// With all that wait for it nothing is left to be published.
	if got := s.env.run("dead-letter", "discard", "--all", "--reason-text", "all").want(t, 0).stdout; got != "2 of 2 dead letters discarded\n" {
		t.Errorf("got %q", got)
	}
	if got := s.count(t, "select count(*) from outbox_dead_letter where resolved_at is null"); got != "1" {
		t.Errorf("%s are open, want that of another source", got)
	}
}
