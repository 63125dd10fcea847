package web

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeSource says what the test wants it to say.
type fakeSource struct {
	mu          sync.Mutex
	live, ready bool
	reason      string
	status      any
	err         error
	hold        chan struct{} // when not nil, Status waits for it or for its context
	asked       atomic.Int32
}

func (f *fakeSource) Live() (bool, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live, f.reason
}

func (f *fakeSource) Ready() (bool, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ready, f.reason
}

func (f *fakeSource) Status(ctx context.Context) (any, error) {
	f.asked.Add(1)
	if f.hold != nil {
		select {
		case <-f.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status, f.err
}

// serve runs a server on a free port until the test ends, and returns its URL.
func serve(t *testing.T, cfg Config) string {
	t.Helper()
	cfg.Addr = "127.0.0.1:0"
	if cfg.Metrics == nil {
		cfg.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "figures\n") })
	}
	s, err := Listen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run ended with %v", err)
		}
	})
	return "http://" + s.Addr()
}

func get(t *testing.T, url string) (int, string, http.Header) {
	t.Helper()
	return request(t, http.MethodGet, url)
}

func request(t *testing.T, method, url string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

func TestReadyzIs503WithOneLineThatSaysWhyUntilTheForwarderIsReady(t *testing.T) {
	src := &fakeSource{live: true, reason: "backing off: NATS is away,\nnext try in 4s"}
	url := serve(t, Config{Source: src})

	code, body, _ := get(t, url+"/readyz")
	if want := `{"ready":false,"reason":"backing off: NATS is away, next try in 4s"}` + "\n"; code != 503 || body != want {
		t.Errorf("got %d %q, want 503 %q", code, body, want)
	}
	src.mu.Lock()
	src.ready, src.reason = true, "standby: held by pid 4711"
	src.mu.Unlock()
	code, body, _ = get(t, url+"/readyz")
	if want := `{"ready":true,"reason":"standby: held by pid 4711"}` + "\n"; code != 200 || body != want {
		t.Errorf("got %d %q, want 200 %q", code, body, want)
	}
}

func TestLivezFollowsTheLoopAndNotTheReadiness(t *testing.T) {
	src := &fakeSource{live: true}
	url := serve(t, Config{Source: src})
	if code, body, _ := get(t, url+"/livez"); code != 200 || body != `{"live":true}`+"\n" {
		t.Errorf("got %d %q", code, body)
	}
	src.mu.Lock()
	src.live, src.ready, src.reason = false, true, "no turn for 31s"
	src.mu.Unlock()
	if code, body, _ := get(t, url+"/livez"); code != 503 || body != `{"live":false,"reason":"no turn for 31s"}`+"\n" {
		t.Errorf("got %d %q", code, body)
	}
}

func TestStatusKeepsTheOrderOfItsKeysAndTheTextOfItsNumbers(t *testing.T) {
	src := &fakeSource{status: json.RawMessage(`{"slot":{"name":"outbox","lag_bytes":12345678901234567890,"synced":null},"b":1,"a":[true,"x"],"state":"streaming"}`)}
	code, body, head := get(t, serve(t, Config{Source: src})+"/status")
	var compact strings.Builder
	for line := range strings.Lines(body) {
		compact.WriteString(strings.TrimSpace(line))
	}
	want := `{"slot": {"name": "outbox","lag_bytes": 12345678901234567890,"synced": null},"b": 1,"a": [true,"x"],"state": "streaming"}`
	if code != 200 || compact.String() != want {
		t.Errorf("got %d %s\nwant %s", code, compact.String(), want)
	}
	if ct := head.Get("Content-Type"); ct != "application/json" {
		t.Errorf("content type is %q", ct)
	}
}

func TestAStatusThatCannotBeReadIs503AndSaysSo(t *testing.T) {
	for name, src := range map[string]*fakeSource{
		"failed":        {err: errors.New("read slot \"outbox\": connection refused")},
		"not an object": {status: 7},
		"not JSON":      {status: func() {}},
	} {
		code, body, _ := get(t, serve(t, Config{Source: src})+"/status")
		var doc struct{ Error string }
		if err := json.Unmarshal([]byte(body), &doc); err != nil || doc.Error == "" || code != 503 {
			t.Errorf("%s: got %d %q", name, code, body)
		}
	}
}

func TestNoAnswerHoldsASecret(t *testing.T) {
	const secret = "s3cr3t-pa55"
	src := &fakeSource{
		reason: "dial postgres://u:" + secret + "@db failed",
		status: map[string]any{"slot": map[string]any{"note": "x " + secret}, "list": []string{secret}},
	}
	failing := &fakeSource{err: errors.New("nats: " + secret)}
	redact := func(s string) string { return strings.ReplaceAll(s, secret, "***") }
	for _, source := range []*fakeSource{src, failing} {
		url := serve(t, Config{Source: source, Redact: redact})
		for _, path := range []string{"/", "/status", "/readyz", "/livez"} {
			_, body, _ := get(t, url+path)
			if strings.Contains(body, secret) {
				t.Errorf("%s shows the secret: %s", path, body)
			}
			if !strings.Contains(body, "***") && source == src {
				t.Errorf("%s does not show that something was taken out: %s", path, body)
			}
		}
	}
}

func TestOnlyReadingIsAllowedAndNothingElseIsServed(t *testing.T) {
	url := serve(t, Config{Source: &fakeSource{live: true, ready: true, status: struct{}{}}})
	for _, path := range []string{"/", "/status", "/readyz", "/livez", "/metrics"} {
		if code, _, _ := request(t, http.MethodPost, url+path); code != http.StatusMethodNotAllowed {
			t.Errorf("POST %s is answered with %d", path, code)
		}
		if code, body, _ := request(t, http.MethodHead, url+path); code != 200 || body != "" {
			t.Errorf("HEAD %s is answered with %d and %q", path, code, body)
		}
		_, _, head := get(t, url+path)
		if head.Get("Cache-Control") != "no-store" || head.Get("X-Content-Type-Options") != "nosniff" || head.Get("Content-Security-Policy") == "" {
			t.Errorf("GET %s lacks a header: %v", path, head)
		}
	}
	if code, _, _ := get(t, url+"/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("an unknown path is answered with %d", code)
	}
	if _, body, _ := get(t, url+"/metrics"); body != "figures\n" {
		t.Errorf("metrics are %q", body)
	}
}

func TestATakenAddressIsNamedWithTheFlagAndTheNextStep(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	addr := l.Addr().String()

	_, err = Listen(t.Context(), Config{Addr: addr, Source: &fakeSource{}, Metrics: http.NotFoundHandler()})
	var le *ListenError
	if !errors.As(err, &le) {
		t.Fatalf("got %v", err)
	}
	if want := "listen on " + addr + " (--http): bind: address already in use"; err.Error() != want {
		t.Errorf("error is %q, want %q", err, want)
	}
	if !strings.Contains(le.Hint(), "--http off") || !strings.Contains(le.Hint(), "another process") {
		t.Errorf("hint is %q", le.Hint())
	}
}

func TestAnOpenRequestIsAnsweredBeforeTheServerEnds(t *testing.T) {
	src := &fakeSource{status: map[string]int{"n": 1}, hold: make(chan struct{})}
	s, err := Listen(t.Context(), Config{Addr: "127.0.0.1:0", Source: src, Metrics: http.NotFoundHandler()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()

	answer := make(chan int, 1)
	go func() {
		resp, err := http.Get("http://" + s.Addr() + "/status")
		if err != nil {
			answer <- -1
			return
		}
		_ = resp.Body.Close()
		answer <- resp.StatusCode
	}()
	for src.asked.Load() == 0 {
		if t.Context().Err() != nil {
			t.Fatal("the request never came")
		}
		yield(t)
	}
	cancel()
	var d net.Dialer
	for { // until the server has begun to end
		conn, err := d.DialContext(t.Context(), "tcp", s.Addr())
		if err != nil {
			break
		}
		_ = conn.Close()
		yield(t)
	}
	close(src.hold)
	if code := <-answer; code != 200 {
		t.Errorf("the open request was answered with %d", code)
	}
	if err := <-ended; err != nil {
		t.Errorf("run ended with %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestAClientThatHangsDoesNotHoldUpTheEnd(t *testing.T) {
	s, err := Listen(t.Context(), Config{Addr: "127.0.0.1:0", Source: &fakeSource{}, Metrics: http.NotFoundHandler()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()

	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /status HTTP/1.1\r\nHost: x\r\n"); err != nil { // never ends
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run ended with %v", err)
	}
}

func TestAListenerThatFailsEndsTheServerWithAnError(t *testing.T) {
	s, err := Listen(t.Context(), Config{Addr: "127.0.0.1:0", Source: &fakeSource{}, Metrics: http.NotFoundHandler()})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "serve HTTP on 127.0.0.1:") {
		t.Errorf("got %v", err)
	}
}

func TestAServerWithoutASourceIsRefused(t *testing.T) {
	if _, err := Listen(t.Context(), Config{Addr: "127.0.0.1:0"}); err == nil {
		t.Error("it was accepted")
	}
}

// yield lets others run between two looks, without a fixed sleep.
func yield(t *testing.T) {
	t.Helper()
	tick := time.NewTimer(time.Millisecond)
	defer tick.Stop()
	select {
	case <-tick.C:
	case <-t.Context().Done():
	}
}
