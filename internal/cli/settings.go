package cli

import "time"

// A setting is a flag, its environment variable and its key in the file, all at once.
type setting struct {
	name  string
	value string // what stands for the value in the help; empty for a switch
	def   string // default, as text; shown in the help
	// defText is shown in place of def where the default depends on something else.
	defText string
	usage   string
	check   check // nil accepts any text
	group   string
	// repeats says that the flag may be given several times, each for one value more.
	repeats bool
	// secret values are never repeated in an error.
	secret bool
}

func (s *setting) isSwitch() bool { return s.value == "" }

const (
	groupConnection = "Connection and names"
	groupForwarding = "Forwarding"
	groupOutput     = "Output"
	groupCommand    = "Of this command"
)

const (
	defaultNATSURL = "nats://127.0.0.1:4222"
	kib            = int64(1) << 10
	gib            = int64(1) << 30
	tib            = int64(1) << 40
)

// commonSettings are taken by every command, before or after its name.
func commonSettings() []setting {
	return []setting{
		{name: "config", value: "FILE", usage: "YAML file with keys named as the flags", group: groupConnection},
		{name: "database-url", value: "URL", defText: "DATABASE_URL, else libpq's PG* variables", usage: "PostgreSQL, as URL or as keywords; several hosts allowed", check: checkDatabaseURL, group: groupConnection, secret: true},
		{name: "nats-url", value: "URL,...", defText: "NATS_URL, else " + defaultNATSURL, usage: "one or more NATS servers", check: checkNATSURL, group: groupConnection, secret: true},
		{name: "nats-creds", value: "FILE", usage: "NATS credentials file", check: readableFile, group: groupConnection},
		{name: "nats-nkey-file", value: "FILE", usage: "NATS nkey seed file", check: readableFile, group: groupConnection},
		{name: "nats-ca", value: "FILE", usage: "CA certificates for NATS, PEM", check: readableFile, group: groupConnection},
		{name: "nats-cert", value: "FILE", usage: "client certificate for NATS, PEM", check: readableFile, group: groupConnection},
		{name: "nats-key", value: "FILE", usage: "key of the client certificate, PEM", check: readableFile, group: groupConnection},
		{name: "slot", value: "NAME", def: "outbox", usage: "replication slot", check: checkSlot, group: groupConnection},
		{name: "publication", value: "NAME", defText: "the slot's name", usage: "publication", check: checkPublication, group: groupConnection},
		{name: "table", value: "NAME", def: "public.outbox", usage: "outbox table, partitioned or not; quoted names allowed", check: checkTable, group: groupConnection},
		{name: "columns", value: "MAP", usage: `columns of another table: event_id=id,aggregate_type=aggregatetype,... or "debezium"`, check: checkColumns, group: groupConnection},
		{name: "stream", value: "NAME", def: "OUTBOX", usage: "JetStream stream", check: checkStream, group: groupConnection},
		{name: "subject", value: "TEMPLATE", def: "outbox.{aggregate_type}.{event_type}", usage: "subject of an event; any mapped column in braces", check: checkSubject, group: groupConnection},
		{name: "source", value: "NAME", defText: "the slot's name", usage: "name of this outbox in the stream", check: checkSource, group: groupConnection},
		{name: "log-format", value: "FORMAT", defText: "text on a terminal, else json", usage: "text or json", check: oneOf("text", "json"), group: groupOutput},
		{name: "log-level", value: "LEVEL", def: "info", usage: "debug, info, warn or error", check: oneOf("debug", "info", "warn", "error"), group: groupOutput},
	}
}

// allCommon names each common setting, for commands that speak to no server.
func allCommon() []string {
	var names []string
	for _, s := range commonSettings() {
		names = append(names, s.name)
	}
	return names
}

