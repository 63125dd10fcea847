package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// payloads returns the bodies of this outbox's messages.
func (o *outbox) payloads() [][]byte {
	o.tb.Helper()
	var bodies [][]byte
	for _, m := range o.ours() {
		bodies = append(bodies, m.Data)
	}
	return bodies
}

// insertRow inserts one row with more columns than the needed ones.
func (o *outbox) insertRow(columns string, values ...string) {
	o.tb.Helper()
	o.exec("INSERT INTO " + o.table + " (aggregate_type, aggregate_id, event_type, " + columns + ") VALUES ('order', 'a', 'placed', " + strings.Join(values, ", ") + ")")
}

func TestNumbersOfJSONPayloadsKeepEveryDigit(t *testing.T) {
	const text = `{"id":1234567890123456789,"amt":0.10,"big":1e400,"n":12345678901234567890123}`
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming()
	o.insertRow("payload", "'"+text+"'")
	o.waitStored(1)
	want := `"payload":` + o.value("SELECT payload::text FROM outbox") + "}"
	if !strings.Contains(want, `"n": 12345678901234567890123`) || !strings.Contains(want, `"amt": 0.10`) || !strings.Contains(want, strings.Repeat("0", 400)) {
		t.Fatalf("PostgreSQL prints %s", want)
	}
	if got := string(o.payloads()[0]); !strings.HasSuffix(got, want) {
		t.Errorf("the envelope is %s, want one that ends with %s", got, want)
	}
}

func TestTextOfJSONColumnsArrivesByteForByte(t *testing.T) {
	const text = ` {"b" : 1e400,  "a":1.0, "a":  12345678901234567890.10,"u":"\u00e5å" } `
	for _, format := range []string{"payload", "envelope"} {
		t.Run(format, func(t *testing.T) {
			o := newOutbox(t, testenv.NATS(t).URL())
			o.exec("ALTER TABLE outbox ALTER COLUMN payload TYPE json")
			o.startStreaming("--format", format)
			o.insertRow("payload", "'"+text+"'")
			o.waitStored(1)
			got := string(o.payloads()[0])
			if format == "payload" && got != text {
				t.Errorf("the body is %q, want %q", got, text)
			}
			if format == "envelope" && !strings.HasSuffix(got, `"payload":`+text+"}") {
				t.Errorf("the envelope is %q, want one that ends with the payload %q", got, text)
			}
		})
	}
}

func TestDisplaySettingsOfTheDatabaseChangeNothingThatIsPublished(t *testing.T) {
	const table = `CREATE TABLE outbox(event_id uuid PRIMARY KEY, aggregate_type text, aggregate_id interval, aggregate_version float8,
		event_type timestamptz, occurred_at timestamptz, payload bytea)`
	const row = `INSERT INTO outbox VALUES ('%s', 'order', '1 year 2 mons 3 days 04:05:06.789', 0.1::float8 + 0.2::float8,
		'2026-02-01 03:04:05.678901+00', '2026-02-01 03:04:05.678901+00', '\x00ff41')`
	o := newForeignOutbox(t, testenv.Postgres(t).NewDatabase(t), testenv.NATS(t).URL(), []string{table}, func(o *outbox) {
		o.extra = []string{"--format", "envelope", "--headers", "full"}
	})
	const first, second = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
	p := o.startStreaming()
	o.exec(fmt.Sprintf(row, first))
	o.waitStored(1)
	p.Kill()

	for name, value := range map[string]string{
		"bytea_output": "escape", "datestyle": "German, DMY", "intervalstyle": "iso_8601", "extra_float_digits": "-5", "timezone": "Asia/Kathmandu",
	} {
		o.setDatabase(name, value)
	}
	if shown := o.value("SELECT payload::text || aggregate_version || occurred_at FROM outbox"); !strings.Contains(shown, `\000\377A0.3`+"01.02.2026 08:49") {
		t.Fatalf("the settings are not in force: %q", shown)
	}
	p = o.startStreaming()
	o.exec(fmt.Sprintf(row, second))
	o.waitStored(2)
	messages := o.ours()
	without, with := messages[0], messages[1]
	if got, want := string(with.Data), strings.ReplaceAll(string(without.Data), first, second); got != want {
		t.Errorf("with settings:    %s\nwithout settings: %s", got, want)
	}
	if with.Subject != without.Subject {
		t.Errorf("subject %q with settings, %q without", with.Subject, without.Subject)
	}
	for _, name := range []string{"Outbox-Aggregate-Id", "Outbox-Aggregate-Version", "Outbox-Event-Type", "Outbox-Occurred-At", "Content-Type"} {
		if with.Header.Get(name) != without.Header.Get(name) {
			t.Errorf("%s: %q with settings, %q without", name, with.Header.Get(name), without.Header.Get(name))
		}
	}
	want := `{"eventId":"` + second + `","eventType":"2026-02-01 03:04:05.678901+00","aggregateType":"order",` +
		`"aggregateId":"1 year 2 mons 3 days 04:05:06.789","aggregateVersion":0.30000000000000004,"occurredAt":"2026-02-01T03:04:05.678901Z","payloadBase64":"AP9B"}`
	if got := string(with.Data); got != want {
		t.Errorf("envelope %s\nwant     %s", got, want)
	}
	p.Kill()
}

