-- The events. Producers insert here in the transaction of their change; nothing updates
-- a row, and rows are deleted by prune. The unique index on the aggregate also serves the
-- look-up of one aggregate's events.
CREATE TABLE {table} (
  id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id          uuid        NOT NULL DEFAULT gen_random_uuid() UNIQUE,
  aggregate_type    text        NOT NULL,
  aggregate_id      text        NOT NULL,
  aggregate_version bigint,
  event_type        text        NOT NULL,
  event_version     integer     NOT NULL DEFAULT 1,
  topic             text,
  payload           jsonb,
  headers           jsonb,
  traceparent       text,
  occurred_at       timestamptz NOT NULL DEFAULT now(),
  UNIQUE (aggregate_type, aggregate_id, aggregate_version, event_type)
);
