package cli

import (
	"strconv"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/forwarder"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// natsConfig says how to reach NATS.
func (in *invocation) natsConfig() sink.ClientConfig {
	return sink.ClientConfig{
		URL:       in.str("nats-url"),
		CredsFile: in.str("nats-creds"),
		NKeyFile:  in.str("nats-nkey-file"),
		CAFile:    in.str("nats-ca"),
		CertFile:  in.str("nats-cert"),
		KeyFile:   in.str("nats-key"),
		Name:      in.applicationName(),
	}
}

// applicationName is what the servers show of our connections.
func (in *invocation) applicationName() string { return "outbox-cdc " + in.str("slot") }

// forwarderConfig builds the forwarder's configuration. The command must take
// forwardingSettings.
func (in *invocation) forwarderConfig() (forwarder.Config, error) {
	columns, err := in.mapping()
	if err != nil {
		return forwarder.Config{}, err
	}
	format, err := sink.ParseFormat(in.str("format"))
	if err != nil {
		return forwarder.Config{}, fault.NewUsage("--format: "+err.Error(), "")
	}
	headers, err := sink.ParseHeaderMode(in.str("headers"), format)
	if err != nil {
		return forwarder.Config{}, fault.NewUsage("--headers: "+err.Error(), "")
	}
	onPoison, err := forwarder.ParseOnPoison(in.str("on-poison"))
	if err != nil {
		return forwarder.Config{}, fault.NewUsage("--on-poison: "+err.Error(), "")
	}
	cfg := forwarder.Config{
		DatabaseURL: in.str("database-url"),
		NATS:        in.natsConfig(),
		Slot:        in.str("slot"),
		Publication: in.publication(),
		Table:       in.table(),
		Columns:     columns,
		Messages:    in.on("messages"),

		Stream:      in.str("stream"),
		Subject:     in.str("subject"),
		Format:      format,
		Source:      in.source(),
		Adopt:       in.on("adopt"),
		Headers:     headers,
		ContentType: in.str("content-type"),
		OnPoison:    onPoison,

		InFlightMax:      in.integer("max-in-flight"),
		InFlightMaxBytes: in.size("max-in-flight-bytes"),
		AckTimeout:       in.duration("ack-timeout"),
		StatusInterval:   in.duration("status-interval"),
		TakeoverAfter:    in.duration("takeover-after"),
		ShutdownTimeout:  in.duration("shutdown-timeout"),
	}
	if !in.isWord("rate") {
		cfg.RateMax = must(strconv.ParseFloat(in.str("rate"), 64))
	}
	return cfg, nil
}

// httpAddress is where metrics and health are served; empty for nowhere.
func (in *invocation) httpAddress() string {
	if in.isWord("http") {
		return ""
	}
	return in.str("http")
}
