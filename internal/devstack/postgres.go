package devstack

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// PostgresOptions says how to run a PostgreSQL. The zero value is usable: a throw-away
// server on a free port.
type PostgresOptions struct {
	// BinDir is the folder that holds initdb and postgres; empty searches for it as FindPostgres does.
	BinDir string
	// Dir is the home of the server: data, log and socket lie in it and stay after Close.
	// A data folder that is there already is used again. Empty makes a throw-away
	// one, which Close removes and which does without fsync.
	Dir string
	// Port on 127.0.0.1; 0 chooses a free one.
	Port int
	// Settings are written to a file that postgresql.conf includes, after our own, so they win.
	Settings map[string]string
	// StartTimeout bounds each start, crash recovery included; 0 is one minute.
	StartTimeout time.Duration
}

// StopMode is how PostgreSQL is asked to stop, as with pg_ctl stop -m.
type StopMode syscall.Signal

// The modes.
const (
	StopSmart     = StopMode(syscall.SIGTERM) // waits for all clients to leave
	StopFast      = StopMode(syscall.SIGINT)  // ends the clients, writes a checkpoint
	StopImmediate = StopMode(syscall.SIGQUIT) // leaves at once; the next start recovers
)

// String returns the name that pg_ctl uses.
func (m StopMode) String() string {
	switch m {
	case StopSmart:
		return "smart"
	case StopFast:
		return "fast"
	case StopImmediate:
		return "immediate"
	default:
		return fmt.Sprintf("mode(%d)", int(m))
	}
}

const (
	startTimeoutDefault = time.Minute
	startPoll           = 5 * time.Millisecond
	portRetriesMax      = 3
	closeStepTimeout    = 10 * time.Second
	socketPathMax       = 100 // sun_path holds 108 bytes on Linux, 104 elsewhere
)

// Postgres is a PostgreSQL server that this process started. Its methods may be called
// from several goroutines; those that start and stop it take turns.
type Postgres struct {
	bins       Binaries
	account    *account
	home       string
	socketDir  string
	throwAway  *throwAway // home, unless it is kept
	socketHome *throwAway // socketDir, where home's path is too long for it
	settings   map[string]string
	chosenPort bool // we chose the port and may choose another at the first start

	startTimeout time.Duration

	mu   sync.Mutex
	port int
	proc *Process // nil before the first start
}

// StartPostgres makes the data folder if there is none, starts the server and returns
// when it accepts connections. It blocks for about a second. Without PostgreSQL on this
// machine the error is ErrNoPostgres. The caller must Close the server.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	bins, err := FindPostgres(ctx, opts.BinDir)
	if err != nil {
		return nil, err
	}
	p := &Postgres{
		bins: bins, settings: opts.Settings, port: opts.Port,
		chosenPort: opts.Port == 0, startTimeout: opts.StartTimeout,
	}
	if p.startTimeout == 0 {
		p.startTimeout = startTimeoutDefault
	}
	if err := p.prepare(ctx, opts.Dir); err != nil {
		return nil, errors.Join(err, p.Close()) //nolint:contextcheck // closing goes on when ctx has ended
	}
	if err := p.firstStart(ctx); err != nil {
		return nil, errors.Join(err, p.Close()) //nolint:contextcheck // closing goes on when ctx has ended
	}
	return p, nil
}

// URL returns the connection URL of a database for the superuser postgres, over TCP.
func (p *Postgres) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User("postgres"), Host: Address(p.Port()),
		Path: "/" + database, RawQuery: "sslmode=disable",
	}
	return u.String()
}

// SocketURL returns the same as URL over the unix socket.
func (p *Postgres) SocketURL(database string) string {
	q := url.Values{"host": {p.socketDir}, "port": {fmt.Sprint(p.Port())}, "user": {"postgres"}}
	return "postgres:///" + url.PathEscape(database) + "?" + q.Encode()
}

// Port is the TCP port on 127.0.0.1.
func (p *Postgres) Port() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.port
}

// Major is the major version, such as 15.
func (p *Postgres) Major() int { return p.bins.Major }

// DataDir is the data folder.
func (p *Postgres) DataDir() string { return filepath.Join(p.home, "data") }

// LogFile is where the server writes its log. It is appended to at each start.
func (p *Postgres) LogFile() string { return filepath.Join(p.home, "postgres.log") }

// PID is the process id of the running or last postmaster, 0 before the first start.
func (p *Postgres) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		return 0
	}
	return p.proc.PID()
}

// Exited is closed when the server that runs now has ended, whoever ended it.
func (p *Postgres) Exited() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return p.proc.Done()
}

// Close stops the server, if need be by force, and removes a throw-away folder. It may
// be called again.
func (p *Postgres) Close() error {
	var err error
	for _, mode := range []StopMode{StopFast, StopImmediate} {
		if err = p.stopWithin(closeStepTimeout, mode); err == nil {
			break
		}
	}
	if err != nil {
		err = p.Kill()
	}
	return errors.Join(err, p.throwAway.remove(), p.socketHome.remove())
}

func (p *Postgres) stopWithin(d time.Duration, mode StopMode) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return p.Stop(ctx, mode)
}
