package sink

import (
	"strconv"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// Again says for what an event is published once more.
type Again struct {
	// Kind is the value of Outbox-Republished: replay, repair or retry.
	Kind string
	// Request is the id of the request that asked for it.
	Request int64
	// FreshID makes a message id of the event's and the request's, so that the stream does
	// not take the message for the one that it has. It is the same whenever the request
	// is carried on with.
	FreshID bool
}

// EncodeAgain is Encode for an event that is published on request, in no place of the
// order. Its position is the original one if it is known, else zero.
func (e *Encoder) EncodeAgain(ev *decode.Event, again Again) (*Message, error) {
	e.again = &again
	defer func() { e.again = nil }()
	return e.Encode(ev)
}

// appendFresh appends what makes a message id a fresh one.
func (a *Again) appendFresh(b []byte) []byte {
	if a == nil || !a.FreshID {
		return b
	}
	return strconv.AppendInt(append(b, '.'), a.Request, 10)
}

func (e *Encoder) writeAgain(ev *decode.Event) {
	e.putString(HeaderRepublished, e.again.Kind)
	e.put(HeaderRequest, func(b []byte) []byte { return strconv.AppendInt(b, e.again.Request, 10) })
	if ev.Position != (decode.Position{}) {
		e.put(HeaderOriginalPos, ev.Position.Append)
	}
}
