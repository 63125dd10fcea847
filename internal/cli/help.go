package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// The library prints these texts as templates; they hold no double braces.

const (
	helpFlagColumn = 32 // characters before the text of a flag
	helpWidth      = 110
)

func (a *app) rootHelp() string {
	var b strings.Builder
	b.WriteString(`outbox-cdc - forwards committed rows of a PostgreSQL outbox table to NATS JetStream

Usage:
  outbox-cdc COMMAND [flags]
  outbox-cdc COMMAND --help

Commands:
`)
	for _, cmd := range a.commands {
		fmt.Fprintf(&b, "  %-14s %s\n", cmd.name, cmd.usage)
	}
	b.WriteString(`
Commands that speak to servers take the flags under "Connection and names", before or
after their name.
Every flag has an environment variable, OUTBOX_CDC_ plus its name in upper case
(--max-in-flight: OUTBOX_CDC_MAX_IN_FLIGHT), and a key of the same name in the YAML file
given by --config. A flag beats the environment, which beats the file. DATABASE_URL and
NATS_URL are read too. Durations are 500ms, 10s, 168h; sizes take KiB, MiB, GiB.

Exit codes:
  0    done, or stopped by a signal after draining
  1    failed while running, may heal
  2    flags, configuration or usage
  3    a person must act
  130  a second signal cut the draining short

Example:
  outbox-cdc setup && outbox-cdc start
`)
	return b.String()
}

// commandHelp is the help of a command or group of commands.
func (a *app) commandHelp(cmd command, path string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "outbox-cdc %s - %s\n\nUsage:\n", path, cmd.usage)
	if len(cmd.commands) > 0 {
		fmt.Fprintf(&b, "  outbox-cdc %s COMMAND [flags]\n\nCommands:\n", path)
		for _, sub := range cmd.commands {
			fmt.Fprintf(&b, "  %-14s %s\n", sub.name, sub.usage)
		}
	} else {
		fmt.Fprintf(&b, "  outbox-cdc %s [flags]\n", path)
	}
	if cmd.long != "" {
		b.WriteString("\n" + strings.TrimSpace(cmd.long) + "\n")
	}
	if cmd.example != "" {
		b.WriteString("\nExample:\n  " + strings.ReplaceAll(cmd.example, "\n", "\n  ") + "\n")
	}
	if len(cmd.commands) > 0 {
		return b.String()
	}
	for _, group := range []string{groupCommand, groupForwarding, groupOutput, groupConnection} {
		writeGroup(&b, group, cmd.settings, cmd.offered(a.common))
	}
	return b.String()
}

func writeGroup(b *strings.Builder, group string, sets ...[]setting) {
	first := true
	for _, set := range sets {
		for _, s := range set {
			if s.group != group {
				continue
			}
			if first {
				fmt.Fprintf(b, "\n%s:\n", group)
				first = false
			}
			writeFlag(b, s)
		}
	}
}

func writeFlag(b *strings.Builder, s setting) {
	head := "  --" + s.name
	if s.value != "" {
		head += " " + s.value
	}
	fmt.Fprintf(b, "%-*s", helpFlagColumn, head)
	column := max(utf8.RuneCountInString(head), helpFlagColumn)
	text := s.usage
	if s.defText != "" {
		text += " (default: " + s.defText + ")"
	} else if s.def != "" {
		text += " (default: " + s.def + ")"
	}
	for word := range strings.FieldsSeq(text) {
		if column+1+len(word) > helpWidth {
			b.WriteString("\n" + strings.Repeat(" ", helpFlagColumn))
			column = helpFlagColumn
		}
		b.WriteString(" " + word)
		column += 1 + len(word)
	}
	b.WriteString("\n")
}
