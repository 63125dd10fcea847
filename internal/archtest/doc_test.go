package archtest

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"testing"
)

func TestEachPackageBeginsWithDocGo(t *testing.T) {
	check(t, docRule, map[string]string{
		"sink/a.go":   "package sink",
		"decode/a.go": "package decode", "decode/doc.go": "package decode",
		"checkpoint/doc.go": "// Package checkpoint does.\npackage checkpoint", "checkpoint/a.go": "package checkpoint",
		"main.go": "// Command x does.\npackage main",
	}, "sink has no doc.go", "decode/doc.go has no package comment")
}

// docRule wants what a package owns, promises and never does in one place. The comment
// of main, a single file, stands in main.go.
func docRule(tr tree) []string {
	docs := map[string]*file{}
	for i, f := range tr.files {
		if f.isTest {
			continue
		}
		if _, ok := docs[f.dir]; !ok {
			docs[f.dir] = nil
		}
		if path.Base(f.path) == "doc.go" || f.path == "main.go" {
			docs[f.dir] = &tr.files[i]
		}
	}
	var out []string
	for _, dir := range slices.Sorted(maps.Keys(docs)) {
		switch f := docs[dir]; {
		case f == nil:
			out = append(out, fmt.Sprintf("%s has no doc.go", dir))
		case f.ast.Doc == nil:
			out = append(out, fmt.Sprintf("%s has no package comment", f.path))
		}
	}
	return out
}

// badNames are packages that say nothing of what they own.
var badNames = []string{"common", "helper", "helpers", "lib", "manager", "misc", "mocks", "types", "util", "utils"}

func TestPackagesAreNamedAfterWhatTheyOwn(t *testing.T) {
	check(t, nameRule, map[string]string{"internal/util/a.go": "package util", "sink/a.go": "package sink"}, "internal/util")
}

func nameRule(tr tree) []string {
	var out []string
	for _, f := range tr.files {
		if name := path.Base(f.dir); slices.Contains(badNames, name) && !slices.Contains(out, f.dir) {
			out = append(out, f.dir)
		}
	}
	return out
}
