package bench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
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

// printTable prints the single runs and the medians.
func printTable(w io.Writer, title string, contests []contest) {
	fmt.Fprintf(w, "\n%s\n", title)
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\t\tevents/s\tCPU us/event\tpeak MiB\twalsender us/event\tnats-server us/event\t")
	line := func(label, name string, f figures) {
		fmt.Fprintf(t, "%s\t%s\t%.0f\t%.2f\t%.0f\t%.2f\t%.2f\t\n",
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
	t.Flush()
}
