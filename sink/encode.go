package sink

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/outbox-cdc/outbox-cdc/decode"
)

// EncoderConfig says what messages look like.
type EncoderConfig struct {
	Template Template
	Format   Format
	Headers  HeaderMode
	// Source is the value of Outbox-Source: "<system identifier>/<name>".
	Source string
	// SourceName is the part after the slash; it qualifies message ids that are no uuid.
	SourceName string
	// ContentType overrides Content-Type when not empty.
	ContentType string
	// HeaderIgnored, if set, is called when a row's headers column names a header
	// that is not the row's to set. The message goes out without it.
	HeaderIgnored func(name string)
}

// Encoder turns events into messages. It is not safe for concurrent use.
type Encoder struct {
	cfg      EncoderConfig
	idPrefix []byte
	jsonBody bool // the overriding content type is JSON
	text     []byte
	body     []byte
	marks    []mark
	again    *Again // of the present event; nil for a first delivery
}

// mark is where in the text a header's value lies.
type mark struct {
	name       string
	start, end int
}

// NewEncoder returns an encoder.
func NewEncoder(cfg EncoderConfig) *Encoder {
	e := &Encoder{cfg: cfg}
	e.idPrefix = append(appendIDPart(nil, []byte(cfg.SourceName)), '/')
	mediaType, _, _ := strings.Cut(cfg.ContentType, ";")
	mediaType = strings.ToLower(strings.TrimSpace(mediaType))
	e.jsonBody = mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
	return e
}

// Encode returns the message of an event. The only error is a *Poison. The result
// shares no memory with the event.
func (e *Encoder) Encode(ev *decode.Event) (*Message, error) {
	e.text, e.body, e.marks = e.text[:0], e.body[:0], e.marks[:0]
	if ev.Malformed != nil {
		return nil, e.poison(ev, PoisonMalformed, ev.Malformed.Error())
	}
	if p := e.needID(ev); p != nil {
		return nil, p
	}
	e.writeSubject(ev)
	subjectEnd := len(e.text)
	m, p := e.message(ev, subjectEnd)
	if p != nil {
		p.Subject = string(e.text[:subjectEnd])
		return nil, p
	}
	return m, nil
}

// message returns the message of an event whose subject is written.
func (e *Encoder) message(ev *decode.Event, subjectEnd int) (*Message, *Poison) {
	contentType, p := e.writeBody(ev)
	if p != nil {
		return nil, p
	}
	e.writeID(ev)
	e.writeHeaders(ev, contentType)
	if p := e.writeExtra(ev); p != nil {
		return nil, p
	}
	linesEnd := len(e.text)
	e.text = append(e.text, ev.Value(decode.FieldAggregateID)...)

	text := string(e.text)
	m := &Message{
		Subject: text[:subjectEnd], lines: text[subjectEnd:linesEnd], AggregateID: text[linesEnd:],
		Position: ev.Position, CommitTime: ev.CommitTime, eventSize: ev.Size(),
	}
	for _, k := range e.marks {
		value := text[k.start:k.end]
		switch k.name {
		case hdrMsgID:
			m.ID = value
		case HeaderEventID:
			m.EventID = value
		case hdrTraceparent:
			m.TraceID = traceID(value)
		}
	}
	if p := e.checkSubject(ev, m.Subject); p != nil {
		return nil, p
	}
	if p := e.checkLines(ev, m.lines); p != nil {
		return nil, p
	}
	m.body = append([]byte(nil), e.body...)
	return m, nil
}

// checkLines looks at the header lines as a whole.
func (e *Encoder) checkLines(ev *decode.Event, lines string) *Poison {
	if size := headerStart + headerEnd + len(lines); size > maxHeaderBytes-256 { // the publisher's own come on top
		return e.poison(ev, PoisonHeadersTooLarge, fmt.Sprintf("%d bytes of headers, at most 65535 are stored", size))
	}
	// Whoever writes a value keeps line ends out of it. If one slipped in all the same,
	// it must not become a header of its own.
	if strings.Count(lines, "\r") != len(e.marks) || strings.Count(lines, "\n") != len(e.marks) {
		return e.poison(ev, PoisonHeadersInvalid, "a header would hold a line end")
	}
	return nil
}

