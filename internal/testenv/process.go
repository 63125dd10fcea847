package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
)

// Command says how to run a program.
type Command struct {
	Path string
	Args []string
	Env  []string // added to the environment of the test process
	Dir  string   // empty is the folder of the test
}

// Program is a running or ended program whose output is collected.
type Program struct {
	tb     testing.TB
	proc   *devstack.Process
	name   string
	output *output
}

// Run starts a program with arguments. It is killed after the test if it still runs. The
// output is logged when the test fails.
func Run(tb testing.TB, path string, args ...string) *Program {
	tb.Helper()
	return RunCommand(tb, Command{Path: path, Args: args})
}

// RunCommand is Run with an environment and a folder.
func RunCommand(tb testing.TB, command Command) *Program {
	tb.Helper()
	cmd := exec.Command(command.Path, command.Args...)
	cmd.Dir = command.Dir
	cmd.Env = append(cleanEnv(), command.Env...)
	out := newOutput()
	cmd.Stdout = &stream{output: out, fromStdout: true}
	cmd.Stderr = &stream{output: out}
	proc, err := devstack.StartProcess(cmd, syscall.SIGKILL)
	if err != nil {
		tb.Fatal(err)
	}
	p := &Program{tb: tb, proc: proc, output: out, name: strings.Join(append([]string{cmd.Path}, command.Args...), " ")}
	tb.Cleanup(func() {
		p.Kill()
		if tb.Failed() {
			tb.Logf("output of %s:\n%s", p.name, out.text())
		}
	})
	return p
}

// cleanEnv is the environment without the variables that outbox-cdc, libpq and nats read.
func cleanEnv() []string {
	var env []string
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if name == "DATABASE_URL" || name == "NATS_URL" || strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "OUTBOX_CDC_") {
			continue
		}
		env = append(env, entry)
	}
	return env
}

// PID is the process id.
func (p *Program) PID() int { return p.proc.PID() }

// Done is closed when the program has ended and its output is complete.
func (p *Program) Done() <-chan struct{} { return p.proc.Done() }

// Stdout returns what was written to standard output so far. Any goroutine may call it.
func (p *Program) Stdout() string { return p.output.only(true) }

// Stderr returns what was written to standard error so far. Any goroutine may call it.
func (p *Program) Stderr() string { return p.output.only(false) }

// Lines returns the complete lines of both so far, in the order of their arrival. Any
// goroutine may call it.
func (p *Program) Lines() []string { return p.output.lines() }

// WaitLine waits for a line, on standard output or standard error, that matches the
// regular expression, and returns it. It looks only at lines after the one that the last
// WaitLine returned, so that the same state can be waited for again. It fails at once when the
// program ends without such a line.
func (p *Program) WaitLine(pattern string, deadline time.Duration) string {
	p.tb.Helper()
	expr, err := regexp.Compile(pattern)
	if err != nil {
		p.tb.Fatal(err)
	}
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	for {
		line, found, more := p.output.find(expr)
		if found {
			return line
		}
		select {
		case <-more:
		case <-p.proc.Done():
			if line, found, _ := p.output.find(expr); found {
				return line
			}
			p.tb.Fatalf("%s ended (exit %d) without a line matching %q", p.name, p.proc.ExitCode(), pattern)
		case <-timeout.C:
			p.tb.Fatalf("%s printed no line matching %q within %s", p.name, pattern, deadline)
		}
	}
}

// WaitExit waits for the end and checks the exit code.
func (p *Program) WaitExit(code int, deadline time.Duration) {
	p.tb.Helper()
	if got := p.Wait(deadline); got != code {
		p.tb.Fatalf("%s: exit code %d, want %d", p.name, got, code)
	}
}

// Wait waits for the end and returns the exit code, -1 when a signal ended the program.
func (p *Program) Wait(deadline time.Duration) int {
	p.tb.Helper()
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	select {
	case <-p.proc.Done():
		return p.proc.ExitCode()
	case <-timeout.C:
		p.tb.Fatalf("%s still runs after %s", p.name, deadline)
		return -1
	}
}

// Signal sends a signal: SIGTERM and SIGINT drain, SIGSTOP freezes, SIGCONT thaws. It is no
// error when the program has ended. Any goroutine may call it.
func (p *Program) Signal(sig syscall.Signal) {
	p.tb.Helper()
	if err := p.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.tb.Errorf("%s: %v", p.name, err)
	}
}

// Kill ends the program with SIGKILL and waits for its end. Any goroutine may call it.
func (p *Program) Kill() {
	p.tb.Helper()
	if err := p.proc.Kill(); err != nil {
		p.tb.Errorf("%s: %v", p.name, err)
	}
}

// output collects lines of two streams.
type output struct {
	mu     sync.Mutex
	whole  []outputLine
	halves [2]bytes.Buffer // the last line of each stream, not yet complete
	cursor int             // lines that find has passed
	more   chan struct{}   // closed and replaced on each write
}

type outputLine struct {
	text       string
	fromStdout bool
}

// stream is one end of an output; exec gives it to the copying goroutine.
type stream struct {
	output     *output
	fromStdout bool
}

func newOutput() *output { return &output{more: make(chan struct{})} }

func half(fromStdout bool) int {
	if fromStdout {
		return 1
	}
	return 0
}

// Write splits what it gets into lines.
func (s *stream) Write(data []byte) (int, error) {
	o := s.output
	o.mu.Lock()
	defer o.mu.Unlock()
	rest := data
	for {
		line, after, found := bytes.Cut(rest, []byte("\n"))
		begun := &o.halves[half(s.fromStdout)]
		begun.Write(line)
		if !found {
			break
		}
		o.whole = append(o.whole, outputLine{text: begun.String(), fromStdout: s.fromStdout})
		begun.Reset()
		rest = after
	}
	close(o.more)
	o.more = make(chan struct{})
	return len(data), nil
}

// find returns the first line behind the cursor that matches and moves the cursor behind
// it, or a channel that is closed when there is more to look at.
func (o *output) find(expr *regexp.Regexp) (line string, found bool, more <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := o.cursor; i < len(o.whole); i++ {
		if expr.MatchString(o.whole[i].text) {
			o.cursor = i + 1
			return o.whole[i].text, true, nil
		}
	}
	return "", false, o.more
}

func (o *output) only(fromStdout bool) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var text strings.Builder
	for _, line := range o.whole {
		if line.fromStdout == fromStdout {
			fmt.Fprintln(&text, line.text)
		}
	}
	text.Write(o.halves[half(fromStdout)].Bytes())
	return text.String()
}

func (o *output) lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := make([]string, len(o.whole))
	for i, line := range o.whole {
		lines[i] = line.text
	}
	return lines
}

// text returns the end of both streams for a log.
func (o *output) text() string {
	const linesMax = 200
	lines := o.lines()
	if len(lines) > linesMax {
		lines = append([]string{fmt.Sprintf("(%d lines before)", len(lines)-linesMax)}, lines[len(lines)-linesMax:]...)
	}
	return strings.Join(lines, "\n")
}
