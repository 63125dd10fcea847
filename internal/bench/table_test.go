package bench

import (
	"fmt"
	"slices"
	"strings"
)

// figures are what one run came to.
type figures struct {
	eventsPerSecond float64
	cpu             float64 // microseconds an event, of the forwarder or the bare loop
	peakMiB         float64
	walsenderCPU    float64 // microseconds an event
	natsCPU         float64 // the same, of nats-server
}

// contest is all runs of one program.
type contest struct {
	name string
	runs []figures
}

// median takes each column by itself.
func (c contest) median() figures {
	column := func(of func(figures) float64) float64 {
		values := make([]float64, len(c.runs))
		for i, run := range c.runs {
			values[i] = of(run)
		}
		slices.Sort(values)
		n := len(values)
		return (values[(n-1)/2] + values[n/2]) / 2
	}
	return figures{
		eventsPerSecond: column(func(f figures) float64 { return f.eventsPerSecond }),
		cpu:             column(func(f figures) float64 { return f.cpu }),
		peakMiB:         column(func(f figures) float64 { return f.peakMiB }),
		walsenderCPU:    column(func(f figures) float64 { return f.walsenderCPU }),
		natsCPU:         column(func(f figures) float64 { return f.natsCPU }),
	}
}

// table lists the single runs and the medians.
func table(contests []contest) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%8s  %-10s%10s%15s%10s%20s%22s\n",
		"", "", "events/s", "CPU us/event", "peak MiB", "walsender us/event", "nats-server us/event")
	line := func(label, name string, f figures) {
		fmt.Fprintf(&text, "%8s  %-10s%10.0f%15.2f%10.0f%20.2f%22.2f\n",
			label, name, f.eventsPerSecond, f.cpu, f.peakMiB, f.walsenderCPU, f.natsCPU)
	}
	for i := range contests[0].runs {
		for _, c := range contests {
			line(fmt.Sprintf("run %d", i+1), c.name, c.runs[i])
		}
	}
	for _, c := range contests {
		line("median", c.name, c.median())
	}
	return text.String()
}
