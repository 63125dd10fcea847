-- The whole event in a form of the program's own, so that a retry encodes it anew, with the
-- configuration of that day.
ALTER TABLE {schema}.outbox_dead_letter ADD COLUMN IF NOT EXISTS event bytea;
CREATE INDEX IF NOT EXISTS outbox_dead_letter_held ON {schema}.outbox_dead_letter (held_behind) WHERE resolved_at IS NULL AND held_behind IS NOT NULL;