func (e *Encoder) poison(ev *decode.Event, code, reason string) *Poison {
	return &Poison{
		Code: code, Reason: reason, Position: ev.Position, Table: ev.Table,
		EventID: strings.ToValidUTF8(string(ev.Value(decode.FieldEventID)), "?"),
	}
}

func (e *Encoder) needID(ev *decode.Event) *Poison {
	switch id := ev.Value(decode.FieldEventID); {
	case id == nil:
		return e.poison(ev, PoisonEventIDNull, "the event id is NULL")
	case len(id) == 0:
		return e.poison(ev, PoisonEventIDEmpty, "the event id is empty")
	}
	return nil
}

// writeID writes the message id. It is the first header, where the server finds it at once.
func (e *Encoder) writeID(ev *decode.Event) {
	id := ev.Value(decode.FieldEventID)
	e.put(hdrMsgID, func(b []byte) []byte {
		if ev.Kind(decode.FieldEventID) == decode.KindUUID {
			b = appendHeaderValue(b, id)
		} else {
			b = appendIDPart(append(b, e.idPrefix...), id)
		}
		return e.again.appendFresh(b)
	})
}

func (e *Encoder) writeSubject(ev *decode.Event) {
	if topic := ev.Value(decode.FieldTopic); topic != nil {
		e.text = append(e.text, topic...)
	} else {
		e.text = e.cfg.Template.append(e.text, ev)
	}
}

func (e *Encoder) checkSubject(ev *decode.Event, subject string) *Poison {
	switch reason := invalidSubject(subject); {
	case reason != "":
		return e.poison(ev, PoisonSubjectInvalid, fmt.Sprintf("subject %q: %s", clip(subject), reason))
	case len(subject) > maxSubjectBytes:
		return e.poison(ev, PoisonSubjectTooLong,
			fmt.Sprintf("subject %q has %d bytes, at most %d are allowed", clip(subject), len(subject), maxSubjectBytes))
	case reservedSubject(subject):
		return e.poison(ev, PoisonSubjectReserved, fmt.Sprintf("subject %q belongs to the server", clip(subject)))
	}
	return nil
}

