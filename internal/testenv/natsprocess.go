package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
)

// NATSServerEnv names the nats-server binary to test against; without it the one of
// go.mod is built.
const NATSServerEnv = "OUTBOX_CDC_TEST_NATS_SERVER"

// NATSServer is a nats-server with JetStream in a process of its own. Its methods may be
// called from any goroutine, one at a time; their failures fail the test but do not end it.
type NATSServer struct {
	tb   testing.TB
	bin  string
	home string
	port int
	proc *devstack.Process
}

// NATSProcess starts a nats-server as its own process, for this test alone. config is more
// server configuration text; a jetstream block in it replaces the standard one and has to
// name StoreDir. The first use on a machine builds the server.
func NATSProcess(tb testing.TB, config ...string) *NATSServer {
	tb.Helper()
	return NATSProcessIn(tb, tb.TempDir(), config...)
}

// StoreDir stands, in the configuration text of a NATSServer, for the folder of its JetStream store.
const StoreDir = "{store_dir}"

// NATSProcessIn is NATSProcess with the server's store, log and configuration in a given folder.
func NATSProcessIn(tb testing.TB, home string, config ...string) *NATSServer {
	tb.Helper()
	port, err := devstack.FreePort(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	n := &NATSServer{tb: tb, bin: natsServerBinary(tb), home: home, port: port}
	if err := n.configure(config); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("end of the nats-server log:\n%s", fileEnd(n.logFile()))
		}
		n.Kill()
	})
	n.Start()
	if tb.Failed() {
		tb.FailNow()
	}
	return n
}

// URL returns the URL for clients.
func (n *NATSServer) URL() string { return "nats://" + devstack.Address(n.port) }

// PID is the id of the running or last process.
func (n *NATSServer) PID() int { return n.proc.PID() }

func (n *NATSServer) configFile() string { return filepath.Join(n.home, "nats.conf") }
func (n *NATSServer) logFile() string    { return filepath.Join(n.home, "nats.log") }

// Start starts a server that has ended, on the same port and store, and returns when it
// takes connections.
func (n *NATSServer) Start() {
	n.tb.Helper()
	if err := n.start(); err != nil {
		n.tb.Errorf("start nats-server: %v; end of its log:\n%s", err, fileEnd(n.logFile()))
	}
}

func (n *NATSServer) start() error {
	logFile, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close() //nolint:errcheck // the child has its own descriptor
	cmd := exec.Command(n.bin, "-c", n.configFile())
	cmd.Stdout, cmd.Stderr = logFile, logFile
	n.proc, err = devstack.StartProcess(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	err = poll(Deadline, func() error {
		select {
		case <-n.proc.Done():
			return nil // no use to wait on
		default:
			return greets(n.port)
		}
	})
	select {
	case <-n.proc.Done():
		return fmt.Errorf("it ended: %w", n.proc.Err())
	default:
		return err
	}
}

// greets says whether the server sends its INFO line: it does so once JetStream is up.
func greets(port int) error {
	conn, err := net.DialTimeout("tcp4", devstack.Address(port), time.Second)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only read from
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "INFO ") {
		return fmt.Errorf("it greets with %q", line)
	}
	return nil
}

// Kill ends the server with SIGKILL and waits for its end.
func (n *NATSServer) Kill() {
	n.tb.Helper()
	if n.proc == nil {
		return
	}
	if err := n.proc.Kill(); err != nil {
		n.tb.Errorf("kill nats-server: %v", err)
	}
}

// Stop ends the server with SIGTERM, in good order, and waits for its end.
func (n *NATSServer) Stop() {
	n.tb.Helper()
	n.signal(syscall.SIGTERM)
	timeout := time.NewTimer(Deadline)
	defer timeout.Stop()
	select {
	case <-n.proc.Done():
	case <-timeout.C:
		n.tb.Errorf("nats-server still runs %s after SIGTERM", Deadline)
	}
}

// Freeze stops the process where it is (SIGSTOP): connections stay open, nothing answers.
// It returns once each thread stands still, which is a moment after the signal.
func (n *NATSServer) Freeze() {
	n.tb.Helper()
	n.signal(syscall.SIGSTOP)
	Eventually(n.tb, Deadline, func() error { return stopped(n.PID()) })
}

// stopped returns nil when all threads of a process are stopped; where the system has
// no /proc it cannot tell and returns nil too.
func stopped(pid int) error {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		_, after, _ := strings.Cut(string(stat), ") ") // the name before it may hold anything
		if !strings.HasPrefix(after, "T") {
			return fmt.Errorf("thread %s is not stopped: %.20s", file, after)
		}
	}
	return nil
}

// Thaw lets a frozen process go on.
func (n *NATSServer) Thaw() { n.signal(syscall.SIGCONT) }

// Reload makes the server read its configuration again, with other text after the standard one.
func (n *NATSServer) Reload(config ...string) {
	n.tb.Helper()
	if err := n.configure(config); err != nil {
		n.tb.Errorf("reload nats-server: %v", err)
	}
	n.signal(syscall.SIGHUP)
}

func (n *NATSServer) configure(config []string) error {
	text := devstack.NATSConfig(n.port, n.home, strings.Join(config, "\n"))
	text = strings.ReplaceAll(text, StoreDir, filepath.Join(n.home, "jetstream"))
	return os.WriteFile(n.configFile(), []byte(text), 0o600)
}

func (n *NATSServer) signal(sig syscall.Signal) {
	n.tb.Helper()
	if err := n.proc.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.tb.Errorf("signal nats-server: %v", err)
	}
}

// natsServerBinary returns the path of a nats-server. It is built once per version and
// machine, into the user's cache folder.
func natsServerBinary(tb testing.TB) string {
	tb.Helper()
	if bin := os.Getenv(NATSServerEnv); bin != "" {
		return bin
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		tb.Fatal(err)
	}
	dir := filepath.Join(cache, "outbox-cdc-test")
	bin := filepath.Join(dir, "nats-server-v"+server.VERSION)
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	// Built beside and renamed: several test processes may be at it.
	fresh := fmt.Sprintf("%s.%d", bin, os.Getpid())
	goBuild(tb, fresh, "github.com/nats-io/nats-server/v2")
	if err := os.Rename(fresh, bin); err != nil {
		tb.Fatal(err)
	}
	return bin
}
