package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// outbox is one outbox with its slot and stream, and the forwarders that run for it.
type outbox struct {
	tb          testing.TB
	databaseURL string // for the tests' own statements
	natsURL     string
	slot        string
	stream      string
	table       string // as SQL
	extra       []string
	setupArgs   []string // for setup alone
	madeByHand  bool     // all but the stream was made by the test itself
	env         []string
	// What the forwarder connects to, where that differs (a proxy).
	forwarderDatabaseURL string
	forwarderNATSURL     string
}

// newOutbox makes a database with an outbox, publication and slot on the shared
// PostgreSQL, and a stream on the given NATS.
func newOutbox(tb testing.TB, natsURL string, options ...func(*outbox)) *outbox {
	tb.Helper()
	return newOutboxOn(tb, testenv.Postgres(tb), natsURL, options...)
}

func newOutboxOn(tb testing.TB, cluster *testenv.Cluster, natsURL string, options ...func(*outbox)) *outbox {
	tb.Helper()
	o := &outbox{
		tb: tb, databaseURL: cluster.NewDatabase(tb), natsURL: natsURL,
		slot: testenv.UniqueName("ob"), stream: testenv.UniqueName("OB"), table: "public.outbox",
	}
	for _, option := range options {
		option(o)
	}
	o.forwarderDatabaseURL, o.forwarderNATSURL = o.databaseURL, o.natsURL
	if o.madeByHand {
		o.migrate()
		o.run("stream", "create").WaitExit(0, testenv.Deadline)
	} else {
		o.setup(o.setupArgs...)
	}
	return o
}

// setup makes what is missing with the product's own command.
func (o *outbox) setup(args ...string) {
	o.tb.Helper()
	p := o.run(append([]string{"setup"}, args...)...)
	p.WaitExit(0, testenv.Deadline)
}

// migrate makes the tables beside the outbox, and the outbox where it is missing.
func (o *outbox) migrate() {
	o.tb.Helper()
	args := []string{"migrate", "up", "--database-url", o.databaseURL, "--table", o.table}
	testenv.RunCommand(o.tb, testenv.Command{Path: testenv.Binary(o.tb), Args: args, Env: o.env}).WaitExit(0, testenv.Deadline)
}

// flags are the flags that all commands of this outbox take.
func (o *outbox) flags() []string {
	return append([]string{
		"--database-url", o.forwarderDatabaseURL, "--nats-url", o.forwarderNATSURL,
		"--slot", o.slot, "--stream", o.stream, "--table", o.table,
		"--subject", o.stream + ".{aggregate_type}.{event_type}",
	}, o.extra...)
}

// run runs the binary with this outbox's flags; args[0] is the command.
func (o *outbox) run(args ...string) *testenv.Program {
	o.tb.Helper()
	all := append(slices.Clone(args[:1]), o.flags()...)
	return testenv.RunCommand(o.tb, testenv.Command{Path: testenv.Binary(o.tb), Args: append(all, args[1:]...), Env: o.env})
}

// start runs a forwarder; it does not wait for anything.
func (o *outbox) start(args ...string) *testenv.Program {
	o.tb.Helper()
	if !slices.Contains(args, "--http") {
		args = append(args, "--http", "off")
	}
	return o.run(append([]string{"start"}, args...)...)
}

// startStreaming runs a forwarder and waits until it streams.
func (o *outbox) startStreaming(args ...string) *testenv.Program {
	o.tb.Helper()
	p := o.start(args...)
	p.WaitLine(`"msg":"streaming"`, testenv.Deadline)
	return p
}

// exec runs statements.
func (o *outbox) exec(statements ...string) {
	o.tb.Helper()
	testenv.Exec(o.tb, o.databaseURL, statements...)
}

