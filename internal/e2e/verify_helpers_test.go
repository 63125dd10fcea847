package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// verified is the document of verify.
type verified struct {
	Checked  int `json:"checked"`
	InStream int `json:"in_stream"`
	Missing  []struct {
		EventID string `json:"event_id"`
	} `json:"missing"`
	MissingCount int `json:"missing_count"`
	Duplicates   []struct {
		EventID   string   `json:"event_id"`
		Sequences []uint64 `json:"sequences"`
	} `json:"duplicates"`
	DuplicateCount int `json:"duplicate_count"`
	Inversions     []struct {
		AggregateID string   `json:"aggregate_id"`
		Sequences   []uint64 `json:"sequences"`
	} `json:"order_inversions"`
	InversionCount int  `json:"order_inversion_count"`
	Unknown        int  `json:"unknown_count"`
	AgedOut        int  `json:"aged_out_count"`
	Pending        int  `json:"pending_count"`
	DeadLetters    int  `json:"dead_letters"`
	Held           int  `json:"held"`
	Repaired       *int `json:"repaired"`
	OK             bool `json:"ok"`
}

// missing returns the ids of the missing events.
func (d verified) missing() []string {
	var ids []string
	for _, e := range d.Missing {
		ids = append(ids, e.EventID)
	}
	return ids
}

// verify runs the command, which must end with that code, and returns its document.
func (o *outbox) verify(code int, args ...string) (verified, *testenv.Program) {
	o.tb.Helper()
	p := o.run(append([]string{"verify"}, args...)...)
	p.WaitExit(code, 4*testenv.Deadline)
	var d verified
	if err := json.Unmarshal([]byte(p.Stdout()), &d); err != nil {
		o.tb.Fatalf("%v in %q", err, p.Stdout())
	}
	if d.OK != (code == 0) || d.MissingCount < len(d.Missing) || d.DuplicateCount < len(d.Duplicates) || d.InversionCount < len(d.Inversions) {
		o.tb.Fatalf("exit code %d with %+v", code, d)
	}
	return d, p
}

// expectVerified checks the counts of a document, written as "checked 3, missing 1"; what
// is not named must be 0.
func (o *outbox) expectVerified(d verified, want string) {
	o.tb.Helper()
	var got []string
	for _, f := range []struct {
		name  string
		count int
	}{
		{"checked", d.Checked}, {"in stream", d.InStream}, {"missing", d.MissingCount}, {"duplicates", d.DuplicateCount}, {"inversions", d.InversionCount},
		{"unknown", d.Unknown}, {"aged out", d.AgedOut}, {"pending", d.Pending}, {"dead", d.DeadLetters}, {"held", d.Held},
	} {
		if f.count != 0 {
			got = append(got, fmt.Sprintf("%s %d", f.name, f.count))
		}
	}
	if text := strings.Join(got, ", "); text != want {
		o.tb.Errorf("verify found %q, want %q: %+v", text, want, d)
	}
}

// expectVerifyAgrees checks that verify finds all rows in the stream, each once and in order.
func (o *outbox) expectVerifyAgrees(rows int) {
	o.tb.Helper()
	d, p := o.verify(0)
	if d.Checked != rows || d.InStream != rows {
		o.tb.Errorf("verify found %+v, want %d rows in the stream\n%s", d, rows, p.Stderr())
	}
}

// deleteMessage deletes one message of the stream.
func (o *outbox) deleteMessage(sequence uint64) {
	o.tb.Helper()
	ctx := testenv.Context(o.tb, testenv.Deadline)
	s, err := testenv.JetStream(o.tb, o.natsURL).Stream(ctx, o.stream)
	if err == nil {
		err = s.DeleteMsg(ctx, sequence)
	}
	if err != nil {
		o.tb.Fatal(err)
	}
}

// publishCopy stores a message again as it was, with changed headers, and without what made the server refuse
// it. It returns its sequence.
func (o *outbox) publishCopy(m testenv.Message, change func(nats.Header)) uint64 {
	o.tb.Helper()
	msg := &nats.Msg{Subject: m.Subject, Data: m.Data, Header: nats.Header{}}
	for name, values := range m.Header {
		if !strings.HasPrefix(name, "Nats-") {
			msg.Header[name] = slices.Clone(values)
		}
	}
	if change != nil {
		change(msg.Header)
	}
	ack, err := testenv.JetStream(o.tb, o.natsURL).PublishMsg(testenv.Context(o.tb, testenv.Deadline), msg)
	if err != nil {
		o.tb.Fatal(err)
	}
	return ack.Sequence
}

// deliver runs a forwarder until all that is committed is delivered, and stops it.
func (o *outbox) deliver(args ...string) {
	o.tb.Helper()
	p := o.startStreaming(args...)
	o.run("wait").WaitExit(0, 2*testenv.Deadline)
	p.Kill()
	testenv.Eventually(o.tb, testenv.Deadline, func() error {
		if pid := o.holder(); pid != "" {
			return fmt.Errorf("process %s still holds the slot", pid)
		}
		return nil
	})
}
