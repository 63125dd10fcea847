package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"sync"

	"github.com/outbox-cdc/outbox-cdc/internal/demo"
)

// devScreen prints what happens in dev: text for a person, or NDJSON. Its methods may be
// called from several goroutines.
type devScreen struct {
	mu     sync.Mutex
	out    io.Writer // the events and the last line
	notes  io.Writer // all else
	asJSON bool
	data   string // kept folder, or empty
	shown  bool   // welcome was said: there is something to sum up
	failed error  // of the first write that failed
}

func newDevScreen(in *invocation) *devScreen {
	s := &devScreen{out: in.stdout, notes: in.stdout, asJSON: in.on("json"), data: in.str("data")}
	if s.asJSON {
		s.notes = in.stderr
	}
	return s
}

func (s *devScreen) print(w io.Writer, format string, args ...any) {
	if err := printf(w, format, args...); err != nil && s.failed == nil {
		s.failed = err
	}
}

// welcome says where everything is.
func (s *devScreen) welcome(servers *devServers, httpAddress, stream string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = true
	s.print(s.notes, "PostgreSQL %-5d psql '%s'\n", servers.postgres.Major(), servers.postgres.URL(devDatabase))
	s.print(s.notes, "JetStream        nats --server %s stream view %s\n", servers.nats.URL(), stream)
	if httpAddress != "" {
		s.print(s.notes, "live page        http://%s/\n", httpAddress)
	}
	if s.data == "" {
		s.print(s.notes, "data             thrown away at the end; --data DIR keeps it\n")
	} else {
		s.print(s.notes, "data             kept in %s\n", filepath.Clean(s.data))
	}
	s.print(s.notes, "\nEach order is a row in table orders and an event in the outbox, written in one transaction.\n"+
		"Every tenth is rolled back. Insert some of your own with psql. Ctrl-C stops everything.\n\n")
	if !s.asJSON {
		s.print(s.out, "%8s  %-24s %s\n", "sequence", "subject", "event")
	}
}

// devEvent is a line of NDJSON.
type devEvent struct {
	Sequence uint64          `json:"sequence"`
	Subject  string          `json:"subject"`
	EventID  string          `json:"event_id"`
	Position string          `json:"position"`
	Body     json.RawMessage `json:"body,omitempty"` // when it is JSON
}

func (s *devScreen) arrived(a demo.Arrival) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asJSON {
		s.print(s.out, "%8d  %-24s %s\n", a.Sequence, a.Subject, payloadOf(a.Body))
		return
	}
	event := devEvent{Sequence: a.Sequence, Subject: a.Subject, EventID: a.EventID, Position: a.Position}
	if json.Valid(a.Body) {
		event.Body = a.Body
	}
	s.line(map[string]any{"event": event})
}

func (s *devScreen) rolledBack(r demo.RolledBack) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asJSON {
		s.print(s.out, "%8s  %-24s order %d: there is no event of it\n", "-", "rolled back", r.Order)
		return
	}
	s.line(map[string]any{"rolled_back": map[string]any{"order": r.Order, "event_id": r.EventID}})
}

// finish prints the last lines, if anything ran; nothing runs any more.
func (s *devScreen) finish(summary demo.Summary, failure error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shown {
		return nil
	}
	if s.asJSON {
		s.line(struct {
			demo.Summary
			OK bool `json:"ok"`
		}{summary, failure == nil})
		return s.failed
	}
	s.print(s.out, "\nrolled back %d orders, %d of their events arrived\n", summary.RolledBack, summary.Phantoms)
	if summary.Others > 0 {
		s.print(s.out, "%d events of others arrived\n", summary.Others)
	}
	s.print(s.out, "%s\n", summary)
	return s.failed
}

func (s *devScreen) line(document any) {
	raw, err := json.Marshal(document)
	if err != nil {
		s.failed = fmt.Errorf("write JSON: %w", err)
		return
	}
	s.print(s.out, "%s\n", raw)
}

// payloadOf returns the payload of an envelope, for a person, else the start of the body.
func payloadOf(body []byte) string {
	const charactersMax = 200
	var envelope struct {
		Payload json.RawMessage `json:"payload"`
	}
	text := string(body)
	if err := json.Unmarshal(body, &envelope); err == nil && envelope.Payload != nil {
		text = string(envelope.Payload)
	}
	if characters := []rune(text); len(characters) > charactersMax {
		text = string(characters[:charactersMax]) + "..."
	}
	return text
}
