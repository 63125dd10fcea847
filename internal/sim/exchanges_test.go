package sim

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outbox-cdc/outbox-cdc/sink"
)

// exchange is a conversation with a stream and what it must come to.
type exchange struct {
	name       string
	unbatched  bool
	window     time.Duration
	maxMsgs    int
	maxMsgSize int
	talk       func(*conversation)
	want       string
	want3      string // with three replicas, where that differs
}

// Answers are noted as <batch or "plain">.<number>; see describeAnswer.
var exchanges = []exchange{
	{name: "ids", talk: func(c *conversation) {
		c.plain("1", 1, anySequence)
		c.plain("2", 2, anySequence)
		c.hear(2)
		c.plain("3", 1, anySequence)
		c.plain("4", 3, anySequence)
		c.hear(2)
		c.status()
	}, want: `
		plain.1 stored 1
		plain.2 stored 2
		plain.3 stored 1 duplicate
		plain.4 stored 3
		first 1 last 3 messages 3`},
	{name: "expected sequences", talk: func(c *conversation) {
		c.plain("1", 1, 0)
		c.plain("2", 2, 1)
		c.plain("3", 3, 1)
		c.plain("4", 4, 2)
		c.hear(4)
		c.plain("5", 5, 7)
		c.hear(1)
	}, want: `
		plain.1 stored 1
		plain.2 stored 2
		plain.3 refused with 10071
		plain.4 stored 3
		plain.5 refused with 10071`},
	{name: "a stored message again with its old expectation", talk: func(c *conversation) {
		c.plain("1", 1, 0)
		c.plain("2", 2, 1)
		c.hear(2)
		c.plain("3", 1, 0)
		c.hear(1)
	}, want: `
		plain.1 stored 1
		plain.2 stored 2
		plain.3 refused with 10071`, want3: `
		plain.1 stored 1
		plain.2 stored 2
		plain.3 stored 1 duplicate`},
	{name: "the duplicate window ends", window: 100 * time.Millisecond, talk: func(c *conversation) {
		c.plain("1", 1, anySequence)
		c.hear(1)
		for i := range 100 {
			wait(context.Background(), 20*time.Millisecond)
			c.plain("again", 1, anySequence)
			c.hear(1)
			last := c.log[len(c.log)-1]
			c.log = c.log[:len(c.log)-1]
			if !strings.HasSuffix(last, "duplicate") {
				c.notef("%s, at once: %v", last, i == 0)
				return
			}
		}
	}, want: `
		plain.1 stored 1
		plain.again stored 2, at once: false`},
	{name: "batch", talk: func(c *conversation) {
		c.batch("x", 500, 1, opStart, 1, 0)
		c.batch("x", 500, 2, opAppend, 2, anySequence)
		c.batch("x", 500, 3, opCommit, 3, anySequence)
		c.hear(2)
		c.batch("y", 500, 1, opCommit, 4, 3)
		c.hear(1)
		c.status()
	}, want: `
		x.1 flow 0 every 500
		x.3 stored 3 count 3
		y.1 stored 4 count 1
		first 1 last 4 messages 4`},
	{name: "batch with flow", talk: func(c *conversation) {
		for seq := 1; seq <= 5; seq++ {
			op := opAppend
			if seq == 1 {
				op = opStart
			}
			c.batch("x", 2, seq, op, seq, seq-1)
		}
		c.hear(3)
		c.end("x", 2, 6)
		c.hear(1)
	}, want: `
		x.1 flow 0 every 2
		x.2 flow 2 every 2
		x.4 flow 4 every 2
		x.6 stored 5 count 5`},
	{name: "gap in a batch", talk: func(c *conversation) {
		c.batch("x", 2, 1, opStart, 1, 0)
		c.batch("x", 2, 2, opAppend, 2, anySequence)
		c.hear(2)
		c.batch("x", 2, 4, opAppend, 4, anySequence)
		c.hear(2)
		c.batch("x", 2, 5, opAppend, 5, anySequence)
		c.hear(1)
		c.status()
	}, want: `
		x.1 flow 0 every 2
		x.2 flow 2 every 2
		x.4 gap 3 4
		x.4 stored 2 count 2
		x.5 refused with 10208
		first 1 last 2 messages 2`},
	{name: "batch that does not begin where the stream ends", talk: func(c *conversation) {
		c.plain("1", 1, 0)
		c.hear(1)
		c.batch("x", 500, 1, opStart, 2, 0)
		c.batch("x", 500, 2, opAppend, 3, anySequence)
		c.hear(3)
		c.status()
	}, want: `
		plain.1 stored 1
		x.1 flow 0 every 500
		x.1 refused with 10071
		x.2 refused with 10208
		first 1 last 1 messages 1`},
	{name: "somebody else in the middle of a batch", talk: func(c *conversation) {
		c.batch("x", 1, 1, opStart, 1, 0)
		c.hear(2)
		c.plain("1", 9, anySequence)
		c.hear(1)
		c.batch("x", 1, 2, opAppend, 2, anySequence)
		c.hear(1)
		c.batch("x", 1, 3, opAppend, 3, 2)
		c.hear(2)
		c.batch("x", 1, 4, opAppend, 4, anySequence)
		c.hear(1)
	}, want: `
		x.1 flow 0 every 1
		x.1 flow 1 every 1
		plain.1 stored 2
		x.2 flow 2 every 1
		x.3 refused at 3 with 10071
		x.3 stored 3 count 2
		x.4 refused with 10208`},
	{name: "duplicates in a batch", talk: func(c *conversation) {
		c.plain("1", 1, 0)
		c.hear(1)
		c.batch("x", 500, 1, opStart, 2, anySequence)
		c.batch("x", 500, 2, opAppend, 1, anySequence)
		c.batch("x", 500, 3, opCommit, 3, anySequence)
		c.hear(2)
		c.batch("y", 500, 1, opStart, 1, anySequence)
		c.batch("y", 500, 2, opCommit, 2, anySequence)
		c.hear(2)
		c.batch("z", 500, 1, opCommit, 1, anySequence)
		c.hear(1)
		c.status()
	}, want: `
		plain.1 stored 1
		x.1 flow 0 every 500
		x.3 stored 3 count 3
		y.1 flow 0 every 500
		y.2 stored 0 count 2
		z.1 stored 1 count 1 duplicate
		first 1 last 3 messages 3`},
	{name: "unknown batch", talk: func(c *conversation) {
		c.batch("x", 500, 2, opAppend, 1, anySequence)
		c.hear(1)
		c.end("x", 500, 3)
		c.hear(1)
	}, want: `
		x.2 refused with 10208
		x.3 refused with 10208`},
	{name: "no batches", unbatched: true, talk: func(c *conversation) {
		c.batch("x", 500, 1, opStart, 1, 0)
		c.hear(1)
	}, want: `x.1 refused with 10205`},
	{name: "too large", maxMsgSize: 1000, talk: func(c *conversation) {
		c.plain("1", large, 0)
		c.hear(1)
		c.batch("x", 1, 1, opStart, 1, 0)
		c.hear(2)
		c.batch("x", 1, 2, opAppend, large+1, anySequence)
		c.hear(1)
		c.batch("x", 1, 3, opAppend, 3, anySequence)
		c.hear(2)
	}, want: `
		plain.1 refused with 10054
		x.1 flow 0 every 1
		x.1 flow 1 every 1
		x.2 refused with 10054
		x.3 gap 2 3
		x.3 stored 1 count 1`},
	{name: "full", maxMsgs: 2, talk: func(c *conversation) {
		c.batch("x", 2, 1, opStart, 1, 0)
		c.batch("x", 2, 2, opAppend, 2, anySequence)
		c.hear(2)
		c.batch("x", 2, 3, opAppend, 3, anySequence)
		c.hear(2)
		c.plain("1", 4, anySequence)
		c.hear(1)
		c.batch("y", 500, 1, opCommit, 5, 2)
		c.hear(1)
		c.delete(1)
		c.plain("2", 4, 2)
		c.hear(1)
		c.status()
	}, want: `
		x.1 flow 0 every 2
		x.2 flow 2 every 2
		x.3 refused at 3 with 10077
		x.3 stored 2 count 2
		plain.1 refused with 10077
		y.1 refused with 10077
		plain.2 stored 3
		first 2 last 3 messages 2`},
	{name: "nobody", talk: func(c *conversation) {
		c.plain("1", nowhere, anySequence)
		c.hear(1)
	}, want: `plain.1 nobody`},
	{name: "reading", talk: func(c *conversation) {
		c.status()
		c.read(sink.MessageQuery{LastBySubject: ">"})
		for n := 1; n <= 6; n++ {
			c.plain(fmt.Sprint(n), n, n-1)
		}
		c.hear(6)
		c.delete(4)
		c.delete(1)
		c.log = nil
		c.status()
		c.read(sink.MessageQuery{LastBySubject: ">"})
		c.read(sink.MessageQuery{LastBySubject: "conf.a"})
		c.read(sink.MessageQuery{Seq: 3})
		c.read(sink.MessageQuery{Seq: 4})
		c.read(sink.MessageQuery{Seq: 7})
		c.read(sink.MessageQuery{Seq: 1, NextBySubject: ">"})
		c.read(sink.MessageQuery{Seq: 4, NextBySubject: "conf.b"})
		c.read(sink.MessageQuery{Seq: 7, NextBySubject: ">"})
		c.delete(6)
		c.read(sink.MessageQuery{LastBySubject: ">"})
		c.read(sink.MessageQuery{LastBySubject: "conf.b"})
		all, err := c.broker.Chunk(c.t.Context(), c.stream, 1, 7)
		for _, m := range all {
			c.notef("%s", describeStored(m))
		}
		if err != nil {
			c.t.Error(err)
		}
	}, want: `
		first 2 last 6 messages 4
		{Seq:0 NextBySubject: LastBySubject:>}: 6 conf.b 1:0/64:6
		{Seq:0 NextBySubject: LastBySubject:conf.a}: 5 conf.a 1:0/64:5
		{Seq:3 NextBySubject: LastBySubject:}: 3 conf.b 1:0/64:3
		{Seq:4 NextBySubject: LastBySubject:}: nothing
		{Seq:7 NextBySubject: LastBySubject:}: nothing
		{Seq:1 NextBySubject:> LastBySubject:}: 2 conf.a 1:0/64:2
		{Seq:4 NextBySubject:conf.b LastBySubject:}: 6 conf.b 1:0/64:6
		{Seq:7 NextBySubject:> LastBySubject:}: nothing
		{Seq:0 NextBySubject: LastBySubject:>}: nothing
		{Seq:0 NextBySubject: LastBySubject:conf.b}: 3 conf.b 1:0/64:3
		2 conf.a 1:0/64:2
		3 conf.b 1:0/64:3
		5 conf.a 1:0/64:5`},
}
