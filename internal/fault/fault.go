package fault

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// Class says what can be done about a failure.
type Class uint8

const (
	// Transient failures heal by themselves: wait and try again, for ever.
	Transient Class = iota + 1
	// Poison is an event that will never be accepted as it is.
	Poison
	// Operator failures need a person; trying again is of no use.
	Operator
	// Usage failures are wrong flags or configuration, found before any connection.
	Usage
)

// String returns the name that the documentation uses.
func (c Class) String() string {
	switch c {
	case Transient:
		return "transient"
	case Poison:
		return "poison"
	case Operator:
		return "operator"
	case Usage:
		return "usage"
	default:
		return fmt.Sprintf("class(%d)", uint8(c))
	}
}

// Exit codes of the program, as the contract with its users fixes them.
const (
	ExitOK       = 0
	ExitFailed   = 1
	ExitUsage    = 2
	ExitOperator = 3
	ExitCut      = 130
)

// Error is a failure as a person sees it: one line that names the thing and the
// cause, and the next step.
type Error struct {
	Class Class
	// Code is a short, stable name such as "slot-missing"; it may be empty.
	Code string
	// What names the thing and the cause, in one line and without the hint.
	What string
	// Hint is the next command or statement; empty where there is none to give.
	Hint string
	// Err is the cause; it may be nil.
	Err error
}

// Error returns one line. The cause is appended when What does not hold it already.
func (e *Error) Error() string {
	if e.Err == nil {
		return oneLine(e.What)
	}
	cause := oneLine(e.Err.Error())
	what := oneLine(e.What)
	switch {
	case what == "":
		return cause
	case strings.Contains(what, cause):
		return what
	default:
		return what + ": " + cause
	}
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// NewUsage says that a flag, key or value is wrong. It ends in exit code 2.
func NewUsage(what, hint string) *Error {
	return &Error{Class: Usage, What: what, Hint: hint}
}

// NewOperator says that a person must act. It ends in exit code 3.
func NewOperator(code, what, hint string, err error) *Error {
	return &Error{Class: Operator, Code: code, What: what, Hint: hint, Err: err}
}

// NewTransient says that the failure may heal. It ends in exit code 1 when it ends the program.
func NewTransient(what, hint string, err error) *Error {
	return &Error{Class: Transient, What: what, Hint: hint, Err: err}
}

// ExitCode returns the exit code for what ended a command.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if errors.Is(err, ErrCut) {
		return ExitCut
	}
	var fe *Error
	if errors.As(err, &fe) {
		switch fe.Class {
		case Usage:
			return ExitUsage
		case Operator, Poison:
			return ExitOperator
		default:
			return ExitFailed
		}
	}
	return ExitFailed
}

// ErrCut is what a second signal ends a command with.
var ErrCut = errors.New("draining was cut short by a second signal")

// Print writes the failure line and, if there is one, the line with the hint.
func Print(w io.Writer, err error) {
	_, _ = fmt.Fprintf(w, "outbox-cdc: %s\n", oneLine(err.Error()))
	var fe *Error
	if errors.As(err, &fe) && fe.Hint != "" {
		_, _ = fmt.Fprintf(w, "hint: %s\n", oneLine(fe.Hint))
	}
}

func oneLine(s string) string {
	return strings.Join(strings.Fields(s), " ")
}
