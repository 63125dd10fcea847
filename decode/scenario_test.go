package decode_test

import (
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// scenario is a recording: what was done on a real server, and how it is decoded.
type scenario struct {
	name      string
	story     string
	setup     []string
	steps     []step
	twoPhase  bool
	streaming bool
	config    decode.Config
}

const outboxTable = `CREATE TABLE outbox(
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id uuid NOT NULL DEFAULT gen_random_uuid(),
  aggregate_type text NOT NULL,
  aggregate_id text NOT NULL,
  aggregate_version bigint,
  event_type text NOT NULL,
  event_version integer NOT NULL DEFAULT 1,
  topic text,
  payload jsonb,
  headers jsonb,
  traceparent text,
  occurred_at timestamptz NOT NULL DEFAULT now())`

const (
	publishInserts = `CREATE PUBLICATION p FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = true)`
	publishAll     = `CREATE PUBLICATION p FOR ALL TABLES`
)

var outbox = decode.TableName{Schema: "public", Name: "outbox"}

var needed = []decode.Field{decode.FieldEventID, decode.FieldPayload, decode.FieldAggregateType, decode.FieldEventType}

// id returns a fixed event id.
func id(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// insert returns an INSERT of the n-th event with the given payload.
func insert(n int, payload string) string {
	return fmt.Sprintf(`INSERT INTO outbox(event_id, aggregate_type, aggregate_id, event_type, payload) VALUES ('%s', 'order', 'o-%d', 'placed', '%s')`, id(n), n, payload)
}

// minimal is a table whose rows are short: id, event_id, aggregate_type, event_type, payload.
const minimal = `CREATE TABLE outbox(event_id text, aggregate_type text, event_type text, payload jsonb)`

func short(n int) string {
	return fmt.Sprintf(`INSERT INTO outbox(event_id, aggregate_type, event_type, payload) VALUES ('e%d', 'a', 't', '{"n": %d}')`, n, n)
}

func mapping(s string) decode.Mapping {
	m, err := decode.ParseMapping(s)
	if err != nil {
		panic(err)
	}
	return m
}

var scenarios = []scenario{
	{
		name:  "outbox",
		story: "the outbox table of the contract: full row, nulls, empty values, insert and delete in one transaction",
		setup: []string{outboxTable, publishInserts},
		steps: in("a",
			`INSERT INTO outbox(event_id, aggregate_type, aggregate_id, aggregate_version, event_type, event_version, topic, payload, headers, traceparent, occurred_at)
VALUES ('`+id(1)+`', 'order', 'o-1', 7, 'placed', 2, 'orders.eu', '{"total": 0.10, "id": 1234567890123456789}', '{"tenant": "acme"}', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', '2026-02-01 12:30:00.123456+01')`,
			`INSERT INTO outbox(event_id, aggregate_type, aggregate_id, event_type, topic, payload, occurred_at) VALUES ('`+id(2)+`', '', '', '', '', '""', '2026-02-01 12:30:00+00')`,
			`BEGIN`, insert(3, `{"kept": true}`), `DELETE FROM outbox`, `COMMIT`),
		config: decode.Config{Table: outbox, Required: needed},
	},
	{
		name:  "kinds",
		story: "every kind of message of protocol version 1",
		setup: []string{
			`CREATE TYPE color AS ENUM ('red', 'green')`, `CREATE DOMAIN doc AS jsonb`, `CREATE DOMAIN ident AS uuid`,
			`CREATE TABLE outbox(n int PRIMARY KEY, event_id ident, color color, payload doc, note text)`,
			`CREATE TABLE loud(n int, note text)`, `ALTER TABLE loud REPLICA IDENTITY FULL`,
			`SELECT pg_replication_origin_create('upstream')`, publishAll,
		},
		steps: in("a",
			`INSERT INTO outbox VALUES (1, '`+id(1)+`', 'green', '{"a": 1}', 'x')`,
			`UPDATE outbox SET note = 'y'`, `UPDATE outbox SET n = 2`, `DELETE FROM outbox`,
			`INSERT INTO loud VALUES (1, NULL)`, `UPDATE loud SET note = ''`, `DELETE FROM loud`,
			`TRUNCATE outbox, loud RESTART IDENTITY`,
			`SELECT pg_logical_emit_message(true, 'outbox', '{"event_id": "m1", "payload": [1, 2]}')`,
			`SELECT pg_logical_emit_message(false, 'outbox', '{"event_id": "m2"}')`,
			`SELECT pg_logical_emit_message(true, 'other', 'x')`,
			`SELECT pg_replication_origin_session_setup('upstream')`,
			`BEGIN`, `SELECT pg_replication_origin_xact_setup('0/ABCDEF', '2026-02-01 00:00:00+00')`,
			`INSERT INTO outbox VALUES (3, '`+id(3)+`', 'red', '{}', NULL)`, `COMMIT`),
		config: decode.Config{Table: outbox, Mapping: mapping("shade=color"), Messages: true},
	},
	{
		name:  "copy",
		story: "rows of one COPY share an LSN",
		setup: []string{minimal, publishInserts},
		steps: steps(
			[]step{{session: "a", sql: `COPY outbox(event_id, payload) FROM STDIN`, copy: "e1\t{}\ne2\t{}\ne3\t{}\ne4\t{}\n"}},
			in("a", `INSERT INTO outbox(event_id, payload) SELECT 's'||g, '{}' FROM generate_series(1, 3) g`)),
		config: decode.Config{Table: outbox},
	},
	{
		name:  "interleaved",
		story: "a transaction that begins first and commits last; a prepared one that commits later, one rolled back; savepoints",
		setup: []string{minimal, publishInserts},
		steps: steps(
			in("a", `BEGIN`, short(1)), in("b", short(2)), in("a", short(3), `COMMIT`),
			in("a", `BEGIN`, short(4), `PREPARE TRANSACTION 'x'`), in("b", short(5)), in("a", `COMMIT PREPARED 'x'`),
			in("a", `BEGIN`, short(6), `PREPARE TRANSACTION 'y'`, `ROLLBACK PREPARED 'y'`),
			in("a", `BEGIN`, short(7), `SAVEPOINT s`, short(8), `ROLLBACK TO s`, short(9), `SAVEPOINT t`, short(10), `COMMIT`)),
		config: decode.Config{Table: outbox, Timelines: decode.Timelines{Current: 1}},
	},
	{
		name:  "layout",
		story: "columns added with a default, renamed, dropped and reordered between rows, all read at once",
		setup: []string{minimal, `ALTER TABLE outbox ADD topic text`, publishInserts},
		steps: in("a",
			`INSERT INTO outbox VALUES ('e1', 'a', 't', '{"n": 1}', 'one')`,
			`BEGIN`, short(2), `ALTER TABLE outbox ADD headers jsonb DEFAULT '{"k": "v"}'`, short(3), `COMMIT`,
			`ALTER TABLE outbox RENAME topic TO subject`,
			`INSERT INTO outbox(event_id, payload, subject) VALUES ('e4', '{"n": 4}', 'four')`,
			`ALTER TABLE outbox DROP aggregate_type`,
			`INSERT INTO outbox(event_id, payload) VALUES ('e5', '{"n": 5}')`,
			`ALTER TABLE outbox DROP event_id`, `ALTER TABLE outbox ADD event_id text`,
			`INSERT INTO outbox(event_id, payload, event_type) VALUES ('e6', '{"n": 6}', 't6')`,
			`ALTER TABLE outbox ALTER payload TYPE text`,
			`INSERT INTO outbox(event_id, payload) VALUES ('e7', '{"n":7}')`),
		config: decode.Config{Table: outbox, Required: []decode.Field{decode.FieldEventID, decode.FieldPayload}},
	},
	{
		name:   "renamed_column",
		story:  "the payload column is renamed between two rows",
		setup:  []string{minimal, publishInserts},
		steps:  in("a", short(1), `ALTER TABLE outbox RENAME payload TO body`, `INSERT INTO outbox VALUES ('e2', 'a', 't', '{}')`),
		config: decode.Config{Table: outbox, Required: needed},
	},
	{
		name:  "renamed_table",
		story: "the outbox is renamed away and made again: rows of the old table are not passed off as events",
		setup: []string{minimal, publishAll},
		steps: in("a", short(1), `ALTER TABLE outbox RENAME TO outbox_old`, minimal,
			`INSERT INTO outbox_old VALUES ('old', 'a', 't', '{}')`, short(2)),
		config: decode.Config{Table: outbox},
	},
	partitioned("root", true), partitioned("leaf", false),
	{
		name:  "values",
		story: "extreme values pass as text",
		setup: []string{
			`CREATE TABLE outbox(event_id numeric, aggregate_type float8, aggregate_id date, aggregate_version bigint, event_type timestamp, topic bool, payload bytea, occurred_at timestamptz, amount numeric)`,
			publishInserts,
		},
		steps: in("a",
			`SET timezone = 'Asia/Kathmandu'`,
			`INSERT INTO outbox VALUES ('NaN', 'NaN', 'infinity', 9223372036854775807, 'infinity', true, '\x', 'infinity', 'Infinity')`,
			`INSERT INTO outbox VALUES (repeat('1234567890', 40)::numeric, '-Infinity', '-infinity', -9223372036854775808, '0044-03-15 00:00:00 BC', false, '\x005cff', '0044-03-15 12:00:00+00 BC', 1e-20)`,
			`INSERT INTO outbox VALUES (-0.000, 0.1::float8 + 0.2, '4713-01-01 BC', 0, '294276-12-31 23:59:59.999999', NULL, NULL, '294276-12-31 00:00:00+00', 1e400)`),
		config: decode.Config{Table: outbox, Mapping: mapping("amount=amount")},
	},
	{
		name:  "json",
		story: "json text byte for byte, jsonb as PostgreSQL prints it, text that only looks like it",
		setup: []string{`CREATE TABLE outbox(event_id varchar(40), payload json, headers jsonb, topic text)`, publishInserts},
		steps: in("a",
			`INSERT INTO outbox VALUES ('e1', E' {"b" :1e400,\n "a":0.10, "a":12345678901234567890123}', '{"b": 1.50, "a": 1234567890123456789}', E'tab\t "quote" \\ back')`,
			`INSERT INTO outbox VALUES ('Ångström ☃ 𝄞', 'null', 'null', 'null')`),
		config: decode.Config{Table: outbox},
	},
	{
		name:  "names",
		story: "mixed-case, reserved and dotted names, beside a decoy in lower case",
		setup: []string{
			`CREATE SCHEMA "Billing-EU"`, `CREATE SCHEMA billing`,
			`CREATE TABLE "Billing-EU"."Order.Outbox"("Id" uuid, "Payload" jsonb, "user" text, "order" text, payload text)`,
			`CREATE TABLE billing.outbox("Id" uuid, "Payload" jsonb, "user" text, "order" text)`,
			`CREATE TABLE "Billing-EU"."order.outbox"("Id" uuid, "Payload" jsonb, "user" text, "order" text)`,
			publishAll,
		},
		steps: in("a",
			`INSERT INTO billing.outbox VALUES ('`+id(1)+`', '{}', 'decoy', 'decoy')`,
			`INSERT INTO "Billing-EU"."order.outbox" VALUES ('`+id(2)+`', '{}', 'decoy', 'decoy')`,
			`INSERT INTO "Billing-EU"."Order.Outbox" VALUES ('`+id(3)+`', '{"real": true}', 'u', 'o', 'decoy')`),
		config: decode.Config{
			Table:   decode.TableName{Schema: "Billing-EU", Name: "Order.Outbox"},
			Mapping: mapping(`event_id=Id,payload="Payload",aggregate_id=user,aggregate_type=order,who=user`),
		},
	},
	{
		name:  "messages",
		story: "logical messages with the outbox prefix, good and bad",
		setup: []string{minimal, publishInserts},
		steps: in("a",
			`BEGIN`, short(1),
			emit(`{"event_id": "`+id(1)+`", "aggregate_type": "order", "aggregate_id": 17, "aggregate_version": 3, "event_type": "placed", "event_version": "2", "topic": null, "payload": {"b" : 1e400,"a":0.10}, "headers": {"k":"v"}, "traceparent": "t", "occurred_at": "2026-02-01T12:30:00.5+01:00"}`),
			`SELECT pg_logical_emit_message(false, 'outbox', '{}')`,
			short(2), `COMMIT`,
			`BEGIN`, `SELECT pg_logical_emit_message(false, 'outbox', 'from a transaction that rolls back')`, `ROLLBACK`,
			emit(`{"event_id": "\u00c5 \ud834\udd1e \"q\"", "payload": "text", "extra": true}`),
			emit(`not json`), emit(`[1]`), emit(``), emit(`{}`),
			emit(`{"event_id": "e", "aggregate_version": 1.5, "payload": 1}`),
			emit(`{"event_id": "half \ud834", "payload": 1}`), emit(`{"event_id": "nul \u0000", "payload": 1}`),
			emit(`{"event_id": "e", "headers": [], "occurred_at": "yesterday"}`),
			`SELECT pg_logical_emit_message(true, 'outbox', '\xff22'::bytea)`,
			`SELECT pg_logical_emit_message(true, 'outbox2', '{}')`,
			emit(`{"event_id":"dup","event_id":"last","payload":`+"\n"+` [ 1 ] }`)),
		config: decode.Config{Table: outbox, Messages: true, Timelines: decode.Timelines{Current: 1}, Mapping: mapping("extra=event_type")},
	},
	{
		name:   "two_phase",
		story:  "a slot with two_phase sends other messages, which are refused",
		setup:  []string{minimal, publishInserts},
		steps:  in("a", `BEGIN`, short(1), `PREPARE TRANSACTION 'x'`, `COMMIT PREPARED 'x'`, `BEGIN`, short(2), `PREPARE TRANSACTION 'y'`, `ROLLBACK PREPARED 'y'`),
		config: decode.Config{Table: outbox}, twoPhase: true,
	},
	{
		name:  "streaming",
		story: "streaming of transactions in progress sends other messages, which are refused",
		setup: []string{minimal, publishInserts},
		steps: in("a", `BEGIN`, `INSERT INTO outbox SELECT g, 'a', 't', '{}' FROM generate_series(1, 2000) g`, `SAVEPOINT s`,
			`INSERT INTO outbox SELECT g, 'a', 't', '{}' FROM generate_series(1, 2000) g`, `ROLLBACK TO s`, `COMMIT`),
		config: decode.Config{Table: outbox}, streaming: true,
	},
}

func emit(content string) string {
	return `SELECT pg_logical_emit_message(true, 'outbox', '` + content + `')`
}

func partitioned(name string, viaRoot bool) scenario {
	return scenario{
		name:  "partition_" + name,
		story: fmt.Sprintf("a partitioned outbox, two levels deep, publish_via_partition_root = %t; a partition attached and detached", viaRoot),
		setup: []string{
			`CREATE TABLE outbox(event_id text, aggregate_type text, event_type text, payload jsonb, day int) PARTITION BY RANGE (day)`,
			`CREATE TABLE outbox_1 PARTITION OF outbox FOR VALUES FROM (1) TO (2)`,
			`CREATE TABLE outbox_2 PARTITION OF outbox FOR VALUES FROM (2) TO (3) PARTITION BY LIST (aggregate_type)`,
			`CREATE TABLE outbox_2a(payload jsonb, day int, gone int, event_type text, aggregate_type text, event_id text)`,
			`ALTER TABLE outbox_2a DROP gone`, `ALTER TABLE outbox_2 ATTACH PARTITION outbox_2a FOR VALUES IN ('a')`,
			`CREATE TABLE other(event_id text, payload jsonb)`,
			fmt.Sprintf(`CREATE PUBLICATION p FOR TABLE outbox, other WITH (publish = 'insert', publish_via_partition_root = %t)`, viaRoot),
		},
		steps: in("a",
			`BEGIN`, `INSERT INTO outbox VALUES ('e1', 'a', 't', '{}', 1)`, `INSERT INTO other VALUES ('no', '{}')`,
			`INSERT INTO outbox VALUES ('e2', 'a', 't', '{}', 2)`, `INSERT INTO outbox VALUES ('e3', 'a', 't', '{}', 1)`, `COMMIT`,
			`CREATE TABLE outbox_3 PARTITION OF outbox FOR VALUES FROM (3) TO (4)`,
			`INSERT INTO outbox VALUES ('e4', 'a', 't', '{}', 3)`,
			`ALTER TABLE outbox DETACH PARTITION outbox_1`, `INSERT INTO outbox_1 VALUES ('detached', 'a', 't', '{}', 1)`, `DROP TABLE outbox_1`,
			`INSERT INTO outbox VALUES ('e5', 'a', 't', '{}', 2)`),
		config: decode.Config{Table: outbox, AcceptRelation: func(r decode.Relation) (bool, error) {
			return r.Name == "outbox_1" || r.Name == "outbox_2a" || r.Name == "outbox_3", nil
		}},
	}
}
