package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// firstStart starts the server and, when somebody took the chosen port meanwhile, tries another.
func (p *Postgres) firstStart(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error
	for range portRetriesMax {
		if p.chosenPort {
			if p.port, err = FreePort(ctx); err != nil {
				return err
			}
		}
		if err = p.start(ctx); err == nil || !p.chosenPort || !taken(ctx, p.port) {
			return err
		}
	}
	return err
}

func taken(ctx context.Context, port int) bool {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp4", Address(port))
	if err != nil {
		return true
	}
	_ = listener.Close() // it carried nothing
	return false
}

// Start starts a stopped server again on the same port and data, and returns when it
// accepts connections (or, as a standby without hot_standby, has begun recovery). It is
// no error when the server runs.
func (p *Postgres) Start(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return nil
	}
	return p.start(ctx)
}

// Stop asks the server to stop and waits until it has. When ctx ends first it returns an
// error and the server goes on stopping. It is no error when the server does not run.
func (p *Postgres) Stop(ctx context.Context, mode StopMode) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	if err := p.proc.Signal(syscall.Signal(mode)); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	select {
	case <-p.proc.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop PostgreSQL in mode %s: %w", mode, ctx.Err())
	}
}

// Kill ends the postmaster and all its processes with SIGKILL, as a crash of the whole
// server would, and waits until they are gone. Start recovers the data.
func (p *Postgres) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running() {
		return nil
	}
	backends := childrenOf(p.proc.PID())
	if err := p.proc.Kill(); err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	for _, pid := range backends {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill PostgreSQL process %d: %w", pid, err)
		}
	}
	deadline := time.NewTimer(closeStepTimeout)
	defer deadline.Stop()
	poll := time.NewTicker(startPoll)
	defer poll.Stop()
	for _, pid := range backends {
		for alive(pid) {
			select {
			case <-poll.C:
			case <-deadline.C:
				return fmt.Errorf("kill PostgreSQL: process %d is still there", pid)
			}
		}
	}
	return nil
}

func (p *Postgres) running() bool {
	if p.proc == nil {
		return false
	}
	select {
	case <-p.proc.Done():
		return false
	default:
		return true
	}
}

// start runs the postmaster as a direct child, not through pg_ctl, so that its end is
// known at once and it can be told of our own.
func (p *Postgres) start(ctx context.Context) error {
	if err := p.writeSettings(p.port); err != nil {
		return err
	}
	logFile, err := os.OpenFile(p.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer logFile.Close() //nolint:errcheck // the child has its own descriptor
	// The server outlives ctx, which bounds only its start.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), filepath.Join(p.bins.Dir, "postgres"), "-D", p.DataDir())
	cmd.Dir, cmd.Env, cmd.SysProcAttr = p.home, serverEnv(), p.account.attr()
	cmd.Stdout, cmd.Stderr = logFile, logFile
	proc, err := StartProcess(cmd, syscall.SIGQUIT)
	if err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	p.proc = proc
	if err := p.waitReady(ctx); err != nil {
		return errors.Join(err, abandon(proc))
	}
	return nil
}

// abandon ends a server that did not become ready, with its processes.
func abandon(proc *Process) error {
	if err := proc.Signal(syscall.SIGQUIT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	deadline := time.NewTimer(closeStepTimeout)
	defer deadline.Stop()
	select {
	case <-proc.Done():
		return nil
	case <-deadline.C:
		return proc.Kill()
	}
}

// waitReady polls the status line of postmaster.pid, as pg_ctl does.
func (p *Postgres) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.startTimeout)
	defer cancel()
	poll := time.NewTicker(startPoll)
	defer poll.Stop()
	for {
		if p.ready() {
			return nil
		}
		select {
		case <-poll.C:
		case <-p.proc.Done():
			return fmt.Errorf("start PostgreSQL on port %d: %w; end of %s: %s", p.port, exitError(p.proc), p.LogFile(), p.logEnd())
		case <-ctx.Done():
			return fmt.Errorf("start PostgreSQL on port %d: not ready: %w; end of %s: %s", p.port, ctx.Err(), p.LogFile(), p.logEnd())
		}
	}
}

func exitError(proc *Process) error {
	if err := proc.Err(); err != nil {
		return err
	}
	return errors.New("it ended by itself")
}

func (p *Postgres) ready() bool {
	raw, err := os.ReadFile(filepath.Join(p.DataDir(), "postmaster.pid"))
	if err != nil {
		return false
	}
	const pidLine, statusLine = 0, 7
	lines := strings.Split(string(raw), "\n")
	if len(lines) <= statusLine || strings.TrimSpace(lines[pidLine]) != strconv.Itoa(p.proc.PID()) {
		return false
	}
	status := strings.TrimSpace(lines[statusLine])
	return status == "ready" || status == "standby"
}

func (p *Postgres) logEnd() string {
	raw, err := os.ReadFile(p.LogFile())
	if err != nil {
		return err.Error()
	}
	return lastLines(raw)
}
