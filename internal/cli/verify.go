package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/outbox-cdc/outbox-cdc/internal/audit"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

const verifyHelp = `Compares the rows of the table with the messages of the stream by event id, over headers
only. Exit code 0 when nothing is missing, nothing is there twice and nothing out of order, else 3.

Rows that the slot has not confirmed yet are waited for (--settle); where no forwarder runs,
what the slot has yet to send is read from it and is pending, not missing. Dead letters, discarded
and held ones count as settled. Rows older than the oldest message that the stream still holds are
aged out. Events without a row (pruned, logical messages) are unknown and never fail it.
Messages that were sent again on request are neither duplicates nor out of order.

With --repair the forwarder that runs publishes what is missing, between two transactions; if none
runs, this command holds the slot meanwhile and moves nothing. Give the flags under Forwarding as
start has them. Such messages carry Outbox-Republished; the result is that of the second comparison.

The result is JSON, unless standard output is a terminal. Both sides are kept in temporary
files (TMPDIR), about 100 bytes a row; memory does not grow with the table.`

func verifyCommand() command {
	return command{
		name: "verify", usage: "compare the table with the stream; --repair publishes what is missing",
		long:    verifyHelp,
		example: "outbox-cdc verify --since 24h --json",
		settings: append(append(whenSettings(), aggregateSetting(),
			setting{name: "repair", usage: "publish what is missing, in the order of the table, and compare again", group: groupCommand},
			setting{name: "include-aged-out", usage: "count rows as missing that are older than what the stream holds", group: groupCommand},
			setting{name: "settle", value: "DURATION", def: "10s", usage: "how long a running forwarder may take to deliver what is in the table now", check: durationBetween(0, 24*time.Hour), group: groupCommand},
			jsonSetting(),
		), publishingSettings()...),
		run: runVerify,
	}
}

