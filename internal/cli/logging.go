package cli

import (
	"io"
	"log/slog"
	"os"
)

func (v values) logFormat(terminal bool) string {
	switch {
	case v.given("log-format"):
		return v.str("log-format")
	case terminal:
		return "text"
	default:
		return "json"
	}
}

func newLogger(w io.Writer, format, level string) *slog.Logger {
	opts := &slog.HandlerOptions{Level: logLevel(level)}
	if format == "text" {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

func logLevel(name string) slog.Level {
	var level slog.Level
	if err := level.UnmarshalText([]byte(name)); err != nil {
		return slog.LevelInfo // the check of --log-level lets no other name through
	}
	return level
}

// isTerminal reports whether a person watches w.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
