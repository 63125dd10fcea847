package fault

// Row is one literal row of the error policy.
type Row struct {
	// Code is a SQLSTATE, or a JetStream error code in digits.
	Code  string
	Class Class
	// Resync means that nothing is wrong with the event or the stream: the place in
	// it has to be found again, at once.
	Resync bool
	// Title says in a few words what the code means here.
	Title string
	// Hint is the next step for a person; empty where waiting is the next step.
	Hint string
}

// postgresRows classifies SQLSTATEs. Classes of SQLSTATE (two characters) stand
// for all their codes that have no row of their own.
var postgresRows = []Row{
	{Code: "08", Class: Transient, Title: "connection failure"},
	{Code: "08P01", Class: Operator, Title: "protocol violation: this looks like a connection pooler",
		Hint: "give --database-url the address of PostgreSQL itself: old or transaction pooling cannot carry replication connections"},
	{Code: "0A000", Class: Operator, Title: "feature not supported",
		Hint: "the server names the feature: PostgreSQL 14 or newer is needed, with pgoutput, and up to 15 the primary for all that makes slots"},
	{Code: "22023", Class: Operator, Title: "invalid parameter value", Hint: "look at the options in --database-url, and at the server's log"},
	{Code: "25006", Class: Transient, Title: "the server is read-only",
		Hint: "a standby is, and a database with default_transaction_read_only: name all hosts in --database-url to find the primary"},
	{Code: "25P03", Class: Transient, Title: "the session was idle in a transaction for too long"},
	{Code: "28", Class: Operator, Title: "not allowed to connect",
		Hint: "check the role's password, its LOGIN and REPLICATION attributes, and pg_hba.conf (a line for the database, not for the keyword replication)"},
	{Code: "3D000", Class: Operator, Title: "the database does not exist", Hint: "check --database-url"},
	{Code: "40", Class: Transient, Title: "transaction rolled back"},
	{Code: "42501", Class: Operator, Title: "the role lacks a right",
		Hint: "outbox-cdc setup --dry-run prints the grants that the role needs"},
	{Code: "42704", Class: Operator, Title: "the slot or publication does not exist",
		Hint: "outbox-cdc status tells which; what is made anew misses what was written before: see \"A slot that is missing or lost\" in docs/OPERATING.md"},
	{Code: "42P01", Class: Operator, Title: "the table does not exist", Hint: "outbox-cdc setup creates it"},
	{Code: "53", Class: Transient, Title: "the server is out of resources", Hint: "raise the limit that the server names, or free what it lacks"},
	{Code: "53300", Class: Transient, Title: "too many connections or WAL senders",
		Hint: "raise max_wal_senders or max_connections"},
	{Code: "55000", Class: Operator, Title: "the slot cannot be used as it is",
		Hint: "outbox-cdc slot show tells its wal_status; a lost slot has to be made anew and the table published again"},
	{Code: "55006", Class: Transient, Title: "the slot is in use by another process"},
	{Code: "55P03", Class: Transient, Title: "a lock was not available in time"},
	{Code: "57014", Class: Transient, Title: "the statement was cancelled"},
	{Code: "57P01", Class: Transient, Title: "the server ended the connection"},
	{Code: "57P02", Class: Transient, Title: "the server crashed and restarts"},
	{Code: "57P03", Class: Transient, Title: "the server is starting up or shutting down"},
	{Code: "57P05", Class: Transient, Title: "the session was idle for too long"},
	{Code: "58", Class: Transient, Title: "the server has a system error"},
	{Code: "58P01", Class: Operator, Title: "a file of the server is missing", Hint: "look into the server's log: WAL that the slot needs may have been removed by hand"},
	{Code: "XX000", Class: Operator, Title: "internal error of the server", Hint: "look into the server's log"},
	{Code: "XX001", Class: Operator, Title: "the server reports corrupted data", Hint: "look into the server's log"},
}

