package devstack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// pipesMaxWait bounds how long a process that has ended is waited for because one of
// its own children still holds its output open.
const pipesMaxWait = 5 * time.Second

// Process is a child process in a process group of its own, so that Ctrl-C on the
// terminal does not reach it. On Linux it gets a signal when this process dies.
// Its methods may be called from several goroutines.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // valid once done is closed
}

// StartProcess starts cmd. When this process dies, the child is sent orphanSignal
// (Linux only). The caller must see to it that the child ends, and wait for Done.
func StartProcess(cmd *exec.Cmd, orphanSignal syscall.Signal) (*Process, error) {
	attr := syscall.SysProcAttr{}
	if cmd.SysProcAttr != nil {
		attr = *cmd.SysProcAttr
	}
	attr.Setpgid = true
	signalWhenOrphaned(&attr, orphanSignal)
	cmd.SysProcAttr = &attr
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = pipesMaxWait
	}

	p := &Process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	// Owns the child's life from start to end; stops when the child has ended; waited for through Done.
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

func (p *Process) run(started chan<- error) {
	defer close(p.done)
	// The kernel takes the end of the starting thread, not of the process, for the
	// parent's death: this thread must live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		p.err = err
		return
	}
	p.err = p.cmd.Wait()
}

// PID is the process id. It stays the same after the end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and all its output was written.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is what the process ended with: nil for exit status 0, else mostly an
// *exec.ExitError. It blocks until Done.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// ExitCode is the exit status, or -1 when a signal ended the process. It blocks until Done.
func (p *Process) ExitCode() int {
	<-p.done
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends sig. It returns os.ErrProcessDone when the process has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return os.ErrProcessDone
	}
	if err != nil {
		return fmt.Errorf("send %s to process %d: %w", sig, p.PID(), err)
	}
	return nil
}

// Kill sends SIGKILL and waits for the end. It is no error when the process has ended before.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}
