package metrics

import (
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const namespace = "outbox_cdc_"

// optional is a gauge that is absent while its value is not known.
type optional struct {
	desc *prometheus.Desc
	bits atomic.Uint64 // of the float64; NaN while not known
}

func newOptional(name, help string) *optional {
	o := &optional{desc: describe(name, help)}
	o.set(math.NaN())
	return o
}

func (o *optional) set(v float64) { o.bits.Store(math.Float64bits(v)) }

func (o *optional) setPointer(v *float64) {
	if v == nil {
		o.set(math.NaN())
		return
	}
	o.set(*v)
}

// Describe implements prometheus.Collector.
func (o *optional) Describe(ch chan<- *prometheus.Desc) { ch <- o.desc }

// Collect implements prometheus.Collector.
func (o *optional) Collect(ch chan<- prometheus.Metric) {
	if v := math.Float64frombits(o.bits.Load()); !math.IsNaN(v) {
		ch <- prometheus.MustNewConstMetric(o.desc, prometheus.GaugeValue, v)
	}
}

// nobodyWaits is the value of age.since when nothing is unacknowledged.
const nobodyWaits = math.MinInt64

// age is a gauge of the time that has passed since a moment. It is kept as the
// distance from base, so that setting it allocates nothing.
type age struct {
	desc  *prometheus.Desc
	now   func() time.Time
	base  time.Time
	since atomic.Int64 // nanoseconds after base, or nobodyWaits
}

func newAge(name, help string, now func() time.Time) *age {
	a := &age{desc: describe(name, help), now: now, base: now()}
	a.set(time.Time{})
	return a
}

func (a *age) set(since time.Time) {
	if since.IsZero() {
		a.since.Store(nobodyWaits)
		return
	}
	a.since.Store(int64(since.Sub(a.base)))
}

// Describe implements prometheus.Collector.
func (a *age) Describe(ch chan<- *prometheus.Desc) { ch <- a.desc }

// Collect implements prometheus.Collector.
func (a *age) Collect(ch chan<- prometheus.Metric) {
	seconds := 0.0
	if since := a.since.Load(); since != nobodyWaits {
		seconds = max(a.now().Sub(a.base)-time.Duration(since), 0).Seconds()
	}
	ch <- prometheus.MustNewConstMetric(a.desc, prometheus.GaugeValue, seconds)
}

// stateSet is one gauge a state, of which at most one is 1 in any scrape: the state
// is a single number, not several gauges that are changed one after the other.
type stateSet struct {
	desc    *prometheus.Desc
	current atomic.Int32 // index in stateNames; -1 for none
}

func newStateSet() *stateSet {
	s := &stateSet{desc: describe("state", "1 for the state that the forwarder is in, 0 for the others.", "state")}
	s.current.Store(-1)
	return s
}

func (s *stateSet) set(name string) { s.current.Store(int32(slices.Index(stateNames[:], name))) }

// Describe implements prometheus.Collector.
func (s *stateSet) Describe(ch chan<- *prometheus.Desc) { ch <- s.desc }

// Collect implements prometheus.Collector.
func (s *stateSet) Collect(ch chan<- prometheus.Metric) {
	current := int(s.current.Load())
	for i, name := range stateNames {
		v := 0.0
		if i == current {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, v, name)
	}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(namespace+name, help, labels, nil)
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: namespace + name, Help: help})
}

func counterVec(name, help, label string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: namespace + name, Help: help}, []string{label})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: namespace + name, Help: help})
}

func histogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: namespace + name, Help: help, Buckets: buckets})
}

// count keeps a counter from being asked to go down, which would panic.
func count(n int) float64 { return float64(max(n, 0)) }

func buildInfo(version, revision string) prometheus.Collector {
	if revision == "" {
		revision = recordedRevision()
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: namespace + "build_info",
		Help: "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{
			"version": version, "goversion": runtime.Version(), "revision": revision,
		},
	})
	g.Set(1)
	return g
}

// recordedRevision returns the commit that the toolchain noted in the binary, else
// "unknown".
func recordedRevision() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
