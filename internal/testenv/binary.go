package testenv

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Binary builds outbox-cdc once per test process and returns its path. A test process
// with the race detector gets a binary with it.
func Binary(tb testing.TB) string {
	tb.Helper()
	shared.Lock()
	defer shared.Unlock()
	needMain(tb)
	if shared.binary != "" {
		return shared.binary
	}
	dir, err := os.MkdirTemp("", "outbox-cdc-bin-")
	if err != nil {
		tb.Fatal(err)
	}
	shared.closings = append(shared.closings, func() error { return os.RemoveAll(dir) })
	bin := filepath.Join(dir, "outbox-cdc")
	goBuild(tb, bin, moduleName)
	shared.binary = bin
	return bin
}

const moduleName = "github.com/outbox-cdc/outbox-cdc"

func goBuild(tb testing.TB, output, pkg string) {
	tb.Helper()
	args := []string{"build", "-o", output}
	if raceEnabled && pkg == moduleName {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(Context(tb, 10*Deadline), "go", append(args, pkg)...)
	cmd.Dir = moduleRoot(tb)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build %s: %v\n%s", pkg, err, out)
	}
}

// moduleRoot is the folder with go.mod: tests run in their package's folder.
func moduleRoot(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		_, err := os.Stat(filepath.Join(dir, "go.mod"))
		if err == nil {
			return dir
		}
		if !errors.Is(err, os.ErrNotExist) || dir == filepath.Dir(dir) {
			tb.Fatalf("find go.mod: %v", err)
		}
		dir = filepath.Dir(dir)
	}
}
