package decode_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

func TestTableNameIsReadAsSQLReadsIt(t *testing.T) {
	for in, want := range map[string]decode.TableName{
		`outbox`:                             {Schema: "public", Name: "outbox"},
		`Outbox`:                             {Schema: "public", Name: "outbox"},
		`billing.outbox`:                     {Schema: "billing", Name: "outbox"},
		`"Billing-EU"."Order.Outbox"`:        {Schema: "Billing-EU", Name: "Order.Outbox"},
		`"a""b".c`:                           {Schema: `a"b`, Name: "c"},
		`x."order"`:                          {Schema: "x", Name: "order"},
		`_a$1.é`:                             {Schema: "_a$1", Name: "é"},
		`"Outbox"`:                           {Schema: "public", Name: "Outbox"},
		strings.Repeat("a", 63) + `.b`:       {Schema: strings.Repeat("a", 63), Name: "b"},
		`"` + strings.Repeat(`""`, 63) + `"`: {Schema: "public", Name: strings.Repeat(`"`, 63)},
	} {
		got, err := decode.ParseTableName(in)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", in, got, err, want)
		}
		if again, err := decode.ParseTableName(got.String()); err != nil || again != got {
			t.Errorf("%s: written as %s and read as %+v, %v", in, got, again, err)
		}
	}
}

func TestBadTableNameIsRefusedWithTheReason(t *testing.T) {
	for in, want := range map[string]string{
		``: "empty", `.`: "empty", `a.`: "empty", `.a`: "empty", `""`: "empty", `a.""`: "empty",
		`a.b.c`: "two parts", `"a`: "not closed", `"a"b`: "closing", `billing-eu.outbox`: `'-'`, `a b`: `' '`, `1a`: `'1'`, `a"b"`: `'"'`,
		strings.Repeat("a", 64): "63 bytes", "\"a\x00\"": "NUL", "a;drop": `';'`,
	} {
		_, err := decode.ParseTableName(in)
		var n *decode.NameError
		if !errors.As(err, &n) || n.Input != in || !strings.Contains(err.Error(), want) || n.Hint() == "" {
			t.Errorf("%q: %v, want it to hold %q", in, err, want)
		}
	}
}

