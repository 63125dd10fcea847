DROP TABLE {schema}.inbox;
