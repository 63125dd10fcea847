package decode

import (
	"fmt"
	"math"
	"time"

	"github.com/jackc/pglogrepl"
)

// Config says which rows are events and how to read them.
type Config struct {
	// Table is the outbox. A relation is compared with it exactly.
	Table TableName
	// Mapping says which column is which field; the zero value is DefaultMapping.
	Mapping Mapping
	// Required lists fields whose column must exist, beside those that the mapping names
	// explicitly. Extra columns must always exist.
	Required []Field
	// Messages makes transactional logical messages with the prefix MessagePrefix
	// (default "outbox") events too.
	Messages      bool
	MessagePrefix string
	// Timelines is the history of the server that the messages come from.
	Timelines Timelines
	// AcceptRelation is asked whether rows of a relation with another name are outbox rows
	// too, as leaf partitions are: once before its first row, and again after a rename. It
	// may block. Nil refuses them all. Decode returns its error, wrapped.
	AcceptRelation func(Relation) (bool, error)
	// ColumnGone, if set, is called when a mapped column that is not required has vanished
	// from a relation since its last row: the field is NULL from now on.
	ColumnGone func(table TableName, field, column string)
}

// Relation is the layout of a table as of a row.
type Relation struct {
	OID     uint32
	Schema  string
	Name    string
	Columns []Column
}

// Table returns the relation's name.
func (r Relation) Table() TableName { return TableName{Schema: r.Schema, Name: r.Name} }

// Column is one column of a Relation.
type Column struct {
	Name    string
	TypeOID uint32
	Kind    TypeKind
}

// ChangeKind says what a message was.
type ChangeKind uint8

// The kinds of change.
const (
	ChangeNone   ChangeKind = iota // nothing that concerns the outbox
	ChangeBegin                    // a transaction begins
	ChangeEvent                    // Change.Event is set
	ChangeCommit                   // the transaction is complete
)

// String returns the kind's name.
func (k ChangeKind) String() string {
	switch k {
	case ChangeNone:
		return "none"
	case ChangeBegin:
		return "begin"
	case ChangeEvent:
		return "event"
	case ChangeCommit:
		return "commit"
	default:
		return "change(?)"
	}
}

// Change is what one message means.
type Change struct {
	Kind ChangeKind
	// XID, CommitLSN and CommitTime are those of the transaction, from ChangeBegin to
	// ChangeCommit; zero with ChangeNone. CommitLSN is where the commit record starts.
	XID       uint32
	CommitLSN pglogrepl.LSN
	// CommitEndLSN is where the commit record ends: the position to confirm. Only with ChangeCommit.
	CommitEndLSN pglogrepl.LSN
	CommitTime   time.Time
	// Event is set with ChangeEvent. The receiver owns it.
	Event *Event
}

// Decoder reads the messages of one replication connection in order. Use one for each
// START_REPLICATION, since the server sends all relations again on a new connection,
// from one goroutine at a time, and none after it returned an error.
type Decoder struct {
	config  Config
	mapping Mapping
	prefix  string

	relations map[uint32]*relation
	last      *relation           // of the last row, to spare the look-up
	types     map[uint32]TypeKind // domains and extension types, by OID
	row       []span              // scratch: values of the current row in its message

	tx        transaction
	skipped   uint64
	ignored   uint64
	outOfBand uint64
}

// transaction is the one that is open; its zero value is none.
type transaction struct {
	open       bool
	xid        uint32
	commitLSN  pglogrepl.LSN
	commitTime time.Time
	timeline   uint32
	events     uint64 // emitted so far
}

// New returns a Decoder at the start of a connection.
func New(c Config) *Decoder {
	d := &Decoder{
		config:    c,
		mapping:   c.Mapping.orDefault(),
		prefix:    c.MessagePrefix,
		relations: map[uint32]*relation{},
		types:     map[uint32]TypeKind{},
	}
	if d.prefix == "" {
		d.prefix = "outbox"
	}
	return d
}

// InTransaction reports whether a transaction has begun and not yet been committed.
func (d *Decoder) InTransaction() bool { return d.tx.open }

// Skipped returns how many inserted rows of other relations were passed over.
func (d *Decoder) Skipped() uint64 { return d.skipped }

// IgnoredChanges returns how many updates, deletes and truncates were passed over. A
// publication with publish = 'insert' sends none.
func (d *Decoder) IgnoredChanges() uint64 { return d.ignored }

