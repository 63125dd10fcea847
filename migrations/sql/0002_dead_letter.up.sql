-- Events that the stream will never accept as they are, and events that wait behind one.
-- Open rows are few and looked for often, settled ones stay for the record.
CREATE TABLE IF NOT EXISTS {schema}.outbox_dead_letter (
  id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  source          text        NOT NULL,
  position        text        NOT NULL,
  event_id        text,
  aggregate_type  text,
  aggregate_id    text,
  subject         text,
  headers         jsonb,
  payload         bytea,
  reason_code     text        NOT NULL,
  reason          text        NOT NULL,
  attempts        integer     NOT NULL,
  held_behind     bigint,
  first_failed_at timestamptz NOT NULL,
  dead_at         timestamptz NOT NULL,
  resolved_at     timestamptz,
  resolution      text,
  UNIQUE (source, position)
);
CREATE INDEX IF NOT EXISTS outbox_dead_letter_open ON {schema}.outbox_dead_letter (aggregate_type, aggregate_id, id) WHERE resolved_at IS NULL;
CREATE INDEX IF NOT EXISTS outbox_dead_letter_event ON {schema}.outbox_dead_letter (event_id);
