package e2e

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// refusals collects the error codes with which a nats-server answers the clients of an
// account: they show that it was the server itself that refused.
type refusals struct {
	tb    testing.TB
	mu    sync.Mutex
	codes map[string]int
}

var errCode = regexp.MustCompile(`"err_code":(\d+)`)

// listenForRefusals hears all answers of the server from here on.
func listenForRefusals(tb testing.TB, natsURL string) *refusals {
	tb.Helper()
	r := &refusals{tb: tb, codes: map[string]int{}}
	testenv.Eventually(tb, testenv.Deadline, func() error { // a reload may have just begun
		probe, err := nats.Connect(natsURL)
		if err == nil {
			probe.Close()
		}
		return err
	})
	nc := testenv.ConnectNATS(tb, natsURL)
	_, err := nc.Subscribe("_INBOX.>", func(m *nats.Msg) {
		if found := errCode.FindSubmatch(m.Data); found != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.codes[string(found[1])]++
		}
	})
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// wait waits until the server has given a code.
func (r *refusals) wait(code string) {
	r.tb.Helper()
	testenv.Eventually(r.tb, 2*testenv.Deadline, func() error { return r.expect(code) })
}

func (r *refusals) expect(code string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.codes[code] == 0 {
		return fmt.Errorf("the server gave the codes %v, not %s", slices.Sorted(maps.Keys(r.codes)), code)
	}
	return nil
}

// expectHeldUp waits until nothing goes out for a reason that holds a word, and checks that the
// events that have to wait are not confirmed: those behind the first stored ones. It returns
// what has to hold once they arrive.
func (o *outbox) expectHeldUp(health *httpSide, word string) (expectUnpassed func()) {
	o.tb.Helper()
	health.waitRedFor(word)
	told := o.waitStatusMessages(3)
	stored := len(o.ours())
	return func() {
		o.tb.Helper()
		expectNotPast(o.tb, told, commitLSN(o.tb, o.ours()[stored]))
	}
}

// insertBytes commits n events of so many bytes each, one by one.
func (o *outbox) insertBytes(aggregate string, n, size int) {
	o.tb.Helper()
	o.exec(fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
		INSERT INTO %s (aggregate_type, aggregate_id, aggregate_version, event_type, payload)
		VALUES ('order', '%s', i, 'placed', to_jsonb(repeat('x', %d))); COMMIT; END LOOP; END $$`, n, o.table, aggregate, size))
}

// unconfirmed returns how many events the slot still holds, once nobody holds it.
func (o *outbox) unconfirmed() (events int) {
	o.tb.Helper()
	testenv.Eventually(o.tb, testenv.Deadline, func() error {
		if pid := o.holder(); pid != "" {
			return fmt.Errorf("slot %s is held by %s", o.slot, pid)
		}
		return nil
	})
	const insert = "73" // the letter by which a pgoutput message of a row begins
	held := o.value("SELECT count(*)::text FROM pg_logical_slot_peek_binary_changes('" + o.slot + "', NULL, NULL, 'proto_version', '1', 'publication_names', '" +
		o.slot + "') WHERE get_byte(data, 0) = " + insert)
	events, err := strconv.Atoi(held)
	if err != nil {
		o.tb.Fatal(err)
	}
	return events
}
