package testenv

import (
	"os"
	"testing"
)

// ReachableDir returns a folder that the user postgres can reach, as tb.TempDir is not,
// with a path that is short enough for a socket below it. It is removed after the test.
func ReachableDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "dir")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	return dir
}
