package sink

import (
	"encoding/base64"
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// envelope writes the JSON object of FormatEnvelope into the body. Its keys stand
// in a fixed order; what is NULL is absent.
func (e *Encoder) envelope(ev *decode.Event) *Poison {
	b := append(e.body, '{')
	b = appendStringKey(b, "eventId", ev.Value(decode.FieldEventID))
	b = appendStringKey(b, "eventType", ev.Value(decode.FieldEventType))
	b, p := e.number(b, ev, "eventVersion", decode.FieldEventVersion)
	if p != nil {
		return p
	}
	b = appendStringKey(b, "aggregateType", ev.Value(decode.FieldAggregateType))
	b = appendStringKey(b, "aggregateId", ev.Value(decode.FieldAggregateID))
	if b, p = e.number(b, ev, "aggregateVersion", decode.FieldAggregateVersion); p != nil {
		return p
	}
	if at := ev.Value(decode.FieldOccurredAt); at != nil {
		if isTimestamp(ev.Kind(decode.FieldOccurredAt)) {
			b = appendKey(b, "occurredAt")
			b = append(b, '"')
			b = appendTimestamp(b, at)
			b = append(b, '"')
		} else {
			b = appendStringKey(b, "occurredAt", at)
		}
	}
	if tp := ev.Value(decode.FieldTraceparent); tp != nil {
		if id := traceID(tp); len(id) > 0 {
			b = appendStringKey(b, "traceId", id)
		}
	}
	if b, p = e.payload(b, ev); p != nil {
		return p
	}
	e.body = append(b, '}')
	// In the body each value stands between ASCII characters, so looking at the whole is
	// looking at each; the rest are the columns that the body does not show.
	if !validUTF8(e.body, ev.Value(decode.FieldTopic), ev.Value(decode.FieldHeaders), ev.Value(decode.FieldTraceparent)) {
		return e.notUTF8(ev)
	}
	return nil
}

// notUTF8 names the column that holds bytes that are not UTF-8.
func (e *Encoder) notUTF8(ev *decode.Event) *Poison {
	for f := range decode.Field(decode.NumFields) {
		if !validUTF8(ev.Value(f)) {
			return e.poison(ev, PoisonNotUTF8, fmt.Sprintf("column %s holds bytes that are not UTF-8", f))
		}
	}
	return e.poison(ev, PoisonNotUTF8, "the body would hold bytes that are not UTF-8")
}

// number writes a version: a JSON number where the column holds one in a type
// that JSON can carry, else a string. numeric stays a string, since a reader's
// float would change it.
func (e *Encoder) number(b []byte, ev *decode.Event, key string, f decode.Field) ([]byte, *Poison) {
	v := ev.Value(f)
	if v == nil {
		return b, nil
	}
	switch ev.Kind(f) {
	case decode.KindInteger, decode.KindFloat:
		if !jsonNumber(v) {
			return b, e.poison(ev, PoisonNotNumber, fmt.Sprintf("column %s holds %q, which JSON has no number for", f, clip(string(v))))
		}
		b = appendKey(b, key)
		return append(b, v...), nil
	default:
		return appendStringKey(b, key, v), nil
	}
}

func (e *Encoder) payload(b []byte, ev *decode.Event) ([]byte, *Poison) {
	v := ev.Value(decode.FieldPayload)
	if v == nil {
		return b, nil
	}
	switch ev.Kind(decode.FieldPayload) {
	case decode.KindJSON:
		b = appendKey(b, "payload")
		return append(b, v...), nil
	case decode.KindBytea:
		raw, err := ev.Bytea(decode.FieldPayload)
		if err != nil {
			return b, e.poison(ev, PoisonBytea, "the payload is not in hex form: "+err.Error())
		}
		b = appendKey(b, "payloadBase64")
		b = append(b, '"')
		b = base64.StdEncoding.AppendEncode(b, raw)
		return append(b, '"'), nil
	default:
		return appendStringKey(b, "payload", v), nil
	}
}

func appendKey(b []byte, key string) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(b, '"')
	b = append(b, key...)
	return append(b, '"', ':')
}

func appendStringKey(b []byte, key string, value []byte) []byte {
	if value == nil {
		return b
	}
	return appendJSONString(appendKey(b, key), value)
}
