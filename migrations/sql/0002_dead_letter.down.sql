DROP TABLE {schema}.outbox_dead_letter;
