-- For consumers in this database: the event ids that each has handled.
CREATE TABLE IF NOT EXISTS {schema}.inbox (
  consumer          text        NOT NULL,
  event_id          text        NOT NULL,
  aggregate_type    text,
  aggregate_id      text,
  aggregate_version bigint,
  processed_at      timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, event_id)
);
CREATE INDEX IF NOT EXISTS inbox_aggregate ON {schema}.inbox (consumer, aggregate_type, aggregate_id, aggregate_version);
CREATE INDEX IF NOT EXISTS inbox_processed_at ON {schema}.inbox (processed_at);
