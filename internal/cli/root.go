package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	urfave "github.com/urfave/cli/v2"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/redact"
)

// app is one run of the program.
type app struct {
	args      []string
	stdout    io.Writer
	rawStderr io.Writer         // to ask whether it is a terminal; never written to
	stderr    io.Writer         // rawStderr behind the mask
	variables map[string]string // the environment
	secrets   *redact.Secrets
	common    []setting
	known     map[string]setting // of all commands, by name
	commands  []command
}

// Main runs the program with the arguments of the process (args[0] is its name) and
// returns its exit code. environ is the environment, in the form of os.Environ. It
// installs handlers for SIGINT and SIGTERM while it runs.
func Main(args []string, stdout, stderr io.Writer, environ []string) int {
	a := newApp(args, stdout, stderr, environ)
	err := runUntilSignal(func(ctx context.Context) error {
		return a.urfaveApp().RunContext(ctx, args)
	})
	if err != nil {
		fault.Print(a.stderr, err)
	}
	return fault.ExitCode(err)
}

func newApp(args []string, stdout, stderr io.Writer, environ []string) *app {
	a := &app{
		args: args, stdout: stdout, rawStderr: stderr, variables: map[string]string{},
		secrets: &redact.Secrets{}, common: commonSettings(), commands: commands(),
	}
	a.stderr = a.secrets.Writer(stderr)
	for _, variable := range environ {
		if name, text, ok := strings.Cut(variable, "="); ok {
			a.variables[name] = text
		}
	}
	for _, name := range []string{"PGPASSWORD", "PGSSLPASSWORD"} {
		if secret, ok := a.variables[name]; ok {
			a.secrets.Add(secret, a.variables["PGUSER"])
		}
	}
	for _, arg := range args {
		a.learnFromArgument(arg)
	}
	a.known = map[string]setting{}
	for _, s := range append(commonSettings(), forwardingSettings()...) {
		a.known[s.name] = s
	}
	collectSettings(a.known, a.commands)
	return a
}

// learnFromArgument takes the secrets of whatever looks like a connection string, so that
// a mistyped flag does not print them.
func (a *app) learnFromArgument(arg string) {
	_, text, isFlag := strings.Cut(arg, "=")
	if !isFlag || !strings.HasPrefix(arg, "-") {
		text = arg
	}
	if strings.Contains(text, "://") || strings.Contains(text, "password") {
		a.secrets.AddDatabaseURL(text)
		if !strings.HasPrefix(text, "postgres") {
			a.secrets.AddNATSURL(text)
		}
	}
}

func collectSettings(known map[string]setting, commands []command) {
	for _, cmd := range commands {
		for _, s := range cmd.settings {
			known[s.name] = s
		}
		collectSettings(known, cmd.commands)
	}
}

func (a *app) urfaveApp() *urfave.App {
	root := &urfave.App{
		Name:            "outbox-cdc",
		Usage:           "forwards committed rows of a PostgreSQL outbox table to NATS JetStream",
		Version:         buildVersion().String(),
		HideHelpCommand: true,
		Writer:          a.stdout,
		ErrWriter:       a.stderr,
		// A value of a flag that repeats may hold a comma.
		DisableSliceFlagSeparator: true,

		CustomAppHelpTemplate: a.rootHelp(),
		Flags:                 flagsOf(a.common),
		OnUsageError:          a.usageError,
		ExitErrHandler:        func(*urfave.Context, error) {}, // the library would call os.Exit
		Action:                func(c *urfave.Context) error { return a.noCommand(c, "", a.commands) },
	}
	for _, cmd := range a.commands {
		root.Commands = append(root.Commands, a.urfave(cmd, ""))
	}
	return root
}

// usageError rewrites what the flag parser says: one line that names the flag, and a hint.
func (a *app) usageError(c *urfave.Context, err error, _ bool) error {
	text := err.Error()
	command := strings.TrimSpace(strings.TrimPrefix(c.Command.FullName(), "outbox-cdc"))
	help := strings.Join(strings.Fields("outbox-cdc "+command+" --help"), " ")
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: -"); ok {
		name = strings.TrimPrefix(name, "-")
		hint := help
		if owners := a.owners(name); len(owners) > 0 {
			hint = fmt.Sprintf("--%s belongs to outbox-cdc %s", name, strings.Join(owners, ", "))
		} else if near := nearest(name, flagNames(c)); near != "" {
			hint = "did you mean --" + near + "?"
		}
		return fault.NewUsage("unknown flag --"+name, hint)
	}
	if name, ok := strings.CutPrefix(text, "flag needs an argument: -"); ok {
		return fault.NewUsage("--"+strings.TrimPrefix(name, "-")+" needs a value", help)
	}
	if _, rest, ok := strings.Cut(text, "invalid boolean value "); ok {
		rest = strings.TrimSuffix(rest, ": parse error")
		shown, name, _ := strings.Cut(rest, " for -")
		return fault.NewUsage(fmt.Sprintf("--%s %s is not true or false", strings.TrimPrefix(name, "-"), shown), help)
	}
	if strings.HasPrefix(text, "bad flag syntax") {
		return fault.NewUsage(text, help)
	}
	return fault.NewUsage("cannot read the command line: "+text, help)
}

// owners returns the commands that take a flag.
func (a *app) owners(flag string) []string {
	var owners []string
	var look func(commands []command, group string)
	look = func(commands []command, group string) {
		for _, cmd := range commands {
			if slices.ContainsFunc(cmd.settings, func(s setting) bool { return s.name == flag }) {
				owners = append(owners, group+cmd.name)
			}
			look(cmd.commands, group+cmd.name+" ")
		}
	}
	look(a.commands, "")
	return owners
}

func flagNames(c *urfave.Context) []string {
	var names []string
	flags := c.App.Flags
	if c.Command != nil && len(c.Command.Flags) > 0 {
		flags = c.Command.Flags
	}
	for _, f := range flags {
		if name := f.Names()[0]; name != "help" {
			names = append(names, name)
		}
	}
	return names
}

// ErrInterrupted says that a signal ended a command before it was done.
var ErrInterrupted = errors.New("interrupted by a signal")
