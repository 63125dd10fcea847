package provision_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// outbox is a database with table, publication and slot under one unique name.
type outbox struct {
	url   string
	names provision.Names
}

const outboxTable = `create table public.outbox (event_id uuid not null default gen_random_uuid(),
	aggregate_type text, aggregate_id text, event_type text, payload jsonb)`

func newOutbox(t *testing.T) outbox {
	t.Helper()
	name := testenv.UniqueName("pre")
	o := outbox{
		url: testenv.Postgres(t).NewDatabase(t),
		names: provision.Names{
			Slot: name, Publication: name, Table: decode.TableName{Schema: "public", Name: "outbox"},
			Columns: decode.DefaultMapping(), Subject: "outbox.{aggregate_type}.{event_type}",
		},
	}
	testenv.Exec(t, o.url, outboxTable,
		"create publication "+name+" for table outbox with (publish = 'insert')",
		"select pg_create_logical_replication_slot('"+name+"', 'pgoutput')")
	return o
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

func preflight(t *testing.T, o outbox) provision.Findings {
	t.Helper()
	findings, err := provision.Preflight(testenv.Context(t, testenv.Deadline), openAdmin(t, o.url), o.names)
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

func TestAWholeOutboxPassesThePreflight(t *testing.T) {
	if findings := preflight(t, newOutbox(t)); len(findings) > 0 {
		t.Errorf("got %+v", findings)
	}
}

func TestEachThingThatOnlyAPersonCanMendIsNamedWithTheStatementThatMendsIt(t *testing.T) {
	o := newOutbox(t)
	slot := o.names.Slot
	for _, tc := range []struct {
		code    string
		spoil   []string // {slot} stands for the name of slot and publication
		names   func(*provision.Names)
		message string
		fix     string
		since   int // the first PostgreSQL that can be spoilt like this
	}{
		{code: "table-missing", spoil: []string{"drop table outbox"}, message: "table public.outbox does not exist", fix: "outbox-cdc setup"},
		{code: "table-missing", spoil: []string{`alter table outbox rename to "OutBox"`}, message: "public.outbox", fix: `public."OutBox"`},
		{code: "table-kind", spoil: []string{"drop table outbox", "create view outbox as select 1"}, message: "is a view"},
		{code: "table-unlogged", spoil: []string{"drop publication {slot}", "alter table outbox set unlogged"}, fix: "ALTER TABLE public.outbox SET LOGGED"},
		{code: "column-missing", spoil: []string{"alter table outbox rename event_id to id"}, message: "no column event_id", fix: "--columns event_id=COLUMN with one of: id, aggregate_type"},
		{code: "column-missing", spoil: []string{"alter table outbox drop event_type"}, message: "event_type"},
		{code: "column-missing", names: func(n *provision.Names) { n.Columns = mapping(t, `topic="user"`) }, message: `no column "user" (mapped to topic)`},
		{code: "column-generated", spoil: []string{"alter table outbox drop payload", "alter table outbox add payload text generated always as (aggregate_type) stored"}, fix: "DROP EXPRESSION"},
		{code: "publication-missing", spoil: []string{"drop publication {slot}"}, fix: `CREATE PUBLICATION "{slot}" FOR TABLE "public"."outbox"`},
		{code: "publication-table", spoil: []string{"create table other (id int)", "alter publication {slot} set table other"}, fix: "ALTER PUBLICATION {slot} ADD TABLE public.outbox"},
		{code: "publication-insert", spoil: []string{"alter publication {slot} set (publish = 'update')"}, message: "it publishes: update", fix: "SET (publish = 'insert')"},
		{code: "publication-columns", spoil: []string{"alter publication {slot} set table outbox (event_id)"}, message: "leaves out column aggregate_type", fix: "SET TABLE public.outbox", since: 15},
		{code: "slot-missing", spoil: []string{"select pg_drop_replication_slot('{slot}')"}, fix: "outbox-cdc setup --slot {slot}"},
		{code: "slot-plugin", spoil: []string{"select pg_drop_replication_slot('{slot}')", "select pg_create_logical_replication_slot('{slot}', 'test_decoding')"}, message: "plugin test_decoding"},
		{code: "slot-plugin", spoil: []string{"select pg_drop_replication_slot('{slot}')", "select pg_create_physical_replication_slot('{slot}')"}, message: "physical slot"},
		{code: "slot-two-phase", spoil: []string{"select pg_drop_replication_slot('{slot}')", "select pg_create_logical_replication_slot('{slot}', 'pgoutput', false, true)"}, fix: "slot drop --slot {slot} --yes"},
	} {
		if testenv.Postgres(t).Major() < tc.since {
			continue
		}
		t.Run(tc.code, func(t *testing.T) {
			o := newOutbox(t)
			fill := func(text string) string { return strings.ReplaceAll(text, "{slot}", o.names.Slot) }
			for _, sql := range tc.spoil {
				testenv.Exec(t, o.url, fill(sql))
			}
			if tc.names != nil {
				tc.names(&o.names)
			}
			findings := preflight(t, o)
			err := findings.Fault()
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Code != tc.code || fault.ExitCode(err) != fault.ExitOperator {
				t.Fatalf("got %v, findings %+v; want %s", err, findings, tc.code)
			}
			if !strings.Contains(fe.What, fill(tc.message)) || !strings.Contains(fe.Hint, fill(tc.fix)) || fe.Hint == "" && tc.fix != "" {
				t.Errorf("got %q, hint %q", fe.What, fe.Hint)
			}
		})
	}
	t.Run("slot-database", func(t *testing.T) {
		other := newOutbox(t)
		other.names.Slot = slot
		findings := preflight(t, other)
		if !findings.Has("slot-database") || !strings.Contains(findings.Fault().Error(), testenv.DatabaseName(t, o.url)) {
			t.Errorf("got %+v", findings)
		}
	})
}

func TestALostSlotIsNamedAsLost(t *testing.T) {
	reason := "wal_removed"
	lost := "lost"
	for name, info := range map[string]replication.SlotInfo{
		"14 to 16": {Type: "logical", WALStatus: &lost},
		"17":       {Type: "logical", InvalidationReason: &reason},
	} {
		if !info.Lost() {
			t.Errorf("%s: not seen as lost", name)
		}
	}
}

func TestPartitionsArePublishedThroughTheirRootOrByName(t *testing.T) {
	for _, root := range []string{"true", "false"} {
		o := newOutbox(t)
		testenv.Exec(t, o.url, "drop table outbox",
			"create table outbox (event_id uuid, aggregate_type text, aggregate_id text, event_type text, payload jsonb, at date) partition by range (at)",
			"create table outbox_1 partition of outbox default",
			"alter publication "+o.names.Publication+" set table outbox",
			"alter publication "+o.names.Publication+" set (publish_via_partition_root = "+root+")")
		if findings := preflight(t, o); len(findings) > 0 {
			t.Errorf("via root %s: got %+v", root, findings)
		}
	}
}

func mapping(t *testing.T, text string) decode.Mapping {
	t.Helper()
	m, err := decode.ParseMapping(text)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
