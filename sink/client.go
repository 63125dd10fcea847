package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ClientConfig says how to reach NATS. All credentials may be combined.
type ClientConfig struct {
	// URL is one or more server URLs, comma separated.
	URL       string
	CredsFile string
	NKeyFile  string
	CAFile    string
	CertFile  string
	KeyFile   string
	// Name is shown in the server's connection list.
	Name string
}

const (
	natsDialTimeout   = 5 * time.Second
	natsPingInterval  = 5 * time.Second // with natsPingsOut: a dead peer is noticed after 10 to 15 s
	natsPingsOut      = 2
	natsReconnectWait = 250 * time.Millisecond
	natsReconnectMax  = 30 * time.Second
	natsFlusherLimit  = 10 * time.Second
)

// ConfigError says that what was given for the connection cannot be used.
type ConfigError struct {
	What string
	Hint string
}

// Error names the file or setting.
func (e *ConfigError) Error() string { return e.What }

// Client is one connection to NATS. Its methods may be called from several goroutines.
type Client struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	log    *slog.Logger
	dialer dialer

	// lastAsyncErr is the newest error that arrived outside of any call: refused
	// permissions are reported only there.
	lastAsyncErr atomic.Pointer[asyncError]
	closed       chan struct{}
}

type asyncError struct {
	at  time.Time
	err error
}

// Dial makes one attempt to connect. The credentials are read anew from their
// files. It blocks for at most a few seconds; errors never hold the URL.
func Dial(ctx context.Context, cfg ClientConfig, log *slog.Logger) (*Client, error) {
	c := &Client{log: log, closed: make(chan struct{}), dialer: dialer{Dialer: net.Dialer{Timeout: natsDialTimeout}}}
	opts, err := c.options(cfg)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	// A server that takes the connection and says nothing must not outlast ctx.
	stop := context.AfterFunc(ctx, c.dialer.abort)
	nc, err := nats.Connect(cfg.URL, opts...)
	if !stop() && err == nil {
		nc.Close()
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", withoutURL(err))
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	c.nc, c.js = nc, js
	return c, nil
}

func (c *Client) options(cfg ClientConfig) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name(cfg.Name),
		nats.Timeout(natsDialTimeout),
		nats.SetCustomDialer(&c.dialer),
		nats.ReconnectBufSize(-1), // a publish while away must fail, or it would leave a hole before it
		nats.MaxReconnects(-1),
		nats.ReconnectWait(natsReconnectWait),
		nats.PingInterval(natsPingInterval),
		nats.MaxPingsOutstanding(natsPingsOut),
		nats.FlusherTimeout(natsFlusherLimit),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			c.lastAsyncErr.Store(&asyncError{at: time.Now(), err: err})
		}),
		nats.ClosedHandler(func(*nats.Conn) { close(c.closed) }),
	}
	for flag, file := range map[string]string{
		"--nats-creds": cfg.CredsFile, "--nats-nkey-file": cfg.NKeyFile, "--nats-ca": cfg.CAFile,
		"--nats-cert": cfg.CertFile, "--nats-key": cfg.KeyFile,
	} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return nil, &ConfigError{What: fmt.Sprintf("read %s: %v", flag, err), Hint: "give " + flag + " a file that this user may read"}
		}
	}
	if cfg.CredsFile != "" {
		opts = append(opts, nats.UserCredentials(cfg.CredsFile))
	}
	if cfg.NKeyFile != "" {
		o, err := nats.NkeyOptionFromSeed(cfg.NKeyFile)
		if err != nil {
			return nil, &ConfigError{What: fmt.Sprintf("read --nats-nkey-file: %v", err), Hint: "give a file that holds an nkey seed"}
		}
		opts = append(opts, o)
	}
	if cfg.CAFile != "" {
		opts = append(opts, nats.RootCAs(cfg.CAFile))
	}
	if cfg.CertFile != "" || cfg.KeyFile != "" {
		opts = append(opts, nats.ClientCert(cfg.CertFile, cfg.KeyFile))
	}
	return opts, nil
}

// listen takes the answers that arrive below an inbox, and what befalls the connection.
func (c *Client) listen(a Answers) error {
	c.nc.SetDisconnectErrHandler(func(*nats.Conn, error) { a.Disconnected() })
	c.nc.SetReconnectHandler(func(*nats.Conn) { a.Reconnected() })
	sub, err := c.nc.Subscribe(a.Inbox+".>", func(m *nats.Msg) { a.Take(m.Subject, m.Header.Get("Status"), m.Data) })
	if err == nil {
		err = sub.SetPendingLimits(-1, -1) // an answer that is dropped here would be a timeout
	}
	if err != nil {
		return fmt.Errorf("subscribe to answers: %w", err)
	}
	return nil
}

// Close ends the connection at once. What is in flight stays unanswered.
func (c *Client) Close() {
	c.nc.Close()
}

// Connected tells whether the connection is up at present.
func (c *Client) Connected() bool { return c.nc.IsConnected() }

// Closed is closed once the connection is closed for good.
func (c *Client) Closed() <-chan struct{} { return c.closed }

// AsyncError returns the newest error that arrived outside of any call, and when.
func (c *Client) AsyncError() (time.Time, error) {
	if e := c.lastAsyncErr.Load(); e != nil {
		return e.at, e.err
	}
	return time.Time{}, nil
}

// MaxPayload is the most bytes, headers included, that the server takes.
func (c *Client) MaxPayload() int { return int(c.nc.MaxPayload()) }

// withoutURL drops the parts of a nats.go error that repeat the server's URL, since
// a URL may hold a password. What is left is the kind of the error.
func withoutURL(err error) error {
	for _, known := range []error{
		nats.ErrNoServers, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrTimeout,
		nats.ErrSecureConnRequired, nats.ErrSecureConnWanted, nats.ErrMaxConnectionsExceeded,
	} {
		if errors.Is(err, known) {
			return known
		}
	}
	return err
}
