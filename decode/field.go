package decode

import "fmt"

// Field is a part of an event that the sink knows by meaning.
type Field uint8

// The fields, in the order of the outbox table's columns.
const (
	FieldEventID Field = iota
	FieldAggregateType
	FieldAggregateID
	FieldAggregateVersion
	FieldEventType
	FieldEventVersion
	FieldTopic
	FieldPayload
	FieldHeaders
	FieldTraceparent
	FieldOccurredAt

	// NumFields is the number of fields, for arrays indexed by Field.
	NumFields = int(iota)
)

var fieldNames = [NumFields]string{
	"event_id", "aggregate_type", "aggregate_id", "aggregate_version", "event_type", "event_version",
	"topic", "payload", "headers", "traceparent", "occurred_at",
}

// String returns the field's name, which is also its column in the outbox table.
func (f Field) String() string {
	if int(f) < NumFields {
		return fieldNames[f]
	}
	return fmt.Sprintf("field(%d)", uint8(f))
}

// ParseField returns the field of that name.
func ParseField(name string) (Field, bool) {
	for i, n := range fieldNames {
		if n == name {
			return Field(i), true
		}
	}
	return 0, false
}

// TypeKind is what the sink needs to know about the type of a column.
type TypeKind uint8

// The kinds. KindOther is also the kind of a field whose column is absent.
const (
	KindOther       TypeKind = iota
	KindJSON                 // json, jsonb
	KindText                 // text, varchar, char, name, citext
	KindBytea                // bytea
	KindUUID                 // uuid
	KindInteger              // smallint, integer, bigint, oid
	KindFloat                // real, double precision
	KindNumeric              // numeric
	KindBool                 // boolean
	KindTimestampTZ          // timestamp with time zone
	KindTimestamp            // timestamp without time zone
	KindDate                 // date

	numKinds = int(iota)
)

var kindNames = [numKinds]string{
	"other", "json", "text", "bytea", "uuid", "integer", "float", "numeric", "bool", "timestamptz", "timestamp", "date",
}

// String returns the kind's name, for messages.
func (k TypeKind) String() string {
	if int(k) < numKinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// ParseKind returns the kind of that name.
func ParseKind(name string) (TypeKind, bool) {
	for i, n := range kindNames {
		if n == name {
			return TypeKind(i), true
		}
	}
	return KindOther, false
}

// KindOfOID returns the kind of a built-in type; any other OID is KindOther. A domain
// has an OID of its own: the Decoder resolves it by its Type message.
//
// Source: src/include/catalog/pg_type.dat; these OIDs are fixed.
func KindOfOID(oid uint32) TypeKind {
	switch oid {
	case 114, 3802:
		return KindJSON
	case 18, 19, 25, 1042, 1043:
		return KindText
	case 17:
		return KindBytea
	case 2950:
		return KindUUID
	case 20, 21, 23, 26:
		return KindInteger
	case 700, 701:
		return KindFloat
	case 1700:
		return KindNumeric
	case 16:
		return KindBool
	case 1184:
		return KindTimestampTZ
	case 1114:
		return KindTimestamp
	case 1082:
		return KindDate
	default:
		return KindOther
	}
}

// kindOfName returns the kind of a type by its internal name, as a Type message gives
// it. pgoutput names the base type of a domain there, and leaves the schema of built-in
// types empty.
func kindOfName(schema, name string) TypeKind {
	if name == "citext" {
		return KindText
	}
	if schema != "" && schema != "pg_catalog" {
		return KindOther
	}
	switch name {
	case "json", "jsonb":
		return KindJSON
	case "char", "name", "text", "bpchar", "varchar":
		return KindText
	case "bytea":
		return KindBytea
	case "uuid":
		return KindUUID
	case "int2", "int4", "int8", "oid":
		return KindInteger
	case "float4", "float8":
		return KindFloat
	case "numeric":
		return KindNumeric
	case "bool":
		return KindBool
	case "timestamptz":
		return KindTimestampTZ
	case "timestamp":
		return KindTimestamp
	case "date":
		return KindDate
	default:
		return KindOther
	}
}