// jetStreamRows classifies JetStream error codes (err_code). The HTTP-like code of
// an answer is no guide to permanence.
var jetStreamRows = []Row{
	{Code: "10002", Class: Transient, Title: "the account's storage is used up", Hint: "nats account info"},
	{Code: "10005", Class: Operator, Title: "the cluster has too few servers for the stream", Hint: "give --replicas no more than the cluster has servers with room"},
	{Code: "10008", Class: Transient, Title: "JetStream is temporarily unavailable"},
	{Code: "10023", Class: Transient, Title: "the server's storage is used up", Hint: "nats server report jetstream"},
	{Code: "10027", Class: Operator, Title: "the account may have no more streams", Hint: "nats account info; raise the account's max_streams"},
	{Code: "10039", Class: Operator, Title: "JetStream is not enabled for the account", Hint: "enable JetStream for this account"},
	{Code: "10047", Class: Transient, Title: "the server has too little storage for the stream", Hint: "nats server report jetstream; or give a smaller --max-bytes"},
	{Code: "10052", Class: Operator, Title: "the server refuses the stream's configuration", Hint: "mend the setting that the server names"},
	{Code: "10054", Class: Poison, Title: "the message is larger than the stream allows", Hint: "raise the stream's max_msg_size"},
	{Code: "10058", Class: Operator, Title: "the stream name is in use with another configuration", Hint: "outbox-cdc stream show"},
	{Code: "10059", Class: Transient, Title: "the stream does not exist", Hint: "outbox-cdc stream create"},
	{Code: "10060", Class: Operator, Title: "the subject belongs to another stream",
		Hint: "let the stream named by --stream, and no other, cover the subjects of --subject"},
	{Code: "10065", Class: Operator, Title: "another stream has these subjects already",
		Hint: "nats stream ls --subject SUBJECT names it; use it with --stream, or give --subject another first token"},
	{Code: "10071", Class: Transient, Resync: true, Title: "somebody else wrote into the stream"},
	{Code: "10074", Class: Operator, Title: "replicas need a cluster", Hint: "give --replicas 1, or a cluster in --nats-url"},
	{Code: "10077", Class: Transient, Title: "the stream is full",
		Hint: "raise the stream's limits or let its consumers catch up"},
	{Code: "10097", Class: Poison, Title: "the headers are larger than 64 KiB"},
	{Code: "10109", Class: Operator, Title: "the stream is sealed", Hint: "use another stream: a sealed one takes nothing any more"},
	{Code: "10113", Class: Operator, Title: "streams of the account need a size", Hint: "give --max-bytes"},
	{Code: "10118", Class: Transient, Title: "the stream is offline"},
	{Code: "10122", Class: Operator, Title: "the stream is larger than the account allows", Hint: "give a smaller --max-bytes, or raise the account's limit"},
	{Code: "10158", Class: Transient, Resync: true, Title: "the same message id is being stored"},
	{Code: "10167", Class: Transient, Title: "the stream's ingest queue is full"},
	{Code: "10169", Class: Operator, Title: "the stream is a counter", Hint: "use another stream: this one takes increments of counters only"},
	{Code: "10205", Class: Transient, Resync: true, Title: "the stream does not allow batches"},
	{Code: "10208", Class: Transient, Resync: true, Title: "the batch is not known (any more)"},
	{Code: "10211", Class: Transient, Title: "too many batches are open"},
}

var unknownRow = Row{Class: Operator, Title: "an error that this version does not know", Hint: "please report it"}

// PostgresRow returns the row of a SQLSTATE: its own, else its class's, else the
// one for unknown errors, which is operator.
func PostgresRow(sqlState string) Row {
	if row, ok := find(postgresRows, sqlState); ok {
		return row
	}
	if len(sqlState) == 5 {
		if row, ok := find(postgresRows, sqlState[:2]); ok {
			return row
		}
	}
	row := unknownRow
	row.Code = sqlState
	return row
}

// JetStreamRow returns the row of a JetStream error code, else the one for
// unknown errors, which is operator.
func JetStreamRow(code string) Row {
	if row, ok := find(jetStreamRows, code); ok {
		return row
	}
	row := unknownRow
	row.Code = code
	return row
}

func find(rows []Row, code string) (Row, bool) {
	for _, row := range rows {
		if row.Code == code {
			return row, true
		}
	}
	return Row{}, false
}