// NonTransactionalMessages returns how many logical messages with the outbox prefix were
// passed over because they belong to no transaction.
func (d *Decoder) NonTransactionalMessages() uint64 { return d.outOfBand }

// messageMax bounds a message so that each place in it fits a span. PostgreSQL's own
// bound is 1 GiB (MaxAllocSize).
const messageMax = math.MaxInt32

// Decode reads the payload of one XLogData message. It keeps no reference to wal. The
// error is a *ProtocolError, a *RelationError, or wraps what AcceptRelation returned.
func (d *Decoder) Decode(wal []byte) (Change, error) {
	if len(wal) == 0 {
		return Change{}, &ProtocolError{Cause: CauseMalformed, Reason: "the message is empty"}
	}
	if len(wal) > messageMax {
		return Change{}, &ProtocolError{Cause: CauseMalformed, Message: wal[0], Reason: fmt.Sprintf("the message has %d bytes", len(wal))}
	}
	c := cursor{msg: wal, off: 1}
	switch wal[0] {
	case 'I':
		return d.insert(&c)
	case 'B':
		return d.begin(&c)
	case 'C':
		return d.commit(&c)
	case 'R':
		return Change{}, d.relation(&c)
	case 'M':
		return d.message(&c)
	case 'Y':
		return Change{}, d.typ(&c)
	case 'U', 'D', 'T':
		return Change{}, d.ignore(&c)
	case 'O':
		return Change{}, d.origin(&c)
	default:
		return Change{}, refuse(wal[0])
	}
}

// refuse names a message kind that this package does not read.
func refuse(kind byte) error {
	e := &ProtocolError{Cause: CauseUnknown, Message: kind, Reason: "unknown kind of message"}
	switch kind {
	case 'S', 'E', 'c', 'A':
		e.Cause, e.Reason = CauseStreaming, "the server streams a transaction that is not yet committed"
	case 'b', 'P', 'K', 'r', 'p':
		e.Cause, e.Reason = CauseTwoPhase, "the slot sends prepared transactions"
	}
	return e
}

func (d *Decoder) begin(c *cursor) (Change, error) {
	tx := transaction{open: true}
	tx.commitLSN = pglogrepl.LSN(c.uint64())
	tx.commitTime = c.time()
	tx.xid = c.uint32()
	if d.tx.open {
		c.fail(CauseMalformed, "transaction %d begins inside transaction %d", tx.xid, d.tx.xid)
	}
	if err := c.end(); err != nil {
		return Change{}, err
	}
	tx.timeline = d.config.Timelines.At(tx.commitLSN)
	d.tx = tx
	return d.change(ChangeBegin), nil
}

// change returns a Change of the open transaction.
func (d *Decoder) change(k ChangeKind) Change {
	return Change{Kind: k, XID: d.tx.xid, CommitLSN: d.tx.commitLSN, CommitTime: d.tx.commitTime}
}

func (d *Decoder) commit(c *cursor) (Change, error) {
	c.uint8() // flags, unused
	commitLSN := pglogrepl.LSN(c.uint64())
	endLSN := pglogrepl.LSN(c.uint64())
	c.time()
	switch {
	case c.err != nil: // the values mean nothing
	case !d.tx.open:
		c.fail(CauseMalformed, "commit at %s without a begin", commitLSN)
	case commitLSN != d.tx.commitLSN:
		c.fail(CauseMalformed, "commit at %s of a transaction that began with commit LSN %s", commitLSN, d.tx.commitLSN)
	case endLSN < commitLSN:
		c.fail(CauseMalformed, "commit at %s ends at %s", commitLSN, endLSN)
	}
	if err := c.end(); err != nil {
		return Change{}, err
	}
	change := d.change(ChangeCommit)
	change.CommitEndLSN = endLSN
	d.tx = transaction{}
	return change, nil
}

// origin reads where a replicated transaction came from. It is of no use to us.
func (d *Decoder) origin(c *cursor) error {
	c.uint64()
	c.string()
	d.needTransaction(c)
	return c.end()
}

func (d *Decoder) needTransaction(c *cursor) {
	if !d.tx.open {
		c.fail(CauseMalformed, "a change outside a transaction")
	}
}

// emit places the event in the open transaction.
func (d *Decoder) emit(e *Event) Change {
	e.Position = Position{Timeline: d.tx.timeline, CommitLSN: d.tx.commitLSN, Ordinal: d.tx.events}
	e.CommitTime = d.tx.commitTime
	d.tx.events++
	change := d.change(ChangeEvent)
	change.Event = e
	return change
}