func TestBinaryPayloadIsTheBodyByteForByte(t *testing.T) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	o := newOutbox(t, testenv.NATS(t).URL())
	o.exec("ALTER TABLE outbox ALTER COLUMN payload TYPE bytea USING NULL")
	o.startStreaming("--format", "payload", "--content-type", "application/protobuf")
	o.insertRow("payload", `'\x005cff'`)
	o.insertRow("payload", fmt.Sprintf(`'\x%x'`, all))
	o.insertRow("payload", `''`)
	o.insertRow("payload", "NULL")
	o.waitStored(4)
	messages := o.ours()
	for i, want := range [][]byte{{0x00, 0x5c, 0xff}, all, nil, nil} {
		if !bytes.Equal(messages[i].Data, want) {
			t.Errorf("body %d is %q, want %q", i+1, messages[i].Data, want)
		}
		if got := messages[i].Header.Get("Content-Type"); got != "application/protobuf" {
			t.Errorf("message %d has content type %q", i+1, got)
		}
		if got, want := messages[i].Header.Get("Outbox-Payload-Null"), map[bool]string{true: "true"}[i == 3]; got != want {
			t.Errorf("message %d: Outbox-Payload-Null %q, want %q", i+1, got, want)
		}
	}
}

func TestExtremeValuesArriveAsTextAndAreNotClamped(t *testing.T) {
	digits := strings.Repeat("1234567890", 40) + ".5"
	for _, c := range []struct{ kind, value, want string }{
		{"timestamptz", "infinity", `"infinity"`},
		{"timestamptz", "-infinity", `"-infinity"`},
		{"timestamptz", "0044-03-15 12:00:00+00 BC", `"-0043-03-15T12:00:00.000000Z"`},
		{"timestamptz", "294276-12-31 23:59:59.999999+00", `"+294276-12-31T23:59:59.999999Z"`},
		{"timestamptz", "4714-11-24 00:00:00+00 BC", `"-4713-11-24T00:00:00.000000Z"`},
		{"timestamp", "infinity", `"infinity"`},
		{"date", "infinity", `"infinity"`},
		{"date", "0044-03-15 BC", `"0044-03-15 BC"`},
		{"numeric", "NaN", `"NaN"`},
		{"numeric", "Infinity", `"Infinity"`},
		{"numeric", digits, `"` + digits + `"`},
		{"float8", "1e308", "1e+308"},
		{"float8", "-0", "-0"},
	} {
		t.Run(c.kind+" "+c.value[:min(len(c.value), 20)], func(t *testing.T) { extremeValueArrives(t, c.kind, c.value, c.want) })
	}
}

func extremeValueArrives(t *testing.T, kind, value, want string) {
	o := newForeignOutbox(t, testenv.Postgres(t).NewDatabase(t), testenv.NATS(t).URL(), []string{
		"CREATE TABLE outbox(event_id uuid, aggregate_type text, event_type text, aggregate_version numeric, occurred_at timestamptz, payload jsonb)",
	})
	column, key := "occurred_at", "occurredAt"
	if kind == "numeric" || kind == "float8" {
		column, key = "aggregate_version", "aggregateVersion"
	}
	o.exec(fmt.Sprintf("ALTER TABLE outbox DROP COLUMN %[1]s, ADD COLUMN %[1]s %[2]s", column, kind))
	o.startStreaming("--headers", "full")
	o.exec(fmt.Sprintf("INSERT INTO outbox (event_id, aggregate_type, event_type, payload, %s) VALUES (gen_random_uuid(), 'order', 'placed', '{}', '%s')", column, value))
	o.waitStored(1)
	m := o.ours()[0]
	var envelope map[string]json.RawMessage
	if err := json.Unmarshal(m.Data, &envelope); err != nil {
		t.Fatalf("%s: %v", m.Data, err)
	}
	if got := string(envelope[key]); got != want {
		t.Errorf("%s is %s, want %s", key, got, want)
	}
	header := map[string]string{"occurred_at": "Outbox-Occurred-At", "aggregate_version": "Outbox-Aggregate-Version"}[column]
	if got := m.Header.Get(header); got != strings.Trim(want, `"`) {
		t.Errorf("header %s is %s, want %s", header, got, want)
	}
}

