DROP TABLE {schema}.outbox_request;
