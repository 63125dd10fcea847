package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrNoPostgres says that this machine has no PostgreSQL server binaries. The error that
// matches it is a *NoPostgresError.
var ErrNoPostgres = errors.New("no PostgreSQL server on this machine")

// NoPostgresError names the folders in which no PostgreSQL server was found.
type NoPostgresError struct {
	Searched []string
}

// Error returns one line with the folders.
func (e *NoPostgresError) Error() string {
	return fmt.Sprintf("%s (looked for initdb and postgres in %s)", ErrNoPostgres, strings.Join(e.Searched, ", "))
}

// Is makes errors.Is(err, ErrNoPostgres) true.
func (e *NoPostgresError) Is(target error) bool { return target == ErrNoPostgres }

// versionedBinDirs holds the folders in which Linux distributions and Homebrew put
// PostgreSQL outside of PATH.
var versionedBinDirs = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // Red Hat, PGDG
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
}

// Binaries is one installed PostgreSQL server.
type Binaries struct {
	Dir   string // holds initdb and postgres
	Major int
}

// FindPostgres finds the server binaries: in binDir if that is not empty, else on PATH,
// else the newest of the versioned folders of the distributions. It runs `postgres
// --version`. Without any it returns an error that is ErrNoPostgres.
func FindPostgres(ctx context.Context, binDir string) (Binaries, error) {
	if binDir != "" {
		found, ok := binariesIn(ctx, binDir)
		if !ok {
			return Binaries{}, &NoPostgresError{Searched: []string{binDir}}
		}
		return found, nil
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if dir == "" {
			continue
		}
		if found, ok := binariesIn(ctx, dir); ok {
			return found, nil
		}
	}
	searched := []string{"PATH"}
	var all []Binaries
	for _, pattern := range versionedBinDirs {
		searched = append(searched, pattern)
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			return Binaries{}, fmt.Errorf("search %s: %w", pattern, err)
		}
		for _, dir := range dirs {
			if found, ok := binariesIn(ctx, dir); ok {
				all = append(all, found)
			}
		}
	}
	if len(all) == 0 {
		return Binaries{}, &NoPostgresError{Searched: searched}
	}
	return slices.MaxFunc(all, func(a, b Binaries) int { return a.Major - b.Major }), nil
}

var versionLine = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

func binariesIn(ctx context.Context, dir string) (Binaries, bool) {
	for _, name := range []string{"initdb", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return Binaries{}, false
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return Binaries{}, false
	}
	match := versionLine.FindSubmatch(out)
	if match == nil {
		return Binaries{}, false
	}
	major, err := strconv.Atoi(string(match[1]))
	if err != nil {
		return Binaries{}, false
	}
	return Binaries{Dir: dir, Major: major}, true
}
