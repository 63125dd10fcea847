package forwarder

import (
	"time"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// Config is all that a forwarder needs to know. The command line checks the values
// before the first connection; the zero value is not usable.
type Config struct {
	// DatabaseURL is a libpq URL or keyword string; empty takes the PG* variables.
	DatabaseURL string
	NATS        sink.ClientConfig

	Slot        string
	Publication string
	Table       decode.TableName
	Columns     decode.Mapping
	// Messages also forwards transactional logical messages with prefix "outbox".
	Messages bool

	Stream  string
	Subject string // template
	Format  sink.Format
	Source  string // name of this outbox in the stream
	// Adopt goes on although the stream knows the source with another system identifier.
	Adopt       bool
	Headers     sink.HeaderMode
	ContentType string // overrides Content-Type when not empty

	OnPoison OnPoison // what becomes of an event that can never be published

	InFlightMax      int           // events published and not yet acknowledged
	InFlightMaxBytes int64         // the same in bytes; also bounds what waits to be published
	AckTimeout       time.Duration // how long one publish may stay unanswered
	RateMax          float64       // events a second; 0 is no limit
	StatusInterval   time.Duration // how often PostgreSQL is told the position
	TakeoverAfter    time.Duration // 0 waits for the server
	ShutdownTimeout  time.Duration // grace for draining

	// RequestsOnly holds the slot for the requests of commands, and leaves what it brings
	// to the next forwarder: nothing of it is published or confirmed.
	RequestsOnly bool

	template sink.Template
}

// statusesBeforeTakeover is how many statuses a leader sends, at the least, in the time
// after which a standby takes its silence for its end.
const statusesBeforeTakeover = 4

// withTemplate reads the subject template, and has a status sent often enough for a
// standby with the same configuration to see that we live. The error is one for the user.
func (c Config) withTemplate() (Config, error) {
	if c.TakeoverAfter > 0 {
		c.StatusInterval = min(c.StatusInterval, c.TakeoverAfter/statusesBeforeTakeover)
	}
	t, err := sink.ParseTemplate(c.Subject, c.Columns)
	if err != nil {
		return c, fault.NewUsage("--subject: "+err.Error(), "use mapped columns in braces, such as outbox.{aggregate_type}.{event_type}")
	}
	c.template = t
	return c, nil
}
