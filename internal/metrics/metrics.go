package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Bounds of the histogram buckets, in seconds. A lone event on a quiet machine
// takes less than a millisecond; after an outage the oldest has waited for minutes.
var (
	commitToAckBuckets = []float64{
		.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800,
	}
	publishBuckets = []float64{
		.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60,
	}
)

// scrapesMax bounds how many scrapes are answered at once; further ones get 503.
const scrapesMax = 4

// Metrics are the figures of one forwarder. All methods may be called from several
// goroutines, do not block, and cannot fail.
type Metrics struct {
	registry *prometheus.Registry

	published       prometheus.Counter
	skipped         [skipReasons]prometheus.Counter
	retries         prometheus.Counter
	deadLetters     map[string]prometheus.Counter
	commitToAck     prometheus.Histogram
	publish         prometheus.Histogram
	inFlightEvents  prometheus.Gauge
	inFlightBytes   prometheus.Gauge
	orderViolations prometheus.Counter
	reconnects      [sides]prometheus.Counter

	oldestUnacked   *age
	deadLettersOpen *optional
	slotLag         *optional
	slotRetained    *optional
	slotSafe        *optional
	confirmedLSN    *optional
	state           *stateSet
}

// New returns the figures of a forwarder of the given build. An empty revision is
// taken from what the toolchain recorded. Nothing is registered outside of it.
func New(version, revision string) *Metrics {
	return newMetrics(version, revision, time.Now)
}

