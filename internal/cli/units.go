package cli

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"B", 1}, {"", 1},
}

// parseSize reads a number of bytes: 65536, 512KiB, 32MiB, 1.5GiB.
func parseSize(text string) (int64, error) {
	for _, unit := range sizeUnits {
		number, ok := cutSuffixFold(text, unit.suffix)
		if !ok {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		bytes := value * float64(unit.bytes)
		if err != nil || math.IsNaN(value) || value < 0 || bytes != math.Trunc(bytes) || bytes >= math.MaxInt64 {
			break
		}
		return int64(bytes), nil
	}
	return 0, fmt.Errorf("must be a size such as 65536, 512KiB, 32MiB or 1GiB")
}

func cutSuffixFold(text, suffix string) (string, bool) {
	if len(text) < len(suffix) || !strings.EqualFold(text[len(text)-len(suffix):], suffix) {
		return "", false
	}
	return text[:len(text)-len(suffix)], true
}

// formatSize writes bytes in the largest unit that leaves no fraction.
func formatSize(bytes int64) string {
	for i := 3; i >= 0; i-- {
		if unit := sizeUnits[i]; bytes != 0 && bytes%unit.bytes == 0 {
			return strconv.FormatInt(bytes/unit.bytes, 10) + unit.suffix
		}
	}
	return strconv.FormatInt(bytes, 10)
}

func parseDuration(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("must be a duration such as 500ms, 10s or 168h")
	}
	return d, nil
}

// formatDuration leaves out the zeros at the end that String of 876000h0m0s has.
func formatDuration(d time.Duration) string {
	text := d.String()
	if short, ok := strings.CutSuffix(text, "m0s"); ok {
		text = short + "m"
	}
	if short, ok := strings.CutSuffix(text, "h0m"); ok {
		text = short + "h"
	}
	return text
}

// A check looks at a value's text; its error is the rest of a sentence that begins
// with the setting's name and the value.
type check func(text string) error

func durationBetween(lowest, highest time.Duration) check {
	return func(text string) error {
		d, err := parseDuration(text)
		if err != nil {
			return err
		}
		if d < lowest || d > highest {
			return fmt.Errorf("must be %s to %s", formatDuration(lowest), formatDuration(highest))
		}
		return nil
	}
}

func sizeBetween(lowest, highest int64) check {
	return func(text string) error {
		bytes, err := parseSize(text)
		if err != nil {
			return err
		}
		if bytes < lowest || bytes > highest {
			return fmt.Errorf("must be %s to %s", formatSize(lowest), formatSize(highest))
		}
		return nil
	}
}

func integerBetween(lowest, highest int) check {
	return func(text string) error {
		n, err := strconv.Atoi(text)
		if err != nil {
			return fmt.Errorf("must be a whole number")
		}
		if n < lowest || n > highest {
			return fmt.Errorf("must be %d to %d", lowest, highest)
		}
		return nil
	}
}

func oneOf(words ...string) check {
	return func(text string) error {
		if slices.Contains(words, text) {
			return nil
		}
		return fmt.Errorf("must be one of %s", strings.Join(words, ", "))
	}
}

// orWord also accepts one word in place of a value, such as off.
func orWord(word string, other check) check {
	return func(text string) error {
		if text == word {
			return nil
		}
		if err := other(text); err != nil {
			return fmt.Errorf("%w, or %s", err, word)
		}
		return nil
	}
}

func positiveRate(text string) error {
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(rate) {
		return fmt.Errorf("must be a number of events a second")
	}
	if rate <= 0 || rate > 10_000_000 {
		return fmt.Errorf("must be above 0, up to 10000000")
	}
	return nil
}
