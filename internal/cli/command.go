package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// command is one command, or a group of commands when it has some of its own.
type command struct {
	name  string
	usage string // one line
	// long says what the command does and, for a dangerous one, what is lost.
	long    string
	example string // a line that can be run as it is
	// settings beyond the common ones, which every command takes.
	settings []setting
	// without are the common settings that help and completion do not offer, since the
	// command refuses them or needs none.
	without  []string
	run      func(ctx context.Context, in *invocation) error
	commands []command
}

// offered are the common settings that a person is told of.
func (c *command) offered(common []setting) []setting {
	return slices.DeleteFunc(slices.Clone(common), func(s setting) bool { return slices.Contains(c.without, s.name) })
}

// invocation is one run of a command: its settings and its streams.
type invocation struct {
	values
	// stdout takes the data that was asked for, and nothing else.
	stdout io.Writer
	// stderr takes progress and notes for a person; secrets are masked in it.
	stderr io.Writer
	log    *slog.Logger
	redact func(string) string // takes secrets out of text
	// terminal says that a person watches stderr.
	terminal bool
	// command is the command as a person would type it, such as "slot drop".
	command string
}

// urfave turns a command into what the library wants. path is the command's name with
// those of the groups around it.
func (a *app) urfave(cmd command, group string) *urfave.Command {
	path := strings.TrimSpace(group + " " + cmd.name)
	out := &urfave.Command{
		Name:               cmd.name,
		Usage:              cmd.usage,
		CustomHelpTemplate: a.commandHelp(cmd, path),
		HideHelpCommand:    true,
		OnUsageError:       a.usageError,
	}
	if len(cmd.commands) > 0 {
		for _, sub := range cmd.commands {
			out.Subcommands = append(out.Subcommands, a.urfave(sub, path))
		}
		out.Flags = flagsOf(a.common)
		out.Action = func(c *urfave.Context) error { return a.noCommand(c, path, cmd.commands) }
		return out
	}
	all := append(append([]setting{}, cmd.settings...), a.common...)
	out.Flags = flagsOf(all)
	out.Action = func(c *urfave.Context) error {
		if c.Args().Present() {
			return a.unexpectedArgument(path, c.Args().First())
		}
		return a.invoke(c, cmd, all, path)
	}
	return out
}

// flagsOf makes a fresh set of flags: the library keeps state in them.
func flagsOf(settings []setting) []urfave.Flag {
	flags := make([]urfave.Flag, 0, len(settings))
	for _, s := range settings {
		switch {
		case s.isSwitch():
			flags = append(flags, &urfave.BoolFlag{Name: s.name})
		case s.repeats:
			flags = append(flags, &urfave.StringSliceFlag{Name: s.name})
		default:
			flags = append(flags, &urfave.StringFlag{Name: s.name})
		}
	}
	return flags
}

// invoke resolves and checks all values, then runs the command.
func (a *app) invoke(c *urfave.Context, cmd command, settings []setting, path string) error {
	vals, err := a.resolve(c, settings, path)
	if err != nil {
		return err
	}
	if err := vals.checkTogether(); err != nil {
		return err
	}
	in := &invocation{
		values: vals, command: path,
		stdout: a.stdout, stderr: a.stderr, redact: a.secrets.String, terminal: isTerminal(a.rawStderr),
	}
	in.log = newLogger(a.stderr, vals.logFormat(in.terminal), vals.str("log-level"))
	a.warnOfVariables(in)
	return explain(cmd.run(c.Context, in))
}

// checkTogether looks at what no value shows alone.
func (v values) checkTogether() error {
	mapping, err := v.mapping()
	if err != nil {
		return err
	}
	if _, err := sink.ParseTemplate(v.str("subject"), mapping); err != nil {
		return fault.NewUsage(v["subject"].from()+": "+err.Error(), "write a subject with mapped columns in braces, such as outbox.{aggregate_type}.{event_type}; --columns NAME=COLUMN maps one more")
	}
	if v.given("nats-cert") != v.given("nats-key") {
		return fault.NewUsage("--nats-cert and --nats-key belong together: one of them is missing", "give both, or none")
	}
	return nil
}

func (a *app) noCommand(c *urfave.Context, path string, commands []command) error {
	names := map[string]bool{}
	for _, cmd := range commands {
		names[cmd.name] = true
	}
	if !c.Args().Present() {
		what := "no command given"
		help := "outbox-cdc --help"
		if path != "" {
			what = fmt.Sprintf("%s: no command given", path)
			help = fmt.Sprintf("outbox-cdc %s --help", path)
		}
		return fault.NewUsage(what, help)
	}
	word := c.Args().First()
	prefix := "outbox-cdc "
	if path != "" {
		prefix += path + " "
	}
	if a.mayHoldSecret() {
		return fault.NewUsage("unknown command", nearestHint(word, names, prefix))
	}
	return fault.NewUsage(fmt.Sprintf("unknown command %q", strings.TrimSpace(path+" "+word)), nearestHint(word, names, prefix))
}

func (a *app) unexpectedArgument(path, word string) error {
	hint := fmt.Sprintf("outbox-cdc %s --help", path)
	if a.mayHoldSecret() {
		return fault.NewUsage(path+": an argument that belongs to no flag", "put quotes around a value with spaces; "+hint)
	}
	return fault.NewUsage(fmt.Sprintf("%s: unexpected argument %q", path, word), hint)
}

// mayHoldSecret reports whether a stray word of the command line could be a piece of a
// connection string whose quotes were forgotten.
func (a *app) mayHoldSecret() bool {
	for _, arg := range a.args {
		if strings.Contains(arg, "://") || strings.Contains(strings.ToLower(arg), "password") {
			return true
		}
	}
	return false
}
