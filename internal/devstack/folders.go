package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const settingsFile = "outbox-cdc-dev.conf"

// prepare fills in account, home and socketDir and makes the data folder.
func (p *Postgres) prepare(ctx context.Context, dir string) error {
	if err := p.makeHome(dir); err != nil {
		return err
	}
	if err := p.account.checkReach(p.home); err != nil {
		return err
	}
	if err := p.account.checkReach(p.bins.Dir); err != nil {
		return err
	}
	if err := p.makeSocketDir(); err != nil {
		return err
	}
	version, err := os.ReadFile(filepath.Join(p.DataDir(), "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return p.initdb(ctx)
	}
	if err != nil {
		return fmt.Errorf("read data folder: %w", err)
	}
	if made := strings.TrimSpace(string(version)); made != strconv.Itoa(p.bins.Major) {
		return fmt.Errorf("data folder %s was made by PostgreSQL %s, but %s holds PostgreSQL %d", p.DataDir(), made, p.bins.Dir, p.bins.Major)
	}
	return nil
}

func (p *Postgres) makeHome(dir string) error {
	var err error
	if dir == "" {
		if p.account, err = accountFor(""); err != nil {
			return err
		}
		if p.throwAway, err = makeThrowAway("pg-", p.account); err != nil {
			return err
		}
		p.home = p.throwAway.dir
		return p.account.own(p.home)
	}
	if p.home, err = filepath.Abs(dir); err != nil {
		return fmt.Errorf("find folder %s: %w", dir, err)
	}
	if err := os.MkdirAll(p.home, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	p.account, err = accountFor(p.DataDir())
	return err
}

func (p *Postgres) makeSocketDir() error {
	dir := filepath.Join(p.home, "run")
	if len(dir)+len("/.s.PGSQL.65535") <= socketPathMax {
		p.socketDir = dir
		return p.account.mkdir(dir)
	}
	var err error
	if p.socketHome, err = makeThrowAway("run-", p.account); err != nil {
		return err
	}
	p.socketDir = p.socketHome.dir
	return p.account.own(p.socketDir)
}

// initdb makes the data folder under another name first, so that an interrupted run
// leaves nothing that looks like one.
func (p *Postgres) initdb(ctx context.Context) error {
	fresh := p.DataDir() + ".new"
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("remove unfinished data folder: %w", err)
	}
	if err := p.account.mkdir(fresh); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.bins.Dir, "initdb"),
		"-D", fresh, "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C")
	cmd.Dir, cmd.Env, cmd.SysProcAttr = p.home, serverEnv(), p.account.attr()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run initdb: %w: %s", err, lastLines(out.Bytes()))
	}
	conf, err := os.OpenFile(filepath.Join(fresh, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open configuration: %w", err)
	}
	_, err = fmt.Fprintf(conf, "\ninclude_if_exists = '%s'\n", settingsFile)
	if err := errors.Join(err, conf.Close()); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	if err := os.Rename(fresh, p.DataDir()); err != nil {
		return fmt.Errorf("name data folder: %w", err)
	}
	return nil
}

// writeSettings writes the file that postgresql.conf includes. ALTER SYSTEM beats it.
func (p *Postgres) writeSettings(port int) error {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": p.socketDir,
		"wal_level":               "logical",
		"shared_buffers":          "32MB",
		"max_connections":         "100",
		"max_wal_senders":         "20",
		"max_replication_slots":   "20",
		"log_line_prefix":         "%m [%p] %q%a ",
	}
	if p.throwAway != nil {
		settings["fsync"] = "off"
	}
	maps.Copy(settings, p.settings)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	return p.account.writeFile(filepath.Join(p.DataDir(), settingsFile), text.String())
}

// serverEnv is the environment of the server: nothing of the user's PG* variables.
func serverEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
}

// lastLines returns the last lines of an output as one line, for an error message.
func lastLines(out []byte) string {
	const linesMax = 5
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) > linesMax {
		lines = lines[len(lines)-linesMax:]
	}
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, " | ")
}
