package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

func statusCommand() command {
	return command{
		name: "status", usage: "slot, lag, stream and dead letters, once or with --watch",
		long: "Looks at both servers; no forwarder has to run. state is one of streaming, stopped, slot-missing,\n" +
			"slot-lost, not-set-up. With --json, one document; with --watch, one a line.",
		example: "outbox-cdc status --watch",
		settings: []setting{
			{name: "watch", usage: "again and again, until a signal", group: groupCommand},
			{name: "interval", value: "DURATION", def: "2s", usage: "time between two looks", check: durationBetween(50*time.Millisecond, time.Hour), group: groupCommand},
			jsonSetting(),
		},
		run: runStatus,
	}
}

func runStatus(ctx context.Context, in *invocation) error {
	if !in.on("watch") {
		return in.showStatus(ctx)
	}
	ticker := time.NewTicker(in.duration("interval"))
	defer ticker.Stop()
	for {
		if err := in.showStatus(ctx); err != nil && ctx.Err() == nil {
			in.log.Warn("look again later", "error", explain(err).Error())
		}
		select {
		case <-ctx.Done():
			return nil // watching ends with a signal: that is no failure
		case <-ticker.C:
		}
	}
}

// showStatus looks once. When NATS cannot be reached it prints what PostgreSQL tells and
// returns the error.
func (in *invocation) showStatus(ctx context.Context) error {
	status, err := in.readStatus(ctx)
	if status == nil {
		return err
	}
	if printErr := in.printStatus(*status); printErr != nil {
		return printErr
	}
	return err
}

// readStatus asks both servers. Without PostgreSQL it returns nil and why; without NATS
// what PostgreSQL tells, and why the rest is missing.
func (in *invocation) readStatus(ctx context.Context) (*provision.Status, error) {
	names, err := in.names()
	if err != nil {
		return nil, err
	}
	admin, err := in.openAdmin(ctx)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	query := provision.StatusQuery{Names: names, Stream: in.str("stream"), Source: in.source()}
	client, natsErr := in.dialNATS(ctx)
	var status provision.Status
	if natsErr == nil {
		defer client.Close()
		status, natsErr = provision.ReadStatus(ctx, admin, client, query)
	}
	if natsErr != nil {
		if status, err = provision.ReadStatus(ctx, admin, (*sink.Client)(nil), query); err != nil {
			return nil, err
		}
	}
	return &status, natsErr
}

func (in *invocation) printStatus(status provision.Status) error {
	if !in.on("json") {
		home := ""
		if in.on("watch") && isTerminal(in.stdout) {
			home = "\x1b[H\x1b[2J"
		}
		return printf(in.stdout, "%s%s", home, statusText(status))
	}
	if !in.on("watch") {
		return printJSON(in.stdout, status)
	}
	line, err := json.Marshal(status)
	if err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return printf(in.stdout, "%s\n", line)
}

// statusText is the form for a person at night: what is wrong first, then the figures.
func statusText(s provision.Status) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n", s.State, stateMeaning(s))
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("slot", "%s", s.Slot.Name+": "+slotLine(s.Slot))
	switch {
	case !s.Publication.Exists:
		row("publication", "%s: missing", s.Publication.Name)
	default:
		row("publication", "%s: %s", s.Publication.Name, orNone(strings.Join(s.Publication.Tables, ", ")))
	}
	row("stream", "%s: %s", s.Stream.Name, streamLine(s.Stream))
	switch e := s.LastEvent; {
	case s.Stream.Exists == nil:
		row("last event", "unknown")
	case e != nil:
		row("last event", "%s on %s, sequence %d, position %s, %s ago", e.EventID, e.Subject, e.Sequence, e.Position, secondsText(max(0, time.Since(e.StoredAt).Seconds())))
	default:
		row("last event", "none of this outbox in the stream")
	}
	if s.OldestUndeliveredSeconds != nil {
		row("undelivered", "the oldest row waits for %s", secondsText(*s.OldestUndeliveredSeconds))
	} else {
		row("undelivered", "nothing that the table shows")
	}
	row("dead letters", "%s open, %s held behind them, %s requests waiting", countOr(s.DeadLetters, "unknown"), countOr(s.Held, "unknown"), countOr(s.Requests, "unknown"))
	return b.String()
}

func stateMeaning(s provision.Status) string {
	switch s.State {
	case provision.StateStreaming:
		return fmt.Sprintf(": a forwarder holds the slot (process %s on the server)", countPID(s.Slot.ActivePID))
	case provision.StateStopped:
		return ": no forwarder holds the slot; next: outbox-cdc start --slot " + s.Slot.Name
	case provision.StateSlotMissing:
		return ": nothing is delivered, and the server holds back nothing; next: outbox-cdc setup --slot " + s.Slot.Name
	case provision.StateSlotLost:
		return ": the server has removed WAL that the slot needs; next: outbox-cdc slot drop --help"
	case provision.StateNotSetUp:
		return "; next: outbox-cdc setup --dry-run"
	default:
		return ""
	}
}

func countPID(pid *int32) string {
	if pid == nil {
		return "unknown"
	}
	return fmt.Sprint(*pid)
}

func slotLine(s provision.SlotStatus) string {
	if !s.Exists {
		return "missing"
	}
	state := "not in use"
	if s.Active {
		state = "in use by process " + countPID(s.ActivePID)
	}
	line := fmt.Sprintf("%s, confirmed %s, behind by %s, holds back %s of WAL, wal_status %s", state,
		textOr(s.ConfirmedFlushLSN, "nothing"), bytesOr(s.LagBytes, "?"), bytesOr(s.RetainedBytes, "?"), textOr(s.WALStatus, "unknown"))
	if s.SafeWALSize != nil {
		line += fmt.Sprintf(", %s until it may be lost", bytesOr(s.SafeWALSize, "?"))
	}
	if s.InvalidationReason != nil {
		line += ", invalidated: " + *s.InvalidationReason
	}
	if s.Failover != nil {
		line += fmt.Sprintf(", failover %t", *s.Failover)
	}
	return line
}

func streamLine(s provision.StreamStatus) string {
	switch {
	case s.Exists == nil:
		return "unknown: NATS does not answer"
	case !*s.Exists:
		return "missing"
	}
	var bytes *int64
	if s.Bytes != nil {
		n := int64(*s.Bytes)
		bytes = &n
	}
	window := "unknown"
	if s.DuplicateWindowSeconds != nil {
		window = secondsText(*s.DuplicateWindowSeconds)
	}
	return fmt.Sprintf("%s messages, %s, last sequence %s, duplicates seen for %s", countOr(s.Messages, "?"), bytesOr(bytes, "?"), countOr(s.LastSequence, "?"), window)
}

func orNone(text string) string {
	if text == "" {
		return "no table"
	}
	return text
}
