package archtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// arrows says which packages of this module each package may import. Data flows from
// replication through decode and sink; only the forwarder knows all stages.
var arrows = map[string][]string{
	".": {"internal/cli"},
	"internal/cli": {
		"decode", "internal/audit", "internal/deadletter", "internal/demo", "internal/devstack", "internal/fault", "internal/forwarder", "internal/metrics",
		"internal/provision",
		"internal/redact", "internal/request", "internal/web", "migrations", "replication", "sink",
	},
	"internal/forwarder": {
		"checkpoint", "decode", "replication", "sink",
		"internal/deadletter", "internal/fault", "internal/metrics", "internal/request", "internal/web",
		"internal/audit",     // marks the WAL
		"internal/provision", // asks the catalog the same questions before it starts
	},
	"internal/provision":  {"decode", "internal/deadletter", "internal/fault", "migrations", "replication", "sink"},
	"internal/deadletter": {"decode", "migrations", "replication"},                   // migrations: its tests make the table
	"internal/request":    {"decode", "internal/fault", "migrations", "replication"}, // migrations: its tests make the tables

	"internal/audit": {"decode", "internal/deadletter", "internal/fault", "internal/provision", "replication", "sink"},

	// The stages. One arrow between them: the sink takes the Event.
	"replication": {},
	"decode":      {},
	"sink":        {"decode", "internal/fault"}, // fault: a poison event says so itself
	"checkpoint":  {},

	// Each its own noun, without knowledge of the stages.
	"migrations":        {},
	"internal/demo":     {},
	"internal/devstack": {},
	"internal/fault":    {},
	"internal/metrics":  {},
	"internal/redact":   {},
	"internal/web":      {},
	"internal/archtest": {},

	// For tests alone: see testOnly.
	"internal/bench":          {},
	"internal/bench/bareloop": {}, // beside the product: it must share none of its tricks
	"internal/testenv":        {"internal/devstack"},
	"internal/sim": {
		"decode", "internal/deadletter", "internal/forwarder", "internal/metrics", "internal/provision", "replication", "sink",
		"decode/decodetest", // its WAL is a real one
	},
	"internal/e2e":      {"decode"}, // from outside, on the built binary; decode only reads positions
	"decode/decodetest": {"decode"},
}

// testOnly are packages that only tests may import.
var testOnly = []string{"internal/testenv", "internal/sim", "decode/decodetest"}

func TestImportsFollowTheArrows(t *testing.T) {
	check(t, arrowRule, map[string]string{
		"main.go":                   `package main; import _ "` + module + `/sink"`,
		"sink/a.go":                 `package sink; import _ "` + module + `/replication"`,
		"decode/a.go":               `package decode; import _ "` + module + `/internal/testenv"`,
		"decode/a_test.go":          `package decode; import _ "` + module + `/internal/testenv"`,
		"decode/b_test.go":          `package decode; import _ "` + module + `/internal/forwarder"`,
		"util/a.go":                 `package util`,
		"internal/forwarder/run.go": `package forwarder; import _ "` + module + `/checkpoint"`,
	},
		"main.go imports sink",
		"sink/a.go imports replication",
		"decode/a.go imports internal/testenv",
		"decode/b_test.go imports internal/forwarder",
		"util has no row",
	)
}

func arrowRule(tr tree) []string {
	var out []string
	unknown := map[string]bool{}
	for _, f := range tr.files {
		allowed, ok := arrows[f.dir]
		if !ok {
			unknown[f.dir] = true
			continue
		}
		for _, p := range slices.Sorted(maps.Values(f.imports())) {
			target := ownPackage(p)
			if target == "" || slices.Contains(allowed, target) {
				continue
			}
			if f.isTest && (target == f.dir || isTestHelp(target)) {
				continue
			}
			out = append(out, fmt.Sprintf("%s imports %s: no arrow leads from %s to it", f.path, target, f.dir))
		}
	}
	for dir := range unknown {
		out = append(out, fmt.Sprintf("%s has no row in arrows: add one with what it may import", dir))
	}
	return out
}

// isTestHelp tells whether tests of every package may import the target.
func isTestHelp(target string) bool {
	return slices.Contains(testOnly, target) || target == "internal/devstack"
}

// ownPackage returns the folder of a package of this module, or "".
func ownPackage(p string) string {
	if p == module {
		return "."
	}
	rest, ok := strings.CutPrefix(p, module+"/")
	if !ok {
		return ""
	}
	return rest
}

// pure are the packages without I/O, clock and goroutine, and the only packages from
// elsewhere that they may import.
var pure = map[string][]string{
	"decode":     {"github.com/jackc/pglogrepl"}, // for the LSN
	"checkpoint": {"github.com/jackc/pglogrepl"},
}

// impureStd are the parts of the standard library that they may not import.
var impureStd = []string{"context", "database", "io/fs", "io/ioutil", "log", "math/rand", "net", "os", "plugin", "runtime", "sync", "syscall"}

// clock are the functions of time that read it or wait for it.
var clock = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

func TestDecodeAndCheckpointArePure(t *testing.T) {
	check(t, pureRule, map[string]string{
		"decode/a.go":      `package decode; import ("os"; "time"; "net/http"; "github.com/jackc/pglogrepl"; "github.com/nats-io/nats.go"); var _ = time.Now; var _ time.Time`,
		"checkpoint/a.go":  `package checkpoint; import "sync/atomic"; func f() { go f() }`,
		"decode/a_test.go": `package decode; import "os"`,
	},
		"imports os", "imports net/http", "imports github.com/nats-io/nats.go", "uses time.Now", "imports sync/atomic", "starts a goroutine",
	)
}

func pureRule(tr tree) []string {
	var out []string
	for _, f := range tr.files {
		allowed, ok := pure[f.dir]
		if !ok || f.isTest {
			continue
		}
		imports := f.imports()
		for _, p := range slices.Sorted(maps.Values(imports)) {
			std := !strings.Contains(strings.Split(p, "/")[0], ".")
			bad := std && slices.ContainsFunc(impureStd, func(root string) bool { return within(p, root) })
			if bad || (!std && !slices.Contains(allowed, p)) {
				out = append(out, fmt.Sprintf("%s imports %s: this package is pure", f.path, p))
			}
		}
		for e, pos := range uses(f) {
			if pkg, name, ok := selected(imports, e); ok && pkg == "time" && slices.Contains(clock, name) {
				out = append(out, fmt.Sprintf("%s uses time.%s: this package has no clock", tr.at(pos), name))
			}
		}
		for _, g := range goStatements(f) {
			out = append(out, fmt.Sprintf("%s starts a goroutine: this package is pure", tr.at(g.Pos())))
		}
	}
	return out
}