// forwardingSettings are those of commands that publish: start and dev.
func forwardingSettings() []setting {
	return []setting{
		{name: "format", value: "FORMAT", def: "envelope", usage: "envelope, payload (the column's bytes) or cloudevents (binary mode)", check: oneOf("envelope", "payload", "cloudevents"), group: groupForwarding},
		{name: "headers", value: "MODE", defText: "minimal with envelope, else full", usage: "full, or minimal: without the attribute headers that the body holds anyway", check: oneOf("full", "minimal"), group: groupForwarding},
		{name: "content-type", value: "TYPE", defText: "by format and column", usage: "overrides Content-Type", check: checkContentType, group: groupForwarding},
		{name: "messages", usage: `also forward transactional logical messages with prefix "outbox"`, group: groupForwarding},
		{name: "adopt", usage: "go on although the stream knows --source with another system identifier (after an upgrade or a migration)", group: groupForwarding},
		{name: "on-poison", value: "POLICY", def: "dead-letter", usage: "what becomes of an event that can never be published: dead-letter, hold-aggregate (later events of that aggregate wait with it) or halt", check: oneOf("dead-letter", "hold-aggregate", "halt"), group: groupForwarding},
		{name: "max-in-flight", value: "N", def: "4096", usage: "events published and not yet acknowledged", check: integerBetween(1, 65536), group: groupForwarding},
		{name: "max-in-flight-bytes", value: "SIZE", def: "32MiB", usage: "the same in bytes; also bounds memory inside one huge transaction", check: sizeBetween(kib, gib), group: groupForwarding},
		{name: "ack-timeout", value: "DURATION", def: "5s", usage: "how long one publish may stay unanswered", check: durationBetween(10*time.Millisecond, 10*time.Minute), group: groupForwarding},
		{name: "rate", value: "N", def: "none", usage: "most events a second", check: orWord("none", positiveRate), group: groupForwarding},
		{name: "status-interval", value: "DURATION", def: "1s", usage: "how often PostgreSQL is told the position", check: durationBetween(10*time.Millisecond, 10*time.Minute), group: groupForwarding},
		{name: "takeover-after", value: "DURATION", def: "10s", usage: "a standby takes over when the leader has been silent for this long; off waits for the server", check: orWord("off", durationBetween(time.Second, 24*time.Hour)), group: groupForwarding},
		{name: "http", value: "ADDRESS", def: "127.0.0.1:9477", usage: "metrics, health and the live page; off turns it off", check: orWord("off", checkListenAddress), group: groupForwarding},
		{name: "shutdown-timeout", value: "DURATION", def: "10s", usage: "grace for draining after the first signal", check: durationBetween(0, 24*time.Hour), group: groupForwarding},
	}
}

// streamSettings describe a stream that is to be made: setup and stream create.
func streamSettings() []setting {
	return []setting{
		{name: "replicas", value: "N", def: "1", usage: "copies of the stream: 1, 3 or 5", check: oneOf("1", "3", "5"), group: groupCommand},
		{name: "duplicate-window", value: "DURATION", def: "2m", usage: "how long the stream remembers message ids", check: durationBetween(100*time.Millisecond, 10*365*24*time.Hour), group: groupCommand},
		{name: "max-age", value: "DURATION", def: "none", usage: "the stream drops messages older than this", check: orWord("none", durationBetween(100*time.Millisecond, 100*365*24*time.Hour)), group: groupCommand},
		{name: "max-bytes", value: "SIZE", def: "none", usage: "the stream drops its oldest messages above this size", check: orWord("none", sizeBetween(kib, 1<<20*tib)), group: groupCommand},
	}
}

func jsonSetting() setting {
	return setting{name: "json", usage: "print one JSON document on standard output", group: groupOutput}
}

func dryRunSetting(usage string) setting {
	return setting{name: "dry-run", usage: usage, group: groupCommand}
}

func yesSetting() setting {
	return setting{name: "yes", usage: "do it: without this, or --dry-run, the command refuses", group: groupCommand}
}