func newMetrics(version, revision string, now func() time.Time) *Metrics {
	m := &Metrics{
		registry:        prometheus.NewRegistry(),
		published:       counter("events_published_total", "Events stored in the stream for the first time and acknowledged by it."),
		retries:         counter("publish_retries_total", "Messages sent again after a failure, a refusal or a timeout."),
		commitToAck:     histogram("commit_to_ack_seconds", "Seconds from the commit in PostgreSQL, by its own clock, to the acknowledgement by JetStream.", commitToAckBuckets),
		publish:         histogram("publish_seconds", "Seconds from sending a message to its acknowledgement by JetStream.", publishBuckets),
		inFlightEvents:  gauge("in_flight_events", "Events published and not yet acknowledged."),
		inFlightBytes:   gauge("in_flight_bytes", "Bytes of the events published and not yet acknowledged."),
		orderViolations: counter("order_violations_total", "Events stored in the stream behind a later one of the same outbox."),
		oldestUnacked:   newAge("oldest_unacked_seconds", "Age of the oldest event that is not yet acknowledged; 0 when there is none. It grows while nothing moves.", now),
		deadLettersOpen: newOptional("dead_letters", "Dead letters that are not resolved, without the events held behind them; absent until the table has been read."),
		slotLag:         newOptional("slot_lag_bytes", "Bytes of WAL written by the server and not yet confirmed by the slot; absent while unknown."),
		slotRetained:    newOptional("slot_retained_bytes", "Bytes of WAL that the server keeps for the slot; absent while unknown."),
		slotSafe:        newOptional("slot_safe_bytes", "Bytes of WAL that may still be written before the slot is in danger of being lost; absent while unknown or without a limit."),
		confirmedLSN:    newOptional("confirmed_lsn", "Position up to which PostgreSQL was told that everything is settled, as a number; absent until there is one."),
		state:           newStateSet(),
	}
	m.registry.MustRegister(m.published, m.retries, m.commitToAck, m.publish, m.inFlightEvents, m.inFlightBytes, m.orderViolations,
		m.oldestUnacked, m.deadLettersOpen, m.slotLag, m.slotRetained, m.slotSafe, m.confirmedLSN, m.state,
		buildInfo(version, revision),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.registerLabelled()
	return m
}

// registerLabelled makes every series of the counters with a label at once, so that
// each begins at 0 and a rate over the first increment is right.
func (m *Metrics) registerLabelled() {
	skipped := counterVec("events_skipped_total", "Events not stored again because the stream holds them.", "reason")
	for r := range m.skipped {
		m.skipped[r] = skipped.WithLabelValues(SkipReason(r).String())
	}
	reconnects := counterVec("reconnects_total", "Connections made again after one was lost.", "side")
	for s := range m.reconnects {
		m.reconnects[s] = reconnects.WithLabelValues(Side(s).String())
	}
	dead := counterVec("dead_letters_total", "Events stored as a dead letter.", "reason")
	m.deadLetters = make(map[string]prometheus.Counter, len(deadLetterReasons)+1)
	for _, r := range append(DeadLetterReasons(), otherReason) {
		m.deadLetters[r] = dead.WithLabelValues(r)
	}
	m.registry.MustRegister(skipped, reconnects, dead)
}

// AddPublished counts n events that the stream stored and acknowledged.
func (m *Metrics) AddPublished(n int) { m.published.Add(count(n)) }

// AddSkipped counts n events that were not stored again.
func (m *Metrics) AddSkipped(reason SkipReason, n int) { m.skipped[reason].Add(count(n)) }

// AddRetries counts n messages that were sent again.
func (m *Metrics) AddRetries(n int) { m.retries.Add(count(n)) }

// AddOrderViolations counts n events that were stored behind a later one.
func (m *Metrics) AddOrderViolations(n int) { m.orderViolations.Add(count(n)) }

// AddReconnect counts one connection that was made again.
func (m *Metrics) AddReconnect(side Side) { m.reconnects[side].Inc() }

// AddDeadLetter counts one event stored as a dead letter. A reason that is not in
// DeadLetterReasons is counted as "other".
func (m *Metrics) AddDeadLetter(reason string) {
	c, ok := m.deadLetters[reason]
	if !ok {
		c = m.deadLetters[otherReason]
	}
	c.Inc()
}

// SetDeadLetters says how many dead letters are not resolved.
func (m *Metrics) SetDeadLetters(open int64) { m.deadLettersOpen.set(float64(open)) }

// ObserveCommitToAck notes the time from the commit of one event to its
// acknowledgement. The clocks of two machines differ: less than 0 counts as 0.
func (m *Metrics) ObserveCommitToAck(seconds float64) { m.commitToAck.Observe(max(seconds, 0)) }

// ObservePublish notes the time from sending one message to its acknowledgement.
func (m *Metrics) ObservePublish(seconds float64) { m.publish.Observe(max(seconds, 0)) }

// SetInFlight says what is published and not yet acknowledged.
func (m *Metrics) SetInFlight(events int, bytes int64) {
	m.inFlightEvents.Set(float64(events))
	m.inFlightBytes.Set(float64(bytes))
}

// SetOldestUnacked says since when the oldest unacknowledged event has been waiting;
// the zero time says that there is none. The age is worked out at each scrape, so
// that it grows also while the forwarder stands still.
func (m *Metrics) SetOldestUnacked(since time.Time) { m.oldestUnacked.set(since) }

// SetSlot says what the server reports of the slot, in bytes. Nil is a figure that is
// not known: the server is away, too old, or has no limit (safeBytes without
// max_slot_wal_keep_size). It is then left out of the output, since 0 would read as
// "no lag" or as "about to be lost". The values are copied.
func (m *Metrics) SetSlot(lagBytes, retainedBytes, safeBytes *float64) {
	m.slotLag.setPointer(lagBytes)
	m.slotRetained.setPointer(retainedBytes)
	m.slotSafe.setPointer(safeBytes)
}

// SetConfirmedLSN says which position PostgreSQL was told last. A double holds it
// exactly up to 2^53, which is 8 PiB of WAL.
func (m *Metrics) SetConfirmedLSN(confirmedLSN uint64) { m.confirmedLSN.set(float64(confirmedLSN)) }

// SetState says in which state the forwarder is, by a name out of States. With any
// other name no state is 1.
func (m *Metrics) SetState(state string) { m.state.set(state) }

// Gatherer returns the collected figures, for tests and for the status document.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// Handler serves the figures in the text formats of Prometheus.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorHandling:       promhttp.HTTPErrorOnError,
		MaxRequestsInFlight: scrapesMax,
	})
}
