DROP INDEX IF EXISTS {schema}.outbox_dead_letter_held;
ALTER TABLE {schema}.outbox_dead_letter DROP COLUMN IF EXISTS event;