// TestQuotingAgreesWithPostgreSQL compares with quote_ident of a real server.
func TestQuotingAgreesWithPostgreSQL(t *testing.T) {
	content, err := os.ReadFile("testdata/quote-ident.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for line := range strings.Lines(string(content)) {
		name, want, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if got := decode.QuoteIdentifier(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		lines++
	}
	if lines < 400 {
		t.Errorf("only %d names compared", lines)
	}
}

func TestMappingGivenReplacesOnlyTheNamedFields(t *testing.T) {
	m := mapping(` event_id = Id , payload="Pay, ""load""",topic=,tenant=tenant_id,order=seq `)
	for f, want := range map[decode.Field]struct {
		column   string
		explicit bool
	}{
		decode.FieldEventID:       {"Id", true},
		decode.FieldPayload:       {`Pay, "load"`, true},
		decode.FieldTopic:         {"", false},
		decode.FieldAggregateType: {"aggregate_type", false},
	} {
		if m.Column(f) != want.column || m.Explicit(f) != want.explicit {
			t.Errorf("%s: %q, explicit %t", f, m.Column(f), m.Explicit(f))
		}
	}
	if want := []decode.ExtraColumn{{Name: "tenant", Column: "tenant_id"}}; !slices.Equal(m.Extra(), want) {
		t.Errorf("extra %+v", m.Extra())
	}
	if i, ok := m.ExtraIndex("tenant"); i != 0 || !ok {
		t.Errorf("index %d, %t", i, ok)
	}
	if _, ok := m.ExtraIndex("other"); ok {
		t.Error("an extra column that was not given was found")
	}
	if m.Order() != "seq" {
		t.Errorf("order %q", m.Order())
	}
	again, err := decode.ParseMapping(m.String())
	if err != nil || again.String() != m.String() {
		t.Errorf("%s is read as %s, %v", m, again, err)
	}
}

func TestDefaultAndDebeziumMappings(t *testing.T) {
	for _, m := range []decode.Mapping{{}, mapping(""), decode.DefaultMapping()} {
		for i := range decode.NumFields {
			f := decode.Field(i)
			if m.Column(f) != f.String() || m.Explicit(f) {
				t.Errorf("%s is mapped to %q, explicit %t", f, m.Column(f), m.Explicit(f))
			}
		}
		if m.Order() != "id" {
			t.Errorf("order %q", m.Order())
		}
	}
	for _, m := range []decode.Mapping{decode.DebeziumMapping(), mapping("debezium"), mapping("debezium,topic=subject")} {
		got := []string{m.Column(decode.FieldEventID), m.Column(decode.FieldAggregateType), m.Column(decode.FieldAggregateID), m.Column(decode.FieldEventType), m.Column(decode.FieldPayload)}
		if want := []string{"id", "aggregatetype", "aggregateid", "type", "payload"}; !slices.Equal(got, want) || m.Order() != "" {
			t.Errorf("debezium: %q, order %q", got, m.Order())
		}
	}
	if m := mapping("debezium,event_type=kind,order=created_at"); m.Column(decode.FieldEventType) != "kind" || m.Order() != "created_at" {
		t.Errorf("debezium with changes: %s", m)
	}
	if m := mapping("event_id=id,order=id"); m.Order() != "id" {
		t.Errorf("the order column that was asked for is not there: %s", m)
	}
	if m := mapping("event_id=id"); m.Order() != "" {
		t.Errorf("an event id became the order column: %s", m)
	}
}

func TestBadMappingIsRefusedWithTheKey(t *testing.T) {
	for in, want := range map[string]struct{ key, reason string }{
		"event_id":                         {"event_id", "no ="},
		"event_id=a,payload":               {"payload", "no ="},
		"event_id=a,event_id=b":            {"event_id", "twice"},
		"payload=a,debezium":               {"debezium", "no ="},
		"=a":                               {"", "name"},
		"a-b=c":                            {"a-b", "name"},
		"1a=c":                             {"1a", "name"},
		"tenant=":                          {"tenant", "no column"},
		"header=h":                         {"header", "headers"},
		"event_ids=h":                      {"event_ids", "event_id"},
		"payloab=h":                        {"payloab", "payload"},
		`payload="a`:                       {"payload", "not closed"},
		`payload=""`:                       {"payload", "empty"},
		`payload="a"b`:                     {"payload", "closing"},
		`payload="a",`:                     {"payload", "closing"},
		"event_id=a,":                      {"event_id", "comma"},
		`event_id=a payload=b,topic="c"`:   {"event_id", "comma"},
		"event_id=a payload=b":             {"event_id", "comma"},
		"topic=" + strings.Repeat("x", 64): {"topic", "cannot have"},
	} {
		_, err := decode.ParseMapping(in)
		var m *decode.MappingError
		if !errors.As(err, &m) || m.Key != want.key || !strings.Contains(err.Error(), want.reason) || !strings.Contains(m.Hint(), "event_id") {
			t.Errorf("%q: %v, want key %q and %q", in, err, want.key, want.reason)
		}
	}
}

func TestNamesOfFieldsKindsAndChanges(t *testing.T) {
	for i := range decode.NumFields {
		f := decode.Field(i)
		if got, ok := decode.ParseField(f.String()); !ok || got != f {
			t.Errorf("%s is read as %s, %t", f, got, ok)
		}
	}
	if _, ok := decode.ParseField("id"); ok {
		t.Error("id is read as a field")
	}
	for oid, want := range map[uint32]string{
		114: "json", 3802: "json", 25: "text", 1043: "text", 17: "bytea", 2950: "uuid", 20: "integer", 701: "float",
		1700: "numeric", 16: "bool", 1184: "timestamptz", 1114: "timestamp", 1082: "date", 600: "other", 0: "other",
	} {
		if got := decode.KindOfOID(oid).String(); got != want {
			t.Errorf("type %d is %s, want %s", oid, got, want)
		}
	}
}
