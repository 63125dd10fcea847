package web

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"
)

// Bounds of one request and of the end. A scrape and a status take milliseconds; the
// bounds are there for clients that hang.
const (
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	statusTimeout  = 5 * time.Second // given to Source.Status as its deadline
	writeTimeout   = 20 * time.Second
	idleTimeout    = 60 * time.Second
	shutdownGrace  = 2 * time.Second
	headerBytesMax = 16 << 10
)

// Source is what the server asks the forwarder. Its methods are called from several
// goroutines at once, for each request, and must return quickly; they must not wait
// for the loop whose health they report.
type Source interface {
	// Live tells whether the loop turns. The reason is one line, also when all is well.
	Live() (ok bool, reason string)
	// Ready tells whether events flow and progress is made, or whether this is a
	// standby that would take over. The reason is one line.
	Ready() (ok bool, reason string)
	// Status returns a document that encoding/json can encode as an object. It gives
	// up when ctx is done.
	Status(ctx context.Context) (any, error)
}

// Config is what a server needs. Source and Metrics are required.
type Config struct {
	// Addr is host:port; port 0 takes a free one.
	Addr    string
	Source  Source
	Metrics http.Handler
	// Version is shown on the live page.
	Version string
	// Redact takes secrets out of each text before it is shown; nil changes nothing.
	Redact func(string) string
	// Log gets what goes wrong inside net/http; nil drops it.
	Log *slog.Logger
}

// ListenError says why an address could not be listened on.
type ListenError struct {
	Addr string
	Err  error
}

// Error names the flag, the address and the cause in one line.
func (e *ListenError) Error() string {
	cause := e.Err
	var op *net.OpError
	if errors.As(e.Err, &op) {
		cause = op.Err // the rest of the text repeats the address
	}
	return fmt.Sprintf("listen on %s (--http): %v", e.Addr, cause)
}

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// Hint returns the next step for a person.
func (e *ListenError) Hint() string {
	if errors.Is(e.Err, syscall.EADDRINUSE) {
		return "another process, perhaps another outbox-cdc, has this address: choose one with --http HOST:PORT, or turn it off with --http off"
	}
	return "choose an address of this machine with --http HOST:PORT, or turn it off with --http off"
}

// Server is a bound listener and what it serves.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen binds the address at once, so that a taken one is found before anything
// else starts. It returns a *ListenError if it cannot. The caller calls Run or Close.
func Listen(ctx context.Context, cfg Config) (*Server, error) {
	h, err := newHandler(cfg)
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, &ListenError{Addr: cfg.Addr, Err: err}
	}
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Server{
		listener: l,
		http: &http.Server{
			Handler:           h,
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    headerBytesMax,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
	}, nil
}

// Addr returns the bound address.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Run serves until ctx is done, then lets open requests end within a short grace. It
// returns nil after that, and an error if the listener failed. Call it once.
func (s *Server) Run(ctx context.Context) error {
	served := make(chan error, 1) // one value: the goroutine never waits for Run
	// Owns the listener; stops when the server is shut down or fails; waited for below.
	go func() { served <- s.http.Serve(s.listener) }()
	select {
	case err := <-served:
		return errors.Join(fmt.Errorf("serve HTTP on %s: %w", s.Addr(), err), s.http.Close())
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	err := s.http.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close() // a client that hangs must not hold up the end
	}
	if ended := <-served; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	if err != nil {
		return fmt.Errorf("close HTTP on %s: %w", s.Addr(), err)
	}
	return nil
}

// Close gives the address back without having served.
func (s *Server) Close() error {
	if err := s.listener.Close(); err != nil {
		return fmt.Errorf("close HTTP on %s: %w", s.Addr(), err)
	}
	return nil
}
