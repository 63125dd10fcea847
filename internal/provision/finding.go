package provision

import (
	"fmt"

	"github.com/outbox-cdc/outbox-cdc/internal/fault"
)

// Level says how bad a finding is.
type Level string

// The levels, as the JSON of the commands writes them.
const (
	LevelOK   Level = "ok"
	LevelWarn Level = "warn"
	LevelFail Level = "fail"
)

// Finding is one thing that was looked at.
type Finding struct {
	Level   Level  `json:"level"`
	Code    string `json:"code"` // short and stable, such as "slot-missing"
	Message string `json:"message"`
	// Fix is the statement or command that mends it; empty where nothing needs mending.
	Fix string `json:"fix"`
}

// Findings are in the order in which they should be mended.
type Findings []Finding

// Fault returns the first failure as an error for a person to act on (exit code 3), or
// nil when there is none.
func (fs *Findings) Fault() error {
	for _, f := range *fs {
		if f.Level == LevelFail {
			return fault.NewOperator(f.Code, f.Message, f.Fix, nil)
		}
	}
	return nil
}

// Warnings returns the findings that stop nothing and that a person should know of.
func (fs *Findings) Warnings() Findings {
	var warnings Findings
	for _, f := range *fs {
		if f.Level == LevelWarn {
			warnings = append(warnings, f)
		}
	}
	return warnings
}

// Has reports whether there is a finding with that code which is not ok.
func (fs *Findings) Has(code string) bool {
	for _, f := range *fs {
		if f.Code == code && f.Level != LevelOK {
			return true
		}
	}
	return false
}

func (fs *Findings) fail(code, fix, format string, args ...any) {
	*fs = append(*fs, Finding{Level: LevelFail, Code: code, Message: fmt.Sprintf(format, args...), Fix: fix})
}

func (fs *Findings) warn(code, fix, format string, args ...any) {
	*fs = append(*fs, Finding{Level: LevelWarn, Code: code, Message: fmt.Sprintf(format, args...), Fix: fix})
}
