package sink

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// Header names. NATS compares them with regard to case.
const (
	hdrMsgID            = "Nats-Msg-Id"
	hdrExpectedStream   = "Nats-Expected-Stream"
	hdrExpectedLastSeq  = "Nats-Expected-Last-Sequence"
	HeaderPosition      = "Outbox-Position"
	HeaderSource        = "Outbox-Source"
	HeaderEventID       = "Outbox-Event-Id"
	HeaderRepublished   = "Outbox-Republished"
	HeaderOriginalPos   = "Outbox-Original-Position"
	HeaderRequest       = "Outbox-Request"
	HeaderLastSequence  = "Outbox-Last-Sequence"
	hdrEventType        = "Outbox-Event-Type"
	hdrEventVersion     = "Outbox-Event-Version"
	hdrAggregateType    = "Outbox-Aggregate-Type"
	hdrAggregateID      = "Outbox-Aggregate-Id"
	hdrAggregateVersion = "Outbox-Aggregate-Version"
	hdrOccurredAt       = "Outbox-Occurred-At"
	hdrTraceparent      = "traceparent"
	hdrContentType      = "Content-Type"
	hdrPayloadNull      = "Outbox-Payload-Null"
)

// maxHeaderBytes is the most that JetStream stores of headers.
const maxHeaderBytes = 65535

// attributeHeaders are the headers of HeadersFull.
var attributeHeaders = []struct {
	name  string
	field decode.Field
}{
	{hdrEventType, decode.FieldEventType},
	{hdrEventVersion, decode.FieldEventVersion},
	{hdrAggregateType, decode.FieldAggregateType},
	{hdrAggregateID, decode.FieldAggregateID},
	{hdrAggregateVersion, decode.FieldAggregateVersion},
	{hdrOccurredAt, decode.FieldOccurredAt},
}

// ownHeaders are the names that the headers column cannot replace, in lower case.
var ownHeaders = func() map[string]bool {
	own := map[string]bool{}
	for _, name := range []string{
		HeaderPosition, HeaderSource, HeaderEventID, HeaderRepublished, HeaderOriginalPos, HeaderRequest,
		HeaderLastSequence, hdrEventType, hdrEventVersion, hdrAggregateType, hdrAggregateID, hdrAggregateVersion, hdrOccurredAt, hdrContentType,
		hdrPayloadNull,
	} {
		own[strings.ToLower(name)] = true
	}
	return own
}()

// reservedHeader tells whether a name of the headers column is not the row's to set.
func reservedHeader(name string) bool {
	lower := strings.ToLower(name)
	return strings.HasPrefix(lower, "nats-") || strings.HasPrefix(lower, "kv-") || ownHeaders[lower]
}

// extraHeaders reads the headers column: a JSON object of strings. Its keys are
// returned in the order of their names, so that a message does not depend on
// how the column is stored.
func extraHeaders(column []byte) ([]header, error) {
	dec := json.NewDecoder(bytes.NewReader(column))
	var raw map[string]any
	if err := dec.Decode(&raw); err != nil {
		return nil, fmt.Errorf("the headers column is not a JSON object: %w", err)
	}
	out := make([]header, 0, len(raw))
	for name, v := range raw {
		value, ok := v.(string)
		if !ok {
			return nil, fmt.Errorf("header %q is not a string", name)
		}
		if !validHeaderName(name) {
			return nil, fmt.Errorf("%q is not a header name that NATS allows", name)
		}
		out = append(out, header{name, value})
	}
	slices.SortFunc(out, func(a, b header) int { return strings.Compare(a.name, b.name) })
	return out, nil
}
