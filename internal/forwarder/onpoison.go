package forwarder

import "fmt"

// OnPoison is what becomes of an event that the stream will never accept as it is.
type OnPoison uint8

// The policies. The zero value is none.
const (
	// PoisonDeadLetter stores the event in PostgreSQL and goes on.
	PoisonDeadLetter OnPoison = iota + 1
	// PoisonHoldAggregate does so too, and later events of the same aggregate wait there
	// with it, in order.
	PoisonHoldAggregate
	// PoisonHalt stops the forwarder before the event.
	PoisonHalt
)

var onPoisonNames = [...]string{"", "dead-letter", "hold-aggregate", "halt"}

// String returns the value of --on-poison.
func (o OnPoison) String() string {
	if int(o) < len(onPoisonNames) {
		return onPoisonNames[o]
	}
	return fmt.Sprintf("on-poison(%d)", uint8(o))
}

// ParseOnPoison reads a value of --on-poison.
func ParseOnPoison(text string) (OnPoison, error) {
	for i, name := range onPoisonNames {
		if text == name && name != "" {
			return OnPoison(i), nil
		}
	}
	return 0, fmt.Errorf("%q is not one of dead-letter, hold-aggregate, halt", text)
}

// stores tells whether the policy needs the table of dead letters.
func (o OnPoison) stores() bool { return o == PoisonDeadLetter || o == PoisonHoldAggregate }
