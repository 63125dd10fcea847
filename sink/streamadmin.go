package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamSpec is a stream that is to be made. All streams that are made have file
// storage, limits retention and discard the oldest messages at a limit.
type StreamSpec struct {
	Name            string
	Subjects        []string
	Replicas        int
	DuplicateWindow time.Duration
	MaxAge          time.Duration // 0 is none
	MaxBytes        int64         // 0 is none
	AllowBatched    bool          // fast batches, nats-server 2.14 and newer
}

// StreamStatus is a stream as the server's leader describes it.
type StreamStatus struct {
	Exists          bool
	Name            string
	Subjects        []string
	Messages        uint64
	Bytes           uint64
	FirstSequence   uint64
	LastSequence    uint64
	LastTime        time.Time // of the newest message; zero when there was none
	Created         time.Time
	Replicas        int
	DuplicateWindow time.Duration
	MaxAge          time.Duration // 0 is none
	MaxBytes        int64         // <= 0 is none
	MaxMsgs         int64         // <= 0 is none
	MaxMsgsPerSubj  int64         // <= 0 is none
	MaxMsgSize      int32         // bytes with headers; <= 0 is none
	AllowBatched    bool
	NoAck           bool
	Sealed          bool
	Mirror          bool
	Retention       string // limits, interest or workqueue
	Discard         string // old or new
	Storage         string // file or memory
	Leader          string // name of the server; empty without a cluster
}

const retentionLimits = "limits"

// discardOld is the policy that makes room at a limit by dropping the oldest messages.
const discardOld = "old"

// Difference is a setting of a stream that is not what it should be.
type Difference struct {
	Setting string // in the words of the nats CLI's JSON
	Want    string
	Have    string
}

// String says what differs, for a person.
func (d Difference) String() string {
	return fmt.Sprintf("%s is %s, not %s", d.Setting, d.Have, d.Want)
}

// config is the server's form of the spec.
func (s StreamSpec) config() jetstream.StreamConfig {
	maxBytes := s.MaxBytes
	if maxBytes == 0 {
		maxBytes = -1
	}
	return jetstream.StreamConfig{
		Name:      s.Name,
		Subjects:  s.Subjects,
		Retention: jetstream.LimitsPolicy,
		Storage:   jetstream.FileStorage,
		Discard:   jetstream.DiscardOld,
		Replicas:  s.Replicas,
		MaxAge:    s.MaxAge,
		MaxBytes:  maxBytes,
		MaxMsgs:   -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxConsumers: -1,
		Duplicates:        s.DuplicateWindow,
		AllowDirect:       true,
		AllowBatchPublish: s.AllowBatched,
	}
}

// StreamStatus looks a stream up. A stream that does not exist is no error.
func (c *Client) StreamStatus(ctx context.Context, name string) (StreamStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	stream, err := c.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return StreamStatus{Name: name}, nil
	}
	if err != nil {
		return StreamStatus{}, fmt.Errorf("read stream %q: %w", name, err)
	}
	return statusOf(stream.CachedInfo()), nil
}

func statusOf(info *jetstream.StreamInfo) StreamStatus {
	cfg, state := info.Config, info.State
	status := StreamStatus{
		Exists: true, Name: cfg.Name, Subjects: cfg.Subjects,
		Messages: state.Msgs, Bytes: state.Bytes, FirstSequence: state.FirstSeq, LastSequence: state.LastSeq, LastTime: state.LastTime, Created: info.Created,
		Replicas: cfg.Replicas, DuplicateWindow: cfg.Duplicates, MaxAge: cfg.MaxAge, MaxBytes: cfg.MaxBytes,
		MaxMsgs: cfg.MaxMsgs, MaxMsgsPerSubj: cfg.MaxMsgsPerSubject, MaxMsgSize: cfg.MaxMsgSize,
		AllowBatched: cfg.AllowBatchPublish, NoAck: cfg.NoAck, Sealed: cfg.Sealed, Mirror: cfg.Mirror != nil,
		Retention: strings.ToLower(cfg.Retention.String()), Discard: strings.ToLower(strings.TrimPrefix(cfg.Discard.String(), "Discard")),
		Storage: strings.ToLower(cfg.Storage.String()),
	}
	if info.Cluster != nil {
		status.Leader = info.Cluster.Leader
	}
	return status
}

// CreateStream makes the stream. When one of that name exists with another
// configuration the error's code is 10058.
func (c *Client) CreateStream(ctx context.Context, spec StreamSpec) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if _, err := c.js.CreateStream(ctx, spec.config()); err != nil {
		return fmt.Errorf("create stream %q: %w", spec.Name, err)
	}
	return nil
}

// StreamsCovering returns the names of the streams that listen on the subject, wildcards
// included.
func (c *Client) StreamsCovering(ctx context.Context, subject string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	lister := c.js.StreamNames(ctx, jetstream.WithStreamListSubject(subject))
	var names []string
	for name := range lister.Name() {
		names = append(names, name)
	}
	if err := lister.Err(); err != nil {
		return nil, fmt.Errorf("list streams on %q: %w", subject, err)
	}
	return names, nil
}

