package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
)

type handler struct {
	source  Source
	version string
	redact  func(string) string
	page    *page
}

func newHandler(cfg Config) (http.Handler, error) {
	if cfg.Source == nil || cfg.Metrics == nil {
		return nil, errors.New("set up HTTP: Source and Metrics are required")
	}
	h := &handler{source: cfg.Source, version: cfg.Version, redact: cfg.Redact, page: newPage()}
	if h.redact == nil {
		h.redact = func(s string) string { return s }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", h.livez)
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.HandleFunc("GET /status", h.status)
	mux.Handle("GET /metrics", cfg.Metrics)
	mux.HandleFunc("GET /{$}", h.live)
	return h.secured(mux), nil
}

// secured adds the headers that every answer has: nothing is cached, guessed, framed
// or loaded from elsewhere.
func (h *handler) secured(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Cache-Control", "no-store")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Content-Security-Policy", h.page.policy)
		next.ServeHTTP(w, r)
	})
}

func (h *handler) livez(w http.ResponseWriter, _ *http.Request) {
	ok, reason := h.source.Live()
	writeJSON(w, codeFor(ok), struct {
		Live   bool   `json:"live"`
		Reason string `json:"reason,omitempty"`
	}{ok, h.text(reason)})
}

func (h *handler) readyz(w http.ResponseWriter, _ *http.Request) {
	ok, reason := h.source.Ready()
	writeJSON(w, codeFor(ok), struct {
		Ready  bool   `json:"ready"`
		Reason string `json:"reason,omitempty"`
	}{ok, h.text(reason)})
}

func (h *handler) status(w http.ResponseWriter, r *http.Request) {
	doc, err := h.document(r.Context())
	if err != nil {
		writeJSON(w, http.StatusServiceUnavailable, struct {
			Error string `json:"error"`
		}{h.text(err.Error())})
		return
	}
	var out bytes.Buffer
	// The bytes were made by this package: they are valid JSON.
	_ = json.Indent(&out, doc.appendJSON(nil), "", "  ")
	out.WriteByte('\n')
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(out.Bytes()) // the client may have gone
}

// live is the page for people. It answers 200 also when all is not well: the page
// says so, and its script goes on asking.
func (h *handler) live(w http.ResponseWriter, r *http.Request) {
	ready, readyReason := h.source.Ready()
	live, liveReason := h.source.Live()
	view := pageView{
		Version: h.version, Now: time.Now().UTC().Format("2006-01-02 15:04:05 UTC"),
		Ready: ready, Live: live,
	}
	switch {
	case !live:
		view.Reason = h.text(liveReason)
	default:
		view.Reason = h.text(readyReason)
	}
	if doc, err := h.document(r.Context()); err != nil {
		view.Error = h.text(err.Error())
	} else {
		view.State, view.Sections = sections(doc)
	}
	h.page.write(w, view)
}

// document asks the source and takes secrets out of every text of its answer.
func (h *handler) document(ctx context.Context) (node, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	v, err := h.source.Status(ctx)
	if err != nil {
		return node{}, err
	}
	return parseDocument(v, h.redact)
}

// text makes one line without secrets.
func (h *handler) text(s string) string {
	return h.redact(strings.Join(strings.Fields(s), " "))
}

func codeFor(ok bool) int {
	if ok {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// writeJSON writes one line. v is one of the structs above, which cannot fail to encode.
func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}
