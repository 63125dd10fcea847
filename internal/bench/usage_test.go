package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// tickLength is the unit of CPU times in /proc/PID/stat: 1/100 s on every Linux that Go
// runs on (USER_HZ).
const tickLength = 10 * time.Millisecond

// cpuTime returns the user and system time that a process has used since its start.
func cpuTime(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		tb.Fatalf("read CPU time: %v", err)
	}
	// The second field is the program's name in parentheses, which may hold blanks.
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	const userTime, systemTime = 14 - 3, 15 - 3 // proc(5) counts from 1; two fields are cut off
	return tickLength * time.Duration(number(tb, fields[userTime])+number(tb, fields[systemTime]))
}

// peakMemory returns the most bytes of memory that a process has had (VmHWM).
func peakMemory(tb testing.TB, pid int) int64 {
	tb.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			return number(tb, strings.Fields(value)[0]) << 10
		}
	}
	tb.Fatalf("/proc/%d/status has no VmHWM", pid)
	return 0
}

func number(tb testing.TB, text string) int64 {
	tb.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}
