package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrCannotInstall says that InstallPostgres knows no way on this machine, or has not the
// rights.
var ErrCannotInstall = errors.New("PostgreSQL can be installed from here only as root on Debian or Ubuntu (apt-get)")

// HasApt reports whether this machine installs its packages with apt-get.
func HasApt() bool {
	_, err := exec.LookPath("apt-get")
	return err == nil
}

// InstallPostgres installs the server of the distribution with apt-get, as root. It does
// not let the package make and start a server of its own. out gets what apt-get prints.
// It blocks for as long as the download takes.
func InstallPostgres(ctx context.Context, out io.Writer) error {
	if os.Geteuid() != 0 || !HasApt() {
		return ErrCannotInstall
	}
	return installPostgres(ctx, out, "/etc/postgresql-common/createcluster.d")
}

func installPostgres(ctx context.Context, out io.Writer, clusterConfDir string) error {
	if err := apt(ctx, out, "update"); err != nil {
		return err
	}
	// Its own package first: it reads the folder that says whether to make a server.
	if err := apt(ctx, out, "install", "-y", "--no-install-recommends", "postgresql-common"); err != nil {
		return err
	}
	if err := os.MkdirAll(clusterConfDir, 0o755); err != nil {
		return fmt.Errorf("install PostgreSQL: %w", err)
	}
	conf := filepath.Join(clusterConfDir, "outbox-cdc.conf")
	if err := os.WriteFile(conf, []byte("create_main_cluster = false\n"), 0o600); err != nil {
		return fmt.Errorf("install PostgreSQL: %w", err)
	}
	err := apt(ctx, out, "install", "-y", "--no-install-recommends", "postgresql")
	if removeErr := os.Remove(conf); err == nil && removeErr != nil {
		err = fmt.Errorf("install PostgreSQL: %w", removeErr)
	}
	return err
}

func apt(ctx context.Context, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	var tail bytes.Buffer
	both := io.MultiWriter(out, &tail) // one writer, so that exec writes from one goroutine
	cmd.Stdout, cmd.Stderr = both, both
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run apt-get %s: %w: %s", args[0], err, lastLines(tail.Bytes()))
	}
	return nil
}
