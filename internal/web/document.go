package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
)

// node is one JSON value that has kept the order of its keys and the text of its
// numbers, which a map would lose.
type node struct {
	kind   kind
	text   string  // of a string, number or boolean
	fields []field // of an object
	items  []node  // of an array
}

type field struct {
	name  string
	value node
}

type kind uint8

const (
	kindNull kind = iota
	kindBool
	kindNumber
	kindString
	kindArray
	kindObject
)

// parseDocument encodes v and reads it back, with redact applied to each string.
func parseDocument(v any, redact func(string) string) (node, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return node{}, fmt.Errorf("encode status: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	n, err := parseValue(dec, redact)
	if err != nil {
		return node{}, err
	}
	if n.kind != kindObject {
		return node{}, errors.New("read status: the document is not an object")
	}
	return n, nil
}

// next reads one token; inside of a document its end is an error too.
func next(dec *json.Decoder) (json.Token, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	return tok, nil
}

// parseValue reads one value. Its depth is bounded by encoding/json.
func parseValue(dec *json.Decoder, redact func(string) string) (node, error) {
	tok, err := next(dec)
	if err != nil {
		return node{}, err
	}
	switch t := tok.(type) {
	case json.Delim:
		if t == '{' {
			return parseObject(dec, redact)
		}
		return parseArray(dec, redact)
	case bool:
		return node{kind: kindBool, text: strconv.FormatBool(t)}, nil
	case json.Number:
		return node{kind: kindNumber, text: t.String()}, nil
	case string:
		return node{kind: kindString, text: redact(t)}, nil
	default:
		return node{kind: kindNull}, nil
	}
}

func parseObject(dec *json.Decoder, redact func(string) string) (node, error) {
	n := node{kind: kindObject}
	for dec.More() {
		name, err := next(dec)
		if err != nil {
			return node{}, err
		}
		value, err := parseValue(dec, redact)
		if err != nil {
			return node{}, err
		}
		n.fields = append(n.fields, field{name: fmt.Sprint(name), value: value})
	}
	_, err := next(dec) // the closing brace
	return n, err
}

func parseArray(dec *json.Decoder, redact func(string) string) (node, error) {
	n := node{kind: kindArray}
	for dec.More() {
		item, err := parseValue(dec, redact)
		if err != nil {
			return node{}, err
		}
		n.items = append(n.items, item)
	}
	_, err := next(dec) // the closing bracket
	return n, err
}

// appendJSON appends the value in compact form.
func (n node) appendJSON(b []byte) []byte {
	switch n.kind {
	case kindObject:
		b = append(b, '{')
		for i, f := range n.fields {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, f.name), ':')
			b = f.value.appendJSON(b)
		}
		return append(b, '}')
	case kindArray:
		b = append(b, '[')
		for i, item := range n.items {
			if i > 0 {
				b = append(b, ',')
			}
			b = item.appendJSON(b)
		}
		return append(b, ']')
	case kindString:
		return appendString(b, n.text)
	case kindBool, kindNumber:
		return append(b, n.text...)
	case kindNull:
	}
	return append(b, "null"...)
}

func appendString(b []byte, s string) []byte {
	quoted, _ := json.Marshal(s) // a string always encodes
	return append(b, quoted...)
}
