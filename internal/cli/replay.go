package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/internal/request"
	"github.com/outbox-cdc/outbox-cdc/replication"
)

func replayCommand() command {
	return command{
		name: "replay", usage: "publish chosen events again",
		long: "Publishes rows of the table, or open dead letters, once more, in the order of the table. The\n" +
			"forwarder that runs does it, between two transactions; if none runs, this command holds the slot\n" +
			"meanwhile, and moves nothing. Such messages carry Outbox-Republished. Within the duplicate window\n" +
			"the stream takes the same message id for a duplicate and swallows it: --fresh-ids gives new\n" +
			"message ids, and the event id stays in Outbox-Event-Id. Exit code 3 when not all were stored.\n" +
			"Ctrl-C cancels.",
		example:  "outbox-cdc replay --aggregate order/42 --fresh-ids --dry-run",
		settings: slices.Concat(selectionSettings(), replaySettings(), publishingSettings()),
		run:      runReplay,
	}
}

// selectionSettings choose events by what they are.
func selectionSettings() []setting {
	return []setting{
		{name: "event-id", value: "ID", usage: "the event with this id; may be given several times", repeats: true, check: notEmpty, group: groupCommand},
		aggregateSetting(),
	}
}

func replaySettings() []setting {
	return append(whenSettings(), []setting{
		{name: "dead", usage: "the open dead letters", group: groupCommand},
		freshIDsSetting(),
		dryRunSetting("say how many events are meant, publish nothing"), jsonSetting(),
	}...)
}

// publishingSettings are those that shape messages, for commands that publish when no
// forwarder runs: give them as `start` has them.
func publishingSettings() []setting {
	var out []setting
	for _, s := range forwardingSettings() {
		switch s.name {
		case "format", "headers", "content-type", "adopt", "ack-timeout", "rate":
			out = append(out, s)
		}
	}
	return out
}

func freshIDsSetting() setting {
	return setting{name: "fresh-ids", usage: "give each message a new id, so that the stream does not take it for a duplicate", group: groupCommand}
}

func notEmpty(text string) error {
	if text == "" {
		return fmt.Errorf("is empty")
	}
	return nil
}

// selectionTarget says whose request it is.
func (in *invocation) selectionTarget() request.Target {
	return request.Target{Slot: in.str("slot"), Table: in.table().String(), Stream: in.str("stream")}
}

// selection reads the flags that choose events.
func (in *invocation) selection() request.Selection {
	s := request.Selection{Target: in.selectionTarget(), EventIDs: in.list("event-id")}
	if kind, id, ok := in.aggregate(); ok {
		s.Aggregate = &request.Aggregate{Type: kind, ID: id}
	}
	return s
}

// moment reads a flag of a time; nil when it was not given.
func (in *invocation) moment(name string, now time.Time) *time.Time {
	at := in.when(name, now)
	if at.IsZero() {
		return nil
	}
	return &at
}

// replaySelection checks that exactly one way of choosing was taken.
func (in *invocation) replaySelection() (request.Selection, error) {
	s := in.selection()
	now := time.Now()
	s.Since, s.Until = in.moment("since", now), in.moment("until", now)
	s.Dead, s.FreshIDs = in.on("dead"), in.on("fresh-ids")
	var ways []string
	for _, name := range []string{"event-id", "aggregate", "since", "dead"} {
		if in.given(name) && (name != "dead" || s.Dead) {
			ways = append(ways, "--"+name)
		}
	}
	switch {
	case s.Until != nil && s.Since == nil:
		return s, fault.NewUsage("--until belongs to --since", "give --since too")
	case len(ways) == 0:
		return s, fault.NewUsage("replay needs to know which events", "give --event-id, --aggregate, --since or --dead")
	case len(ways) > 1:
		return s, fault.NewUsage("replay takes one of "+strings.Join(ways, ", ")+", not several", "run it once for each")
	case s.Until != nil && !s.Since.Before(*s.Until):
		return s, fault.NewUsage("--until is not later than --since", "--since is the earlier time")
	}
	return s, nil
}

