package cli

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/outbox-cdc/outbox-cdc/internal/deadletter"
	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/replication"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

func deadLetterCommand() command {
	return command{
		name: "dead-letter", usage: "list, show, retry, discard: events that could not be published",
		long: "An event that the stream will never accept as it is becomes a dead letter: a row of the table\n" +
			"outbox_dead_letter. With --on-poison hold-aggregate later events of its aggregate wait behind it.",
		example: "outbox-cdc dead-letter list --slot outbox",
		commands: []command{
			{
				name: "list", usage: "the open ones, or those that the flags choose; no payload",
				example:  "outbox-cdc dead-letter list --reason held --json",
				settings: append(letterSettings("those that are resolved too"), jsonSetting()),
				run:      runDeadLetterList,
			},
			{
				name: "show", usage: "one with all that is kept of it, the payload too",
				long:     "With --json one object a line: payload is text, or payload_base64 where it is not UTF-8.",
				example:  "outbox-cdc dead-letter show --all --slot outbox",
				settings: append(letterSettings("all, those that are resolved too"), jsonSetting()),
				run:      runDeadLetterShow,
			},
			{
				name: "retry", usage: "publish the chosen ones, and what waits behind them",
				long: "Makes their messages anew, with today's configuration, and publishes each with the events that wait\n" +
					"behind it, in order. What is still refused stays a dead letter, with one attempt more. The forwarder\n" +
					"that runs does it; if none runs, this command holds the slot meanwhile, and moves nothing.",
				example:  "outbox-cdc dead-letter retry --all --slot outbox",
				settings: slices.Concat(letterSettings("all that are open"), []setting{freshIDsSetting(), jsonSetting()}, publishingSettings()),
				run:      runDeadLetterRetry,
			},
			{
				name: "discard", usage: "never publish the chosen ones",
				long: "What is lost: the event never comes into the stream. The letter stays in the table, resolved, with\n" +
					"the reason that you give. Events that wait behind it and are not chosen are published, as by retry.",
				example: "outbox-cdc dead-letter discard --reason message-too-large --reason-text 'of the load test' --slot outbox",
				settings: append(letterSettings("all that are open"),
					slices.Concat([]setting{{name: "reason-text", value: "TEXT", usage: "why, for whoever looks at it later", group: groupCommand}, jsonSetting()}, publishingSettings())...),
				run: runDeadLetterDiscard,
			},
		},
	}
}

// letterSettings choose dead letters.
func letterSettings(all string) []setting {
	return append(selectionSettings(),
		setting{name: "reason", value: "CODE", usage: "those of this reason code, such as message-too-large or held", check: oneOf(letterReasons()...), group: groupCommand},
		setting{name: "all", usage: all, group: groupCommand})
}

// letterReasons are all reason codes that a letter may have.
func letterReasons() []string {
	return []string{
		deadletter.ReasonHeld, sink.PoisonMalformed, sink.PoisonEventIDNull, sink.PoisonEventIDEmpty, sink.PoisonSubjectInvalid, sink.PoisonSubjectReserved,
		sink.PoisonSubjectTooLong, sink.PoisonSubjectUncover, sink.PoisonHeadersInvalid, sink.PoisonHeadersTooLarge, sink.PoisonNotUTF8, sink.PoisonNotJSON,
		sink.PoisonNotNumber, sink.PoisonBytea, sink.PoisonTooLarge, sink.PoisonRefused,
	}
}

// letterFilter is what the settings choose; chosen is false when none was given.
func (in *invocation) letterFilter() (f deadletter.Filter, chosen bool) {
	typ, id, _ := in.aggregate()
	f = deadletter.Filter{SourceName: in.source(), EventIDs: in.list("event-id"), Aggregate: deadletter.Aggregate{Type: typ, ID: id}, ReasonCode: in.str("reason")}
	return f, len(f.EventIDs) > 0 || f.Aggregate != (deadletter.Aggregate{}) || f.ReasonCode != "" || in.on("all")
}

// needLetters is letterFilter for a command that does nothing without a choice.
func (in *invocation) needLetters() (deadletter.Filter, error) {
	f, chosen := in.letterFilter()
	if !chosen {
		return f, fault.NewUsage(in.command+" needs --event-id, --aggregate, --reason or --all", "outbox-cdc dead-letter list"+in.flags()+" shows what there is")
	}
	return f, nil
}

// withLetters connects and runs work. A table that is not there holds none.
func (in *invocation) withLetters(ctx context.Context, work func(*deadletter.Store) error) error {
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		return work(deadletter.NewStore(admin, in.table().Schema))
	})
}

func runDeadLetterList(ctx context.Context, in *invocation) error {
	filter, chosen := in.letterFilter()
	filter.OpenOnly = !chosen
	return in.withLetters(ctx, func(store *deadletter.Store) error {
		if in.on("json") {
			return in.listJSON(ctx, store, filter)
		}
		w := tabwriter.NewWriter(in.stdout, 0, 0, 2, ' ', 0)
		n := 0
		err := store.Each(ctx, filter, func(l deadletter.Letter) error {
			if n++; n == 1 {
				if err := printf(w, "ID\tEVENT\tAGGREGATE\tREASON\tATTEMPTS\tDEAD SINCE\tSTATE\n"); err != nil {
					return err
				}
			}
			return printf(w, "%d\t%s\t%s/%s\t%s\t%d\t%s\t%s\n", l.ID, textOr(l.EventID, "?"), textOr(l.AggregateType, ""), textOr(l.AggregateID, ""),
				l.ReasonCode, l.Attempts, l.DeadAt.Format(time.RFC3339), letterState(l))
		})
		if err != nil {
			return err
		}
		if n == 0 {
			return printf(in.stdout, "no dead letters\n")
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("write the list: %w", err)
		}
		return nil
	})
}

