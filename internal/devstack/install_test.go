package devstack

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeApt puts an apt-get on PATH that writes down what it was asked for, and whether a
// server would have been made.
func fakeApt(t *testing.T, confDir, script string) (calls func() string) {
	t.Helper()
	bin := t.TempDir()
	log := filepath.Join(bin, "calls")
	text := "#!/bin/sh\necho \"$*\" $(cat " + confDir + "/*.conf 2>/dev/null) >>" + log + "\n" + script
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	return func() string {
		raw, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
}

func TestInstallLetsThePackageMakeNoServer(t *testing.T) {
	confDir := filepath.Join(t.TempDir(), "createcluster.d")
	calls := fakeApt(t, confDir, "echo Setting up $3\n")
	var out bytes.Buffer
	if err := installPostgres(t.Context(), &out, confDir); err != nil {
		t.Fatal(err)
	}
	want := "update\n" +
		"install -y --no-install-recommends postgresql-common\n" +
		"install -y --no-install-recommends postgresql create_main_cluster = false\n"
	if got := calls(); got != want {
		t.Errorf("apt-get was called with\n%swant\n%s", got, want)
	}
	if left, err := os.ReadDir(confDir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if !strings.Contains(out.String(), "Setting up") {
		t.Errorf("output = %q, want that of apt-get", out.String())
	}
}

func TestFailedInstallSaysWhatAptSaid(t *testing.T) {
	confDir := filepath.Join(t.TempDir(), "createcluster.d")
	fakeApt(t, confDir, "echo 'E: no such package' >&2\nexit 100\n")
	var out bytes.Buffer
	err := installPostgres(t.Context(), &out, confDir)
	if err == nil || !strings.Contains(err.Error(), "E: no such package") {
		t.Errorf("error = %v, want the words of apt-get", err)
	}
}