// Diff lists what keeps an existing stream from being what setup would make. Limits that
// the caller did not ask for (0 in the spec) may be anything.
func Diff(spec StreamSpec, have StreamStatus) []Difference {
	var diffs []Difference
	add := func(differs bool, setting, want, got string) {
		if differs {
			diffs = append(diffs, Difference{Setting: setting, Want: want, Have: got})
		}
	}
	add(Coverage(spec.Subjects, have.Subjects) != CoveredWhole, "subjects", strings.Join(spec.Subjects, ", "), orNone(strings.Join(have.Subjects, ", ")))
	add(have.Retention != retentionLimits, "retention", retentionLimits, have.Retention)
	add(have.Storage != "file", "storage", "file", have.Storage)
	add(have.NoAck, "no_ack", "false", "true")
	add(have.Sealed, "sealed", "false", "true")
	add(have.Mirror, "mirror", "none", "set")
	add(spec.Replicas != 0 && have.Replicas != spec.Replicas, "num_replicas", fmt.Sprint(spec.Replicas), fmt.Sprint(have.Replicas))
	add(spec.DuplicateWindow != 0 && have.DuplicateWindow != spec.DuplicateWindow, "duplicate_window", spec.DuplicateWindow.String(), have.DuplicateWindow.String())
	add(spec.MaxAge != 0 && have.MaxAge != spec.MaxAge, "max_age", spec.MaxAge.String(), have.MaxAge.String())
	add(spec.MaxBytes != 0 && have.MaxBytes != spec.MaxBytes, "max_bytes", fmt.Sprint(spec.MaxBytes), fmt.Sprint(have.MaxBytes))
	add(spec.AllowBatched && !have.AllowBatched, "allow_batched", "true", "false")
	return diffs
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// Covered says how far a stream listens on what a template can make.
type Covered uint8

// The answers of Coverage.
const (
	CoveredNot   Covered = iota // no subject of the template reaches the stream
	CoveredPart                 // some do, by their values
	CoveredWhole                // all do
)

// Coverage compares the subjects that a template can make (from SubjectsFor) with those
// of a stream.
func Coverage(wanted, subjects []string) Covered {
	whole, part := true, false
	for _, want := range wanted {
		whole = whole && slices.ContainsFunc(subjects, func(s string) bool { return subjectWithin(want, s) })
		part = part || slices.ContainsFunc(subjects, func(s string) bool { return subjectsMeet(want, s) })
	}
	switch {
	case whole:
		return CoveredWhole
	case part:
		return CoveredPart
	default:
		return CoveredNot
	}
}

// SubjectsFor returns the narrowest subjects that hold all that a template can make.
// Values keep their dots, so everything after the first value is open:
// "outbox.{aggregate_type}.{event_type}" gives "outbox.>".
func SubjectsFor(template string) []string {
	before, _, hasValue := strings.Cut(template, "{")
	if !hasValue {
		return []string{template}
	}
	if dot := strings.LastIndexByte(before, '.'); dot >= 0 {
		return []string{before[:dot] + ".>"}
	}
	return []string{">"}
}

// subjectWithin reports whether every subject of inner is one of outer.
func subjectWithin(inner, outer string) bool {
	in, out := strings.Split(inner, "."), strings.Split(outer, ".")
	for i, token := range out {
		switch {
		case token == ">":
			return len(in) > i
		case i >= len(in) || in[i] == ">":
			return false
		case token != "*" && token != in[i]:
			return false
		}
	}
	return len(in) == len(out)
}

// subjectsMeet reports whether some subject is one of both.
func subjectsMeet(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; i < len(as) && i < len(bs); i++ {
		switch {
		case as[i] == ">" || bs[i] == ">":
			return true
		case as[i] != "*" && bs[i] != "*" && as[i] != bs[i]:
			return false
		}
	}
	return len(as) == len(bs)
}

// batchedSince is the first nats-server version with fast batches.
var batchedSince = [2]int{2, 14}

// ServerVersion is the version of the nats-server that answers.
func (c *Client) ServerVersion() string { return c.nc.ConnectedServerVersion() }

// SupportsBatched reports whether the server knows fast batches. An unknown version counts as new.
func (c *Client) SupportsBatched() bool {
	var major, minor int
	if _, err := fmt.Sscanf(c.ServerVersion(), "%d.%d", &major, &minor); err != nil {
		return true
	}
	return major > batchedSince[0] || major == batchedSince[0] && minor >= batchedSince[1]
}

// JSON returns the configuration as the server takes it, for a person or another tool.
func (s StreamSpec) JSON() ([]byte, error) {
	text, err := json.MarshalIndent(s.config(), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write configuration of stream %q: %w", s.Name, err)
	}
	return text, nil
}
