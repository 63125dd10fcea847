package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// httpSide is what a forwarder serves over HTTP.
type httpSide struct {
	tb   testing.TB
	base string
}

// startHTTP runs a forwarder with its HTTP server on a free port.
func (o *outbox) startHTTP(args ...string) (*testenv.Program, *httpSide) {
	o.tb.Helper()
	port, err := devstack.FreePort(testenv.Context(o.tb, testenv.Deadline))
	if err != nil {
		o.tb.Fatal(err)
	}
	address := devstack.Address(port)
	return o.start(append(args, "--http", address)...), &httpSide{tb: o.tb, base: "http://" + address}
}

// startHTTPStreaming is startHTTP and waits until the forwarder is ready.
func (o *outbox) startHTTPStreaming(args ...string) (*testenv.Program, *httpSide) {
	o.tb.Helper()
	p, h := o.startHTTP(args...)
	h.waitReady()
	return p, h
}

func (h *httpSide) get(path string) (code int, body string) {
	h.tb.Helper()
	return get(h.tb, h.base+path)
}

func (h *httpSide) waitReady() {
	h.tb.Helper()
	h.waitCode("/readyz", http.StatusOK)
}

// waitRed waits until the forwarder says that it is not ready and returns why.
func (h *httpSide) waitRed() string {
	h.tb.Helper()
	return h.waitCode("/readyz", http.StatusServiceUnavailable)
}

// waitRedFor waits until the forwarder is not ready for a reason that holds a word.
func (h *httpSide) waitRedFor(word string) {
	h.tb.Helper()
	testenv.Eventually(h.tb, 2*testenv.Deadline, func() error {
		if code, body := h.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, word) {
			return fmt.Errorf("GET /readyz: %d %s, want 503 and %q", code, body, word)
		}
		return nil
	})
}

func (h *httpSide) waitCode(path string, want int) string {
	h.tb.Helper()
	var body string
	testenv.Eventually(h.tb, 2*testenv.Deadline, func() error {
		var code int
		if code, body = h.get(path); code != want {
			return fmt.Errorf("GET %s: %d %s, want %d", path, code, body, want)
		}
		return nil
	})
	return body
}

// metric returns one series, as "name" or "name{label="value"}"; false when it is absent.
func (h *httpSide) metric(series string) (float64, bool) {
	h.tb.Helper()
	code, body := h.get("/metrics")
	if code != http.StatusOK {
		h.tb.Fatalf("GET /metrics: %d %s", code, body)
	}
	for line := range strings.SplitSeq(body, "\n") {
		if text, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				h.tb.Fatalf("metric %s: %v", series, err)
			}
			return v, true
		}
	}
	return 0, false
}

// waitMetric waits until a series is there and ok.
func (h *httpSide) waitMetric(series string, ok func(float64) bool) float64 {
	h.tb.Helper()
	var v float64
	testenv.Eventually(h.tb, testenv.Deadline, func() error {
		var found bool
		if v, found = h.metric(series); !found || !ok(v) {
			return fmt.Errorf("metric %s is %v (found: %t)", series, v, found)
		}
		return nil
	})
	return v
}

// confirmedLSN is the slot's position.
func (o *outbox) confirmedLSN() pglogrepl.LSN {
	o.tb.Helper()
	return parseLSN(o.tb, o.confirmed())
}

// remakeStream makes the stream anew with a changed configuration.
func (o *outbox) remakeStream(change func(*jetstream.StreamConfig)) {
	o.tb.Helper()
	js := testenv.JetStream(o.tb, o.natsURL)
	ctx := testenv.Context(o.tb, testenv.Deadline)
	s, err := js.Stream(ctx, o.stream)
	if err != nil {
		o.tb.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	change(&cfg)
	if err := js.DeleteStream(ctx, o.stream); err != nil {
		o.tb.Fatal(err)
	}
	o.createStream(js, cfg)
}

// deleteStream deletes the stream and returns what it was configured with.
func (o *outbox) deleteStream() jetstream.StreamConfig {
	o.tb.Helper()
	js := testenv.JetStream(o.tb, o.natsURL)
	ctx := testenv.Context(o.tb, testenv.Deadline)
	s, err := js.Stream(ctx, o.stream)
	if err != nil {
		o.tb.Fatal(err)
	}
	if err := js.DeleteStream(ctx, o.stream); err != nil {
		o.tb.Fatal(err)
	}
	return s.CachedInfo().Config
}

func (o *outbox) createStream(js jetstream.JetStream, cfg jetstream.StreamConfig) {
	o.tb.Helper()
	testenv.Eventually(o.tb, testenv.Deadline, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second) // a cluster without a leader never answers
		defer cancel()
		_, err := js.CreateStream(ctx, cfg)
		return err
	})
}

// withoutBatches makes the stream one that offers no fast batches.
func (o *outbox) withoutBatches() {
	o.tb.Helper()
	o.remakeStream(func(cfg *jetstream.StreamConfig) { cfg.AllowBatchPublish = false })
}

// message returns the only message of this outbox in the stream.
func (o *outbox) message() testenv.Message {
	o.tb.Helper()
	o.waitStored(1)
	messages := o.ours()
	if len(messages) != 1 {
		o.tb.Fatalf("stream holds %d messages, want 1", len(messages))
	}
	return messages[0]
}

// logLine reads a line of the log.
func logLine(tb testing.TB, line string) map[string]any {
	tb.Helper()
	var fields map[string]any
	if err := json.Unmarshal([]byte(line), &fields); err != nil {
		tb.Fatalf("log line %q: %v", line, err)
	}
	return fields
}

// expectStop waits for the end of a command with exit code 3, with one line that
// names all of words and one that begins with hint:. It returns the first line.
func expectStop(tb testing.TB, p *testenv.Program, words ...string) string {
	tb.Helper()
	p.WaitExit(3, 2*testenv.Deadline)
	var failure, hint string
	for line := range strings.SplitSeq(p.Stderr(), "\n") {
		if strings.HasPrefix(line, "outbox-cdc: ") {
			failure = line
		}
		if strings.HasPrefix(line, "hint: ") {
			hint = line
		}
	}
	for _, word := range words {
		if !strings.Contains(failure, word) {
			tb.Errorf("failure line %q does not name %q", failure, word)
		}
	}
	if hint == "" {
		tb.Errorf("no line begins with hint: in\n%s", p.Stderr())
	}
	return failure
}

// expectSlotBefore checks that the slot stands before the event that a failure line names.
func expectSlotBefore(tb testing.TB, o *outbox, failure string) {
	tb.Helper()
	_, rest, _ := strings.Cut(failure, "position ")
	text, _, _ := strings.Cut(rest, " ")
	p, err := decode.ParsePosition(text)
	if err != nil {
		tb.Fatalf("%q names no position: %v", failure, err)
	}
	if got := o.confirmedLSN(); got > p.CommitLSN {
		tb.Errorf("slot stands at %s, behind the event at %s", got, p)
	}
}