func runVerify(ctx context.Context, in *invocation) error {
	cfg, err := in.auditConfig()
	if err != nil {
		return err
	}
	servers, closeAll, err := in.openServers(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	if in.on("repair") {
		if err := holdable(ctx, servers.Slot, cfg.Names, in); err != nil {
			return err
		}
	}
	document, err := in.verify(ctx, servers, cfg)
	if err == nil {
		err = in.printVerified(document)
	}
	if err != nil {
		return err
	}
	return in.judged(document)
}

func (in *invocation) verify(ctx context.Context, servers audit.Servers, cfg audit.Config) (document audit.Document, err error) {
	found, err := audit.Verify(ctx, servers, cfg)
	if err != nil {
		return audit.Document{}, err //nolint:wrapcheck // it is the user's sentence already, or explain makes it one
	}
	defer func() { err = errors.Join(err, found.Close()) }()
	if in.on("repair") {
		return in.repair(ctx, servers, cfg, found)
	}
	return found.Document, nil
}

// openServers connects to both sides; the caller calls closeAll.
func (in *invocation) openServers(ctx context.Context) (servers audit.Servers, closeAll func(), err error) {
	if servers.Table, err = in.openAdmin(ctx); err != nil {
		return audit.Servers{}, nil, err
	}
	if servers.Slot, err = in.openAdmin(ctx); err != nil {
		servers.Table.Close()
		return audit.Servers{}, nil, err
	}
	if servers.NATS, err = in.dialNATS(ctx); err != nil {
		servers.Table.Close()
		servers.Slot.Close()
		return audit.Servers{}, nil, err
	}
	return servers, func() {
		servers.NATS.Close()
		servers.Slot.Close()
		servers.Table.Close()
	}, nil
}

func (in *invocation) auditConfig() (audit.Config, error) {
	names, err := in.names()
	if err != nil {
		return audit.Config{}, err
	}
	now := time.Now()
	filter := audit.Filter{Since: in.when("since", now), Until: in.when("until", now)}
	filter.AggregateType, filter.AggregateID, filter.HasAggregate = in.aggregate()
	if !filter.Until.IsZero() && !filter.Since.Before(filter.Until) {
		return audit.Config{}, fault.NewUsage("--since is not before --until: no row lies between them", "a duration is that long ago: --since 48h --until 24h")
	}
	return audit.Config{
		Names: names, Stream: in.str("stream"), Source: in.source(), Filter: filter,
		IncludeAgedOut: in.on("include-aged-out"), Settle: in.duration("settle"),
		NeedLetters: in.on("repair"),
		Note:        func(text string) { in.tell("note", text) },
		Warn:        func(text string) { in.tell("warning", text) },
		Progress:    in.progress(),
	}, nil
}

// tell says what a person has to know to read the document.
func (in *invocation) tell(kind, text string) {
	begin := ""
	if in.terminal {
		begin = clearLine
	}
	_ = printf(in.stderr, "%s%s: %s\n", begin, kind, text) // there is no other place to say so
}

// clearLine goes to the start of a terminal's line and empties it.
const clearLine = "\r\x1b[K"

// progress shows on a terminal how far a long command is.
func (in *invocation) progress() func(what string, done, total uint64) {
	if !in.terminal {
		return nil
	}
	return func(what string, done, total uint64) {
		of := ""
		if total > 0 {
			of = " of " + humanize.Comma(int64(total))
		}
		_ = printf(in.stderr, clearLine+"%s %s%s", humanize.Comma(int64(done)), what, of) // a lost line of progress harms nobody
	}
}

// clearProgress removes the line of progress.
func (in *invocation) clearProgress() error {
	if !in.terminal {
		return nil
	}
	return printf(in.stderr, clearLine)
}

func (in *invocation) printVerified(d audit.Document) error {
	if err := in.clearProgress(); err != nil {
		return err
	}
	if in.on("json") || !isTerminal(in.stdout) {
		return printJSON(in.stdout, d)
	}
	return printf(in.stdout, "%s", verifiedText(d))
}

// verifiedText is the form for a person.
func verifiedText(d audit.Document) string {
	var b strings.Builder
	verdict := "ok"
	if !d.OK {
		verdict = "not ok"
	}
	fmt.Fprintf(&b, "%s: %s rows checked, %s of them in the stream\n", verdict, humanize.Comma(int64(d.Checked)), humanize.Comma(int64(d.InStream)))
	row := func(name string, count int64, meaning string) {
		fmt.Fprintf(&b, "  %-14s %8s  %s\n", name, humanize.Comma(count), meaning)
	}
	row("missing", int64(d.MissingCount), "rows whose event is not in the stream")
	for _, e := range d.Missing {
		fmt.Fprintf(&b, "    %s\n", e.EventID)
	}
	row("duplicates", int64(d.DuplicateCount), "events that were stored more than once")
	for _, e := range d.Duplicates {
		fmt.Fprintf(&b, "    %s at %s\n", e.EventID, sequencesText(e.Sequences))
	}
	row("inversions", int64(d.OrderInversionCount), "events that were stored behind later ones")
	for _, e := range d.OrderInversions {
		fmt.Fprintf(&b, "    aggregate %s at %s\n", orUnknown(e.AggregateID), sequencesText(e.Sequences))
	}
	if d.Repaired != nil {
		row("repaired", *d.Repaired, "events published again")
	}
	row("pending", int64(d.PendingCount), "rows that the slot has yet to send")
	row("dead letters", d.DeadLetters, fmt.Sprintf("open; %s events held behind them", humanize.Comma(d.Held)))
	row("aged out", int64(d.AgedOutCount), "rows older than the oldest message of the stream")
	row("unknown", int64(d.UnknownCount), "events in the stream without a row")
	return b.String()
}

func sequencesText(sequences []uint64) string {
	var texts []string
	for _, s := range sequences {
		texts = append(texts, fmt.Sprint(s))
	}
	return "sequence " + strings.Join(texts, ", ")
}

func orUnknown(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

// judged is what a comparison ends the command with.
func (in *invocation) judged(d audit.Document) error {
	if d.OK {
		return nil
	}
	hint := "nothing can be taken back: consumers tell copies by the event id"
	switch {
	case d.MissingCount > 0 && d.Repaired == nil:
		hint = "outbox-cdc verify --repair" + in.flags() + " publishes what is missing"
	case d.MissingCount > 0:
		hint = "lines that begin with refused say what can never be published as it is; outbox-cdc replay --event-id ID" + in.flags() + " publishes one event again"
	}
	return fault.NewOperator("verify", fmt.Sprintf("table %s and stream %s do not agree: %d missing, %d stored more than once, %d out of order",
		in.table(), in.str("stream"), d.MissingCount, d.DuplicateCount, d.OrderInversionCount), hint, nil)
}
