package testenv

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/outbox-cdc/outbox-cdc/internal/devstack"
)

// SmallDisk returns a folder on a file system of its own that holds so many bytes. It
// exists in the mount namespace of a process that ends with the test, so that nothing is
// left behind even where the test is killed. It needs Linux, and root or user namespaces.
func SmallDisk(tb testing.TB, bytesMax int) string {
	tb.Helper()
	dir := tb.TempDir()
	args := []string{"--mount"}
	if os.Getuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	script := fmt.Sprintf(`mount -t tmpfs -o size=%d,mode=0777 tmpfs "$0" && touch "$0/mounted" && exec sleep infinity`, bytesMax)
	cmd := exec.Command("unshare", append(args, "sh", "-c", script, dir)...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	holder, err := devstack.StartProcess(cmd, syscall.SIGKILL)
	if err != nil {
		tb.Fatalf("make a small disk: %v", err)
	}
	tb.Cleanup(func() {
		if err := holder.Kill(); err != nil {
			tb.Errorf("remove the small disk: %v", err)
		}
	})
	seen := filepath.Join(fmt.Sprintf("/proc/%d/root", holder.PID()), dir) // as the holder sees it
	Eventually(tb, Deadline, func() error {
		select {
		case <-holder.Done():
			tb.Fatalf("make a small disk: %s", strings.TrimSpace(output.String()))
		default:
		}
		_, err := os.Stat(filepath.Join(seen, "mounted"))
		return err
	})
	return seen
}