// insert commits n events one by one; the aggregate's version counts from 1, so that
// the order can be seen.
func (o *outbox) insert(aggregate string, n int) {
	o.tb.Helper()
	o.exec(fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
		INSERT INTO %s (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
		VALUES ('order', '%s', i, 'placed', jsonb_build_object('n', i)); COMMIT; END LOOP; END $$`, n, o.table, aggregate))
}

// insertTx commits n events in one transaction.
func (o *outbox) insertTx(aggregate string, n int) {
	o.tb.Helper()
	o.exec(fmt.Sprintf(`INSERT INTO %s (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
		SELECT 'order', '%s', i, 'placed', jsonb_build_object('n', i) FROM generate_series(1, %d) i`, o.table, aggregate, n))
}

// rows returns the event ids of the table in the order of its rows.
func (o *outbox) rows() []string {
	o.tb.Helper()
	return testenv.Query(o.tb, o.databaseURL, "SELECT event_id::text FROM "+o.table+" ORDER BY id")
}

// stored returns the stream's messages.
func (o *outbox) stored() []testenv.Message {
	o.tb.Helper()
	return testenv.DumpStream(o.tb, o.natsURL, o.stream)
}

// ours returns the messages of the stream that this outbox published.
func (o *outbox) ours() []testenv.Message {
	o.tb.Helper()
	var out []testenv.Message
	for _, m := range o.stored() {
		if m.Header.Get("Outbox-Source") != "" {
			out = append(out, m)
		}
	}
	return out
}

// waitStored waits until the stream holds at least n messages of this outbox.
func (o *outbox) waitStored(n int) {
	o.tb.Helper()
	js := testenv.JetStream(o.tb, o.natsURL)
	testenv.Eventually(o.tb, 4*testenv.Deadline, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s, err := js.Stream(ctx, o.stream)
		if err != nil {
			return err
		}
		if got := int(s.CachedInfo().State.Msgs); got < n {
			return fmt.Errorf("stream %s holds %d messages, want %d", o.stream, got, n)
		}
		return nil
	})
}

// waitConfirmed waits until the slot has confirmed everything that is committed now.
func (o *outbox) waitConfirmed() {
	o.tb.Helper()
	target := testenv.Query(o.tb, o.databaseURL, "SELECT pg_current_wal_lsn()::text")[0]
	testenv.Eventually(o.tb, 4*testenv.Deadline, func() error {
		got := testenv.Query(o.tb, o.databaseURL, "SELECT confirmed_flush_lsn::text || CASE WHEN confirmed_flush_lsn >= '"+target+"' THEN ' reached' ELSE '' END FROM pg_replication_slots WHERE slot_name = '"+o.slot+"'")
		if len(got) == 0 || !strings.HasSuffix(got[0], "reached") {
			return fmt.Errorf("slot %s is at %v, want %s", o.slot, got, target)
		}
		return nil
	})
}

// confirmed returns the slot's position.
func (o *outbox) confirmed() string {
	o.tb.Helper()
	return testenv.Query(o.tb, o.databaseURL, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '"+o.slot+"'")[0]
}

// expectAll checks that the stream holds exactly the rows of the table: each once,
// none missing, in the order of the table's ids (which is the commit order as long
// as one session writes), with positions that grow.
func (o *outbox) expectAll() {
	o.tb.Helper()
	want := o.rows()
	o.waitStored(len(want))
	o.expectEvents(o.ours(), want)
}

// expectEvents checks ids and order of messages.
func (o *outbox) expectEvents(messages []testenv.Message, want []string) {
	o.tb.Helper()
	got := testenv.MessageIDs(messages)
	if !slices.Equal(got, want) {
		o.tb.Fatalf("stream holds %s, want %s", summary(got), summary(want))
	}
	expectPositionsGrow(o.tb, messages)
}

func summary(ids []string) string {
	seen := map[string]int{}
	for _, id := range ids {
		seen[id]++
	}
	twice := 0
	for _, n := range seen {
		if n > 1 {
			twice++
		}
	}
	head := ids
	if len(head) > 12 {
		head = head[:12]
	}
	return fmt.Sprintf("%d events (%d distinct, %d more than once) %v...", len(ids), len(seen), twice, head)
}

// expectPositionsGrow checks the order by the positions that the messages carry.
func expectPositionsGrow(tb testing.TB, messages []testenv.Message) {
	tb.Helper()
	var last decode.Position
	for i, m := range messages {
		p, err := decode.ParsePosition(m.Header.Get("Outbox-Position"))
		if err != nil {
			tb.Fatalf("message %d: %v", m.Sequence, err)
		}
		if i > 0 && p.Compare(last) <= 0 {
			tb.Fatalf("message %d has position %s behind %s", m.Sequence, p, last)
		}
		last = p
	}
}

// expectCommitOrder checks that the stream holds the table's rows each once, ordered
// by position, and that the versions of each aggregate grow. It serves where several
// sessions write at once, so that ids and commits differ in order. The command verify has
// to find the same.
func (o *outbox) expectCommitOrder() {
	o.tb.Helper()
	o.waitStored(len(o.rows()))
	o.expectCommitOrderOf(o.ours())
}

// expectCommitOrderOf is expectCommitOrder for given messages.
func (o *outbox) expectCommitOrderOf(messages []testenv.Message) {
	o.tb.Helper()
	want := o.rows()
	got := testenv.MessageIDs(messages)
	expectPositionsGrow(o.tb, messages)
	versions := map[string]int64{}
	for _, m := range messages {
		var env struct {
			AggregateID      string `json:"aggregateId"`
			AggregateVersion int64  `json:"aggregateVersion"`
		}
		if err := json.Unmarshal(m.Data, &env); err != nil {
			o.tb.Fatalf("message %d: %v", m.Sequence, err)
		}
		if env.AggregateVersion != versions[env.AggregateID]+1 {
			o.tb.Fatalf("message %d: version %d of aggregate %s follows version %d", m.Sequence, env.AggregateVersion, env.AggregateID, versions[env.AggregateID])
		}
		versions[env.AggregateID] = env.AggregateVersion
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		o.tb.Fatalf("stream holds %s, want %s", summary(got), summary(want))
	}
	o.expectVerifyAgrees(len(want))
}

// updateStream changes the stream's configuration.
func (o *outbox) updateStream(change func(*jetstream.StreamConfig)) {
	o.tb.Helper()
	js := testenv.JetStream(o.tb, o.natsURL)
	ctx := testenv.Context(o.tb, testenv.Deadline)
	s, err := js.Stream(ctx, o.stream)
	if err != nil {
		o.tb.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	change(&cfg)
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		o.tb.Fatal(err)
	}
}

// get returns the answer of the forwarder's HTTP server.
func get(tb testing.TB, url string) (code int, body string) {
	tb.Helper()
	req, err := http.NewRequestWithContext(testenv.Context(tb, testenv.Deadline), http.MethodGet, url, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return res.StatusCode, string(b)
}

// connect opens a session that is closed after the test.
func (o *outbox) connect() *pgx.Conn {
	o.tb.Helper()
	return testenv.Connect(o.tb, o.databaseURL)
}
