package decode

import "fmt"

// message reads a logical message (pg_logical_emit_message). A transactional one with
// the outbox prefix is an event; one outside a transaction comes at once, even if
// the session that wrote it rolls back, and so cannot be one.
func (d *Decoder) message(c *cursor) (Change, error) {
	const transactional = 1
	flags := c.uint8()
	c.uint64() // LSN
	prefix := c.string()
	length := c.uint32()
	if int64(length) > int64(len(c.msg)-c.off) {
		c.short(int(length))
	}
	content := c.take(int(length))
	if flags&transactional != 0 {
		d.needTransaction(c)
	}
	if err := c.end(); err != nil {
		return Change{}, err
	}
	switch {
	case prefix != d.prefix:
		return Change{}, nil
	case flags&transactional == 0:
		d.outOfBand++
		return Change{}, nil
	case !d.config.Messages:
		return Change{}, nil
	default:
		return d.emit(d.messageEvent(content)), nil
	}
}

// messageEvent makes an event of the content of a logical message.
func (d *Decoder) messageEvent(content []byte) *Event {
	v := Values{Extras: make([][]byte, len(d.mapping.extra))}
	err := d.readContent(content, &v)
	if err != nil {
		v.Fields[FieldPayload] = content
		v.Kinds[FieldPayload] = KindOther
	}
	e := NewEvent(Position{}, d.tx.commitTime, TableName{}, v)
	e.Malformed = err
	return e
}

// readContent fills v from the JSON object. All members are read even after the first
// wrong one, whose error is returned, so that the event shows as much as there is.
func (d *Decoder) readContent(content []byte, v *Values) error {
	members, err := parseObject(content)
	if err != nil {
		return err
	}
	for i := range NumFields {
		f := Field(i)
		raw, ok := members[f.String()]
		if column := d.mapping.Column(f); !ok && column != "" {
			raw = members[column]
		}
		value, kind, fieldErr := readMember(f, raw)
		v.Fields[i], v.Kinds[i] = value, kind
		if fieldErr != nil && err == nil {
			err = fieldErr
		}
	}
	for i, x := range d.mapping.extra {
		raw, ok := members[x.Name]
		if !ok {
			raw = members[x.Column]
		}
		value, problem := scalarText(raw)
		v.Extras[i] = value
		if problem != "" && err == nil {
			err = &ValueError{Field: x.Name, Reason: problem}
		}
	}
	return err
}

// readMember turns a member's JSON text into the text form of the field's column in the
// outbox table. JSON null and a missing member are NULL.
func readMember(f Field, raw []byte) ([]byte, TypeKind, error) {
	if isNull(raw) {
		return nil, messageKinds[f], nil
	}
	switch f {
	case FieldPayload:
		return raw, KindJSON, nil
	case FieldHeaders:
		if raw[0] != '{' {
			return nil, KindJSON, &ValueError{Field: f.String(), Reason: "is not a JSON object"}
		}
		return raw, KindJSON, nil
	default:
	}
	value, problem := scalarText(raw)
	kind := messageKinds[f]
	if problem == "" {
		switch f {
		case FieldAggregateVersion, FieldEventVersion:
			value, problem = integerText(value)
		case FieldOccurredAt:
			value, problem = timeText(value)
		case FieldEventID:
			if !isUUID(value) {
				kind = KindText
			}
		default:
		}
	}
	if problem != "" {
		return value, kind, &ValueError{Field: f.String(), Reason: problem}
	}
	return value, kind, nil
}

// messageKinds are the kinds of the outbox table's columns.
var messageKinds = [NumFields]TypeKind{
	FieldEventID:          KindUUID,
	FieldAggregateType:    KindText,
	FieldAggregateID:      KindText,
	FieldAggregateVersion: KindInteger,
	FieldEventType:        KindText,
	FieldEventVersion:     KindInteger,
	FieldTopic:            KindText,
	FieldPayload:          KindJSON,
	FieldHeaders:          KindJSON,
	FieldTraceparent:      KindText,
	FieldOccurredAt:       KindTimestampTZ,
}

// isUUID reports whether b is a uuid as PostgreSQL prints it.
func isUUID(b []byte) bool {
	if len(b) != 36 {
		return false
	}
	for i, c := range b {
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

func notA(what string, value []byte) string {
	const shown = 40
	if len(value) > shown {
		value = value[:shown]
	}
	return fmt.Sprintf("%q is not %s", value, what)
}
