// Package cli is the command line: one file a command, flags to configuration, error
// to exit code. It owns the table of settings (settings.go), their sources and
// precedence (flag, environment, file, default), the signals and the process's
// two output streams.
//
// It promises that every value is checked before the first connection, that data goes
// to standard output and all else to standard error, and that no line on standard error
// holds a password or token. Commands return plain errors; Main alone maps them to a
// line, a hint and an exit code.
//
// A command is a value of type command (command.go): its name, its settings and a
// function that gets an *invocation, from which it reads settings by name and type.
package cli
