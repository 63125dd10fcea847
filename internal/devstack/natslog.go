package devstack

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// serverLog is the logger of an embedded nats-server. The server's own one ends the
// whole process on a fatal message; this one remembers it.
type serverLog struct {
	mu     sync.Mutex
	path   string
	fatals string
}

func openServerLog(path string) (*serverLog, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make folder of nats-server: %w", err)
	}
	return &serverLog{path: path}, nil
}

// write opens the file for each line: there are few of them, and so nobody must close it.
func (l *serverLog) write(level, format string, args []any) string {
	line := fmt.Sprintf(format, args...)
	l.mu.Lock()
	defer l.mu.Unlock()
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return line // the folder is gone: the server is being closed
	}
	defer file.Close() //nolint:errcheck // a log line, no more
	_, _ = fmt.Fprintf(file, "%s [%s] %s\n", time.Now().UTC().Format(time.RFC3339Nano), level, line)
	return line
}

func (l *serverLog) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatals
}

// The six methods that nats-server asks of a logger.

func (l *serverLog) Noticef(format string, v ...any) { l.write("INF", format, v) }
func (l *serverLog) Warnf(format string, v ...any)   { l.write("WRN", format, v) }
func (l *serverLog) Errorf(format string, v ...any)  { l.write("ERR", format, v) }
func (l *serverLog) Debugf(format string, v ...any)  { l.write("DBG", format, v) }
func (l *serverLog) Tracef(format string, v ...any)  { l.write("TRC", format, v) }
func (l *serverLog) Fatalf(format string, v ...any) {
	line := l.write("FTL", format, v)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fatals = line
}
