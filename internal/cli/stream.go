package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
	"github.com/outbox-cdc/outbox-cdc/internal/provision"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

func streamCommand() command {
	return command{
		name: "stream", usage: "create, show: the JetStream stream",
		long:    "The stream is best one that nobody else publishes into.",
		example: "outbox-cdc stream show --stream OUTBOX",
		commands: []command{
			{
				name: "create", usage: "make the stream",
				long: "File storage, limits retention, subjects that cover --subject, batches allowed. A stream that is\n" +
					"there and does not differ is left as it is; one that differs is named, with exit code 3.",
				example:  "outbox-cdc stream create --stream ARCHIVE --subject 'archive.{event_type}' --max-age 168h --dry-run",
				settings: append(streamSettings(), dryRunSetting("print the configuration, change nothing"), jsonSetting()),
				run:      runStreamCreate,
			},
			{
				name: "show", usage: "the stream as the server has it",
				example:  "outbox-cdc stream show --json",
				settings: []setting{jsonSetting()},
				run:      runStreamShow,
			},
		},
	}
}

func runStreamCreate(ctx context.Context, in *invocation) error {
	client, err := in.dialNATS(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	spec := in.streamSpec()
	spec.AllowBatched = client.SupportsBatched()
	status, err := client.StreamStatus(ctx, spec.Name)
	if err != nil {
		return err
	}
	if status.Exists {
		for _, d := range sink.Diff(spec, status) {
			return fault.NewOperator("stream-differs", fmt.Sprintf("stream %s: %s", spec.Name, d), provision.StreamEdit(spec, d), nil)
		}
		return in.report("stream", spec.Name, provision.ResultExists, "")
	}
	if in.on("dry-run") {
		config, err := spec.JSON()
		if err != nil {
			return err
		}
		if in.on("json") {
			return printJSON(in.stdout, map[string]any{"kind": "stream", "name": spec.Name, "result": provision.ResultMissing, "stream": json.RawMessage(config)})
		}
		return printf(in.stdout, "%s\n", config)
	}
	if err := client.CreateStream(ctx, spec); err != nil {
		return err
	}
	return in.report("stream", spec.Name, provision.ResultCreated, "")
}

// streamDocument is the JSON of stream show, in the words of the nats CLI.
type streamDocument struct {
	Name            string   `json:"name"`
	Exists          bool     `json:"exists"`
	Subjects        []string `json:"subjects"`
	Messages        uint64   `json:"messages"`
	Bytes           uint64   `json:"bytes"`
	FirstSequence   uint64   `json:"first_sequence"`
	LastSequence    uint64   `json:"last_sequence"`
	Replicas        int      `json:"num_replicas"`
	Leader          string   `json:"leader"`
	DuplicateWindow float64  `json:"duplicate_window_seconds"`
	MaxAge          float64  `json:"max_age_seconds"`
	MaxBytes        int64    `json:"max_bytes"`
	MaxMsgs         int64    `json:"max_msgs"`
	MaxMsgSize      int32    `json:"max_msg_size"`
	Retention       string   `json:"retention"`
	Discard         string   `json:"discard"`
	Storage         string   `json:"storage"`
	AllowBatched    bool     `json:"allow_batched"`
	NoAck           bool     `json:"no_ack"`
	Sealed          bool     `json:"sealed"`
	Mirror          bool     `json:"mirror"`
}

func runStreamShow(ctx context.Context, in *invocation) error {
	client, err := in.dialNATS(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	s, err := client.StreamStatus(ctx, in.str("stream"))
	if err != nil {
		return err
	}
	if in.on("json") {
		if s.Subjects == nil {
			s.Subjects = []string{}
		}
		if err := printJSON(in.stdout, streamDocument{
			Name: s.Name, Exists: s.Exists, Subjects: s.Subjects, Messages: s.Messages, Bytes: s.Bytes,
			FirstSequence: s.FirstSequence, LastSequence: s.LastSequence, Replicas: s.Replicas, Leader: s.Leader,
			DuplicateWindow: s.DuplicateWindow.Seconds(), MaxAge: s.MaxAge.Seconds(), MaxBytes: s.MaxBytes, MaxMsgs: s.MaxMsgs,
			MaxMsgSize: s.MaxMsgSize, Retention: s.Retention, Discard: s.Discard, Storage: s.Storage,
			AllowBatched: s.AllowBatched, NoAck: s.NoAck, Sealed: s.Sealed, Mirror: s.Mirror,
		}); err != nil {
			return err
		}
	}
	if !s.Exists {
		return fault.NewOperator("stream-missing", fmt.Sprintf("stream %s does not exist", s.Name), "outbox-cdc stream create --stream "+s.Name, nil)
	}
	if in.on("json") {
		return nil
	}
	return in.printStream(s)
}

func (in *invocation) printStream(s sink.StreamStatus) error {
	age := "kept for ever"
	if s.MaxAge > 0 {
		age = "kept for " + s.MaxAge.String()
	}
	newest := "never"
	if !s.LastTime.IsZero() && s.LastSequence > 0 {
		newest = s.LastTime.UTC().Format(time.RFC3339)
	}
	return printf(in.stdout, "stream %s\n  subjects    %s\n  messages    %s, %s, sequences %d to %d, newest %s\n  storage     %s, %d replicas, %s retention, %s, discard %s\n  duplicates  seen for %s\n  batches     %t\n",
		s.Name, strings.Join(s.Subjects, ", "), humanize.Comma(int64(s.Messages)), humanize.IBytes(s.Bytes), s.FirstSequence, s.LastSequence, newest,
		s.Storage, s.Replicas, s.Retention, age, s.Discard, s.DuplicateWindow, s.AllowBatched)
}
