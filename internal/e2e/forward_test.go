package e2e

import (
	"syscall"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

func TestCommittedRowsArriveOnceInCommitOrder(t *testing.T) {
	o := newOutbox(t, testenv.NATS(t).URL())
	o.insert("before", 5)
	p := o.startStreaming()
	o.insert("single", 20)
	o.insertTx("many", 5000)
	o.insert("after", 5)
	o.expectAll()
	o.waitConfirmed()
	p.Signal(syscall.SIGTERM)
	p.WaitExit(0, testenv.Deadline)
}
