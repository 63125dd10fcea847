package e2e

import (
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// partitionedByLeaf makes an outbox that has partitions a (before 2025) and rest, published leaf by leaf.
func partitionedByLeaf(t *testing.T) *outbox {
	return newOutbox(t, testenv.NATS(t).URL(), func(o *outbox) {
		o.exec(`CREATE TABLE outbox (id bigint GENERATED ALWAYS AS IDENTITY, event_id uuid DEFAULT gen_random_uuid(), aggregate_type text NOT NULL,
			aggregate_id text NOT NULL, aggregate_version bigint, event_type text NOT NULL, payload jsonb, occurred_at timestamptz DEFAULT now()) PARTITION BY RANGE (occurred_at)`,
			`CREATE TABLE a PARTITION OF outbox FOR VALUES FROM ('2020-01-01') TO ('2025-01-01')`, `CREATE TABLE rest PARTITION OF outbox DEFAULT`,
			`CREATE PUBLICATION `+o.slot+` FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = false)`)
		o.exec(`SELECT pg_create_logical_replication_slot('` + o.slot + `', 'pgoutput')`)
		o.madeByHand = true
	})
}

func TestRowsOfAPartitionThatWasDetachedBeforeTheyWereReadArrive(t *testing.T) {
	o := partitionedByLeaf(t)
	o.exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, occurred_at) VALUES ('order', '1', 'old', '2024-01-01'), ('order', '1', 'new', '2026-01-01')`)
	want := o.rows()
	o.exec(`ALTER TABLE outbox DETACH PARTITION a`)
	o.startStreaming()
	o.waitStored(2)
	o.expectEvents(o.ours(), want)
}

func TestRowsInsertedWhileTheTableHadAnotherNameArrive(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.startStreaming()
	o.exec(`BEGIN; ALTER TABLE outbox RENAME TO aside;
		INSERT INTO aside (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'placed');
		ALTER TABLE aside RENAME TO outbox; COMMIT`)
	o.insert("after", 2)
	o.expectAll()
}

func TestARenamedTableStopsTheForwarderBeforeItsRowsAndNothingIsPassedOver(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	p := o.startStreaming()
	o.insert("before", 3)
	o.expectAll()
	o.exec(`ALTER TABLE outbox RENAME TO aside`, `INSERT INTO aside (aggregate_type, aggregate_id, event_type) VALUES ('order', '1', 'placed')`)
	p.WaitExit(3, testenv.Deadline)
	expectRefusal(t, p, `table public\.outbox was renamed to public\.aside`, `ALTER TABLE public\.aside RENAME TO outbox`)
	o.exec(`ALTER TABLE aside RENAME TO outbox`)
	o.startStreaming()
	o.insert("after", 2)
	o.expectAll()
}
