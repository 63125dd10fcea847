-- What commands ask of the running forwarder, which alone publishes.
CREATE TABLE IF NOT EXISTS {schema}.outbox_request (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind         text        NOT NULL,
  selection    jsonb       NOT NULL,
  state        text        NOT NULL DEFAULT 'waiting',
  progress     jsonb,
  requested_at timestamptz NOT NULL DEFAULT now(),
  finished_at  timestamptz,
  error        text
);
CREATE INDEX IF NOT EXISTS outbox_request_open ON {schema}.outbox_request (id) WHERE finished_at IS NULL;