func clip(s string) string {
	const most = 120
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// put writes a header line. What write appends must hold no line end.
func (e *Encoder) put(name string, write func(b []byte) []byte) {
	e.text = append(append(e.text, name...), ": "...)
	start := len(e.text)
	e.text = write(e.text)
	e.marks = append(e.marks, mark{name, start, len(e.text)})
	e.text = append(e.text, "\r\n"...)
}

// putValue writes a header line with any value.
func (e *Encoder) putValue(name string, value []byte) {
	e.put(name, func(b []byte) []byte { return appendHeaderValue(b, value) })
}

// putString is putValue for a string.
func (e *Encoder) putString(name, value string) {
	e.put(name, func(b []byte) []byte { return appendHeaderValue(b, value) })
}

func (e *Encoder) writeHeaders(ev *decode.Event, contentType string) {
	if e.again == nil {
		e.put(HeaderPosition, ev.Position.Append)
	}
	e.putString(HeaderSource, e.cfg.Source)
	e.putValue(HeaderEventID, ev.Value(decode.FieldEventID))
	if e.again != nil {
		e.writeAgain(ev)
	}
	if e.cfg.Headers == HeadersFull {
		for _, a := range attributeHeaders {
			value := ev.Value(a.field)
			switch {
			case value == nil:
			case a.field == decode.FieldOccurredAt && isTimestamp(ev.Kind(a.field)):
				e.put(a.name, func(b []byte) []byte { return appendTimestamp(b, value) })
			default:
				e.putValue(a.name, value)
			}
		}
	}
	if e.cfg.Format == FormatCloudEvents {
		e.cloudEventsHeaders(ev)
	}
	if v := ev.Value(decode.FieldTraceparent); v != nil {
		e.putValue(hdrTraceparent, v)
	}
	if e.cfg.Format != FormatEnvelope && ev.Value(decode.FieldPayload) == nil {
		e.putString(hdrPayloadNull, "true")
	}
	if e.cfg.ContentType != "" {
		contentType = e.cfg.ContentType
	}
	e.putString(hdrContentType, contentType)
}

func isTimestamp(k decode.TypeKind) bool {
	return k == decode.KindTimestampTZ || k == decode.KindTimestamp
}

// cloudEventsHeaders writes the attributes of CloudEvents in binary mode. Source:
// https://github.com/cloudevents/spec/blob/main/cloudevents/bindings/nats-protocol-binding.md
func (e *Encoder) cloudEventsHeaders(ev *decode.Event) {
	put := func(name string, value []byte) {
		if value != nil {
			e.put(name, func(b []byte) []byte { return appendCloudEventsValue(b, value) })
		}
	}
	e.putString("ce-specversion", "1.0")
	put("ce-id", ev.Value(decode.FieldEventID))
	put("ce-source", []byte(e.cfg.Source))
	put("ce-type", ev.Value(decode.FieldEventType))
	put("ce-subject", ev.Value(decode.FieldAggregateID))
	if at := ev.Value(decode.FieldOccurredAt); at != nil {
		if isTimestamp(ev.Kind(decode.FieldOccurredAt)) {
			e.put("ce-time", func(b []byte) []byte { return appendTimestamp(b, at) })
		} else {
			put("ce-time", at)
		}
	}
}

// writeExtra writes what the headers column asks for. Headers that are not the row's to
// set are left out.
func (e *Encoder) writeExtra(ev *decode.Event) *Poison {
	column := ev.Value(decode.FieldHeaders)
	if column == nil || string(column) == "null" {
		return nil
	}
	all, err := extraHeaders(column)
	if err != nil {
		return e.poison(ev, PoisonHeadersInvalid, err.Error())
	}
	own := len(e.marks)
	for _, h := range all {
		if reservedHeader(h.name) || e.has(h.name, own) {
			if e.cfg.HeaderIgnored != nil {
				e.cfg.HeaderIgnored(h.name)
			}
			continue
		}
		e.putString(h.name, h.value)
	}
	return nil
}

// has tells whether one of the first own headers has that name.
func (e *Encoder) has(name string, own int) bool {
	for _, k := range e.marks[:own] {
		if strings.EqualFold(k.name, name) {
			return true
		}
	}
	return false
}

// writeBody writes the body and returns its content type.
func (e *Encoder) writeBody(ev *decode.Event) (contentType string, p *Poison) {
	if e.cfg.Format == FormatEnvelope {
		if p := e.envelope(ev); p != nil {
			return "", p
		}
		return "application/json", nil
	}
	payload, kind := ev.Value(decode.FieldPayload), ev.Kind(decode.FieldPayload)
	switch kind {
	case decode.KindJSON:
		contentType = "application/json"
	case decode.KindBytea:
		contentType = "application/octet-stream"
	default:
		contentType = "text/plain; charset=utf-8"
	}
	if payload == nil {
		return contentType, nil
	}
	if kind == decode.KindBytea {
		var err error
		if e.body, err = ev.AppendBytea(e.body, decode.FieldPayload); err != nil {
			return "", e.poison(ev, PoisonBytea, "the payload is not in hex form: "+err.Error())
		}
	} else {
		e.body = append(e.body, payload...)
		if !validUTF8(payload) {
			return "", e.poison(ev, PoisonNotUTF8, "the payload holds bytes that are not UTF-8")
		}
	}
	if e.jsonBody && kind != decode.KindJSON && !json.Valid(e.body) {
		return "", e.poison(ev, PoisonNotJSON, "the payload is not JSON, as its content type says")
	}
	return contentType, nil
}