func runReplay(ctx context.Context, in *invocation) error {
	selection, err := in.replaySelection()
	if err != nil {
		return err
	}
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		names, err := in.names()
		if err != nil {
			return err
		}
		if err := holdable(ctx, admin, names, in); err != nil {
			return err
		}
		var selected int64
		if selection.Dead {
			selected, err = in.countLetters(ctx, admin, deadletter.Filter{SourceName: in.source()})
		} else {
			selected, err = in.countRows(ctx, admin, names, selection)
		}
		if err != nil {
			return err
		}
		if in.on("dry-run") {
			return in.printReport(request.Report{Selected: selected})
		}
		return in.republish(ctx, admin, request.KindReplay, selection, selected)
	})
}

// holdable checks that there is a slot whose holder can publish.
func holdable(ctx context.Context, admin *replication.Admin, names provision.Names, in *invocation) error {
	pg, err := provision.Inspect(ctx, admin, names)
	if err != nil {
		return err //nolint:wrapcheck // it says what was asked
	}
	if pg.Server.InRecovery {
		return in.onStandby()
	}
	return provision.SlotFault(pg, names) //nolint:wrapcheck // it is the user's sentence already
}

// countRows counts the rows that are meant, and refuses event ids that no row has.
func (in *invocation) countRows(ctx context.Context, admin *replication.Admin, names provision.Names, s request.Selection) (int64, error) {
	rows, err := request.OpenRows(ctx, admin, request.Outbox{
		Table: names.Table, Columns: names.Columns, Publication: names.Publication, SourceName: in.source(),
	}, s)
	if err != nil {
		return 0, err //nolint:wrapcheck // it names the table
	}
	if len(s.EventIDs) > 0 {
		missing, err := rows.Missing(ctx)
		if err != nil {
			return 0, err //nolint:wrapcheck // it names the table
		}
		if len(missing) > 0 {
			return 0, fault.NewOperator("event-unknown", fmt.Sprintf("no row of table %s has event id %s", names.Table, listed(missing)),
				"nothing was published; a row that was deleted or pruned cannot be published again", nil)
		}
	}
	return rows.Count(ctx) //nolint:wrapcheck // it names the table
}

// listed names the first few of many.
func listed(ids []string) string {
	const most = 5
	if len(ids) <= most {
		return strings.Join(ids, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(ids[:most], ", "), len(ids)-most)
}

// republish lets a request be carried out and reports what became of the events.
func (in *invocation) republish(ctx context.Context, admin *replication.Admin, kind request.Kind, s request.Selection, selected int64) error {
	if selected == 0 {
		return in.printReport(request.Report{})
	}
	r, err := in.carryOut(ctx, admin, kind, s, selected)
	if r == nil {
		return err
	}
	if err := in.printRefusals(r); err != nil {
		return err
	}
	if reportErr := in.printReport(r.Progress.Report); err == nil {
		err = reportErr
	}
	if err != nil {
		return err
	}
	return notWhole(r.Progress.Report)
}

// printRefusals names the events that were refused, the first ones.
func (in *invocation) printRefusals(r *request.Request) error {
	for _, refusal := range r.Progress.Refusals {
		if err := printf(in.stderr, "refused %s (%s): %s\n", refusal.EventID, refusal.Code, refusal.Reason); err != nil {
			return err
		}
	}
	return nil
}

func (in *invocation) printReport(report request.Report) error {
	if in.on("json") {
		return printJSON(in.stdout, report)
	}
	return printf(in.stdout, "%s events selected, %s stored, %s swallowed as duplicates, %s refused\n",
		humanize.Comma(report.Selected), humanize.Comma(report.Stored), humanize.Comma(report.Swallowed), humanize.Comma(report.Refused))
}

// notWhole is the failure of a report in which not all is stored, or nil.
func notWhole(report request.Report) error {
	switch {
	case report.Whole():
		return nil
	case report.Swallowed > 0:
		return fault.NewOperator("swallowed", fmt.Sprintf("%s of %s events were not stored: the stream takes them for duplicates of what it was sent within its duplicate window",
			humanize.Comma(report.Selected-report.Stored), humanize.Comma(report.Selected)),
			"--fresh-ids gives each message a new id; the event id stays in Outbox-Event-Id, so that inboxes still know it", nil)
	default:
		return fault.NewOperator("refused", fmt.Sprintf("%s of %s events were not stored", humanize.Comma(report.Selected-report.Stored), humanize.Comma(report.Selected)),
			"the lines that begin with refused say why", nil)
	}
}