// listJSON writes one array, a letter at a time: there may be many.
func (in *invocation) listJSON(ctx context.Context, store *deadletter.Store, filter deadletter.Filter) error {
	separator := "[\n"
	err := store.Each(ctx, filter, func(l deadletter.Letter) error {
		line, err := json.Marshal(l)
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		defer func() { separator = ",\n" }()
		return printf(in.stdout, "%s  %s", separator, line)
	})
	if err != nil {
		return err
	}
	if separator == "[\n" {
		return printf(in.stdout, "[]\n")
	}
	return printf(in.stdout, "\n]\n")
}

func letterState(l deadletter.Letter) string {
	switch {
	case !l.Open():
		return textOr(l.Resolution, "resolved")
	case l.HeldBehind != nil:
		return fmt.Sprintf("held behind %d", *l.HeldBehind)
	default:
		return "open"
	}
}

// shownLetter is a letter with its payload.
type shownLetter struct {
	deadletter.Letter
	Payload       *string `json:"payload,omitempty"`
	PayloadBase64 string  `json:"payload_base64,omitempty"`
}

func runDeadLetterShow(ctx context.Context, in *invocation) error {
	filter, err := in.needLetters()
	if err != nil {
		return err
	}
	return in.withLetters(ctx, func(store *deadletter.Store) error {
		letters, err := store.List(ctx, filter)
		if err != nil {
			return err
		}
		if len(letters) == 0 && !in.on("all") {
			return fault.NewOperator("dead-letter-missing", "there is no such dead letter of source "+filter.SourceName, "outbox-cdc dead-letter list --all"+in.flags()+" shows all there are", nil)
		}
		for _, l := range letters {
			payload, err := store.Payload(ctx, l.ID)
			if err != nil {
				return err
			}
			if err := in.showLetter(l, payload); err != nil {
				return err
			}
		}
		return nil
	})
}

func (in *invocation) showLetter(l deadletter.Letter, payload []byte) error {
	shown := shownLetter{Letter: l}
	switch {
	case payload == nil:
	case utf8.Valid(payload):
		text := string(payload)
		shown.Payload = &text
	default:
		shown.PayloadBase64 = base64.StdEncoding.EncodeToString(payload)
	}
	if in.on("json") {
		line, err := json.Marshal(shown)
		if err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
		return printf(in.stdout, "%s\n", line)
	}
	var b strings.Builder
	row := func(name, text string) { fmt.Fprintf(&b, "  %-12s %s\n", name, text) }
	fmt.Fprintf(&b, "dead letter %d: %s\n", l.ID, letterState(l))
	row("event", textOr(l.EventID, "NULL"))
	row("aggregate", textOr(l.AggregateType, "")+"/"+textOr(l.AggregateID, ""))
	row("subject", textOr(l.Subject, "none"))
	row("position", l.Position)
	row("reason", l.ReasonCode+": "+l.Reason)
	row("attempts", fmt.Sprint(l.Attempts))
	row("dead since", l.DeadAt.Format(time.RFC3339))
	if l.ResolvedAt != nil {
		row("resolved", l.ResolvedAt.UTC().Format(time.RFC3339))
	}
	if l.Headers != nil {
		row("headers", string(l.Headers))
	}
	switch {
	case payload == nil:
		row("payload", "NULL")
	case shown.Payload != nil:
		row("payload", *shown.Payload)
	default:
		row("payload", fmt.Sprintf("%d bytes, base64: %s", len(payload), shown.PayloadBase64))
	}
	return printf(in.stdout, "%s", b.String())
}

// discardDocument is the JSON of dead-letter discard.
type discardDocument struct {
	Selected  int `json:"selected"`
	Discarded int `json:"discarded"`
	// Released are events that waited behind them and are in the stream now.
	Released int64 `json:"released"`
}

func runDeadLetterDiscard(ctx context.Context, in *invocation) error {
	filter, err := in.needLetters()
	if err != nil {
		return err
	}
	reason := strings.TrimSpace(in.str("reason-text"))
	if reason == "" {
		return fault.NewUsage(in.command+" needs --reason-text", "say why these events are never to be published; it is kept with the dead letter")
	}
	filter.OpenOnly = true
	return in.withAdmin(ctx, func(admin *replication.Admin) error {
		store := deadletter.NewStore(admin, in.table().Schema)
		letters, err := store.List(ctx, filter)
		if err != nil {
			return err
		}
		if len(letters) == 0 && !in.on("all") {
			return in.noOpenLetter(filter)
		}
		document := discardDocument{Selected: len(letters)}
		var heads []int64 // that others wait for
		// Those that wait come behind what they wait for: newest first, nothing waits any more.
		for _, l := range slices.Backward(letters) {
			d, err := store.Discard(ctx, l.ID, reason)
			if err != nil {
				return err
			}
			if d.Held > 0 {
				heads = append(heads, l.ID)
			}
			if d.Done {
				document.Discarded++
			}
		}
		var failure error
		if len(heads) > 0 {
			failure = in.discardHeads(ctx, admin, heads, reason, &document)
		}
		if in.on("json") {
			err = printJSON(in.stdout, document)
		} else {
			err = in.printDiscarded(document)
		}
		return errors.Join(failure, err)
	})
}

func (in *invocation) printDiscarded(d discardDocument) error {
	if d.Released > 0 {
		return printf(in.stdout, "%d of %d dead letters discarded, %d events that waited behind them published\n", d.Discarded, d.Selected, d.Released)
	}
	return printf(in.stdout, "%d of %d dead letters discarded\n", d.Discarded, d.Selected)
}
