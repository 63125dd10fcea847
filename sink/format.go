package sink

import "fmt"

// Format is the shape of a message body.
type Format uint8

const (
	// FormatEnvelope is a JSON object with the event's attributes and its payload.
	FormatEnvelope Format = iota + 1
	// FormatPayload is the payload column's own bytes.
	FormatPayload
	// FormatCloudEvents is CloudEvents in binary mode: ce- headers, body as with FormatPayload.
	FormatCloudEvents
)

// ParseFormat reads the value of --format.
func ParseFormat(s string) (Format, error) {
	switch s {
	case "envelope":
		return FormatEnvelope, nil
	case "payload":
		return FormatPayload, nil
	case "cloudevents":
		return FormatCloudEvents, nil
	default:
		return 0, fmt.Errorf("unknown format %q (envelope, payload or cloudevents)", s)
	}
}

// String returns the flag's value.
func (f Format) String() string {
	switch f {
	case FormatEnvelope:
		return "envelope"
	case FormatPayload:
		return "payload"
	case FormatCloudEvents:
		return "cloudevents"
	default:
		return fmt.Sprintf("format(%d)", uint8(f))
	}
}

// HeaderMode says whether attributes are repeated as headers.
type HeaderMode uint8

const (
	// HeadersMinimal leaves out the attribute headers that the body holds anyway.
	HeadersMinimal HeaderMode = iota + 1
	// HeadersFull writes each attribute as a header.
	HeadersFull
)

// ParseHeaderMode reads the value of --headers; an empty one is the format's default.
func ParseHeaderMode(s string, f Format) (HeaderMode, error) {
	switch s {
	case "minimal":
		return HeadersMinimal, nil
	case "full":
		return HeadersFull, nil
	case "":
		if f == FormatEnvelope {
			return HeadersMinimal, nil
		}
		return HeadersFull, nil
	default:
		return 0, fmt.Errorf("unknown header mode %q (full or minimal)", s)
	}
}