func TestMixedCaseReservedAndDottedNamesAreNeitherFoldedNorSplit(t *testing.T) {
	o := &outbox{
		tb: t, databaseURL: testenv.Postgres(t).NewDatabase(t), natsURL: testenv.NATS(t).URL(),
		slot: testenv.UniqueName("ob"), stream: testenv.UniqueName("OB"), table: `"Billing-EU"."Order.Outbox"`,
	}
	o.forwarderDatabaseURL, o.forwarderNATSURL = o.databaseURL, o.natsURL
	o.extra = []string{"--publication", "Billing-Pub", "--columns", `event_id=user,aggregate_type=order,event_type=Type,payload=Payload`}
	const columns = `("user" uuid DEFAULT gen_random_uuid(), "order" text, "Type" text, "Payload" text, payload text DEFAULT 'decoy')`
	o.exec(`CREATE SCHEMA "Billing-EU"`, `CREATE SCHEMA billing`, `CREATE SCHEMA "Order"`,
		`CREATE TABLE "Billing-EU"."Order.Outbox"`+columns, `CREATE TABLE billing.outbox`+columns, `CREATE TABLE "Order"."Outbox"`+columns)
	setup := o.run("setup")
	setup.WaitExit(0, testenv.Deadline)
	o.exec(`ALTER PUBLICATION "Billing-Pub" ADD TABLE billing.outbox, "Order"."Outbox"`)
	o.startStreaming()
	var want []string
	for i := range 3 {
		o.exec(`INSERT INTO billing.outbox VALUES (DEFAULT, 'x', 'x', 'decoy')`, `INSERT INTO "Order"."Outbox" VALUES (DEFAULT, 'x', 'x', 'decoy')`)
		want = append(want, testenv.Query(t, o.databaseURL, `INSERT INTO `+o.table+` VALUES (DEFAULT, 'order', 'placed', $1) RETURNING "user"::text`, fmt.Sprintf("payload %d", i))...)
	}
	o.waitStored(len(want))
	o.waitConfirmed()
	o.expectEvents(o.ours(), want)
	for i, body := range o.payloads() {
		if !strings.HasSuffix(string(body), fmt.Sprintf(`"payload":"payload %d"}`, i)) {
			t.Errorf("message %d is %s", i+1, body)
		}
	}
}

func TestSlotNameThatPostgresWouldRefuseIsRefusedBeforeAnyConnection(t *testing.T) {
	for _, name := range []string{"Billing", "billing-eu", "", strings.Repeat("s", 64)} {
		p := testenv.Run(t, testenv.Binary(t), "start", "--slot", name, "--http", "off",
			"--database-url", "postgres://nobody@127.0.0.1:1/none", "--nats-url", "nats://127.0.0.1:1")
		p.WaitExit(2, testenv.Deadline)
		if !strings.Contains(p.Stderr(), "--slot") {
			t.Errorf("slot %q: %s", name, p.Stderr())
		}
	}
}

// newEncodedDatabase makes a database with another encoding.
func newEncodedDatabase(tb testing.TB, encoding string) string {
	tb.Helper()
	cluster := testenv.Postgres(tb)
	made := cluster.NewDatabase(tb)
	name := testenv.DatabaseName(tb, made)
	testenv.Exec(tb, cluster.URL("postgres"), "DROP DATABASE "+name,
		"CREATE DATABASE "+name+" ENCODING '"+encoding+"' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
	return made
}

func TestTextOfALATIN1DatabaseArrivesAsUTF8(t *testing.T) {
	o := newForeignOutbox(t, newEncodedDatabase(t, "LATIN1"), testenv.NATS(t).URL(), []string{
		"CREATE TABLE outbox(event_id uuid DEFAULT gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text, payload text)",
	})
	o.startStreaming("--headers", "full")
	o.exec("SET client_encoding = 'UTF8'", "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'å', 'placed', 'Ångström')")
	o.waitStored(1)
	if got := o.value("SELECT encode(convert_to(payload, 'LATIN1'), 'hex') FROM outbox"); got != "c56e67737472f66d" {
		t.Fatalf("the database holds %s", got)
	}
	m := o.ours()[0]
	if got := string(m.Data); !strings.HasSuffix(got, `"aggregateId":"å","payload":"Ångström"}`) {
		t.Errorf("envelope %s", got)
	}
	if got := m.Header.Get("Outbox-Aggregate-Id"); got != "å" {
		t.Errorf("header %q", got)
	}
}

// A database without an encoding hands over what it was given.
func TestWithHaltTextThatIsNotUTF8StopsTheForwarderAndNamesTheEvent(t *testing.T) {
	o := newForeignOutbox(t, newEncodedDatabase(t, "SQL_ASCII"), testenv.NATS(t).URL(), []string{
		"CREATE TABLE outbox(event_id uuid DEFAULT gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text, payload text)",
	})
	insert := func(bytes string) string {
		t.Helper()
		conn, err := pgx.Connect(testenv.Context(t, testenv.Deadline), o.databaseURL+"&client_encoding=SQL_ASCII")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(testenv.Context(t, testenv.Deadline))
		var id string
		if err := conn.QueryRow(testenv.Context(t, testenv.Deadline), `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
			VALUES ('order', 'a', 'placed', E'`+bytes+`') RETURNING event_id::text`).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	p := o.startStreaming("--status-interval", fastStatus, "--on-poison", "halt")
	good := insert("before")
	bad := insert(`a\xffb`)
	p.WaitExit(3, testenv.Deadline)
	expectRefusal(t, p, bad+".*UTF-8", "slot "+o.slot)
	o.expectEvents(o.ours(), []string{good})

	again := o.start("--format", "payload", "--on-poison", "halt")
	again.WaitExit(3, testenv.Deadline)
	expectRefusal(t, again, bad+".*UTF-8", "slot "+o.slot)
	o.expectEvents(o.ours(), []string{good})
}
