package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// page reads a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

var (
	helpFlag    = regexp.MustCompile(`(?m)^  (--[a-z-]+(?: [A-Z,.]+)?)(?: {2,}|$)`)
	helpDefault = regexp.MustCompile(`\(default: ([^)]*)\)`)
	readmeFlag  = regexp.MustCompile("(?m)^\\| `(--[a-z-]+(?: [A-Z,.]+)?)` \\|([^|]*)\\|")
)

// flagsOfHelp returns each flag with its value's name, and its default.
func flagsOfHelp(t *testing.T, commands ...string) map[string]string {
	t.Helper()
	flags := map[string]string{}
	for _, command := range commands {
		help := env{}.run(command, "--help").want(t, 0).stdout
		places := helpFlag.FindAllStringSubmatchIndex(help, -1)
		for i, at := range places {
			end := len(help)
			if i+1 < len(places) {
				end = places[i+1][0]
			}
			text := strings.Join(strings.Fields(help[at[1]:end]), " ")
			flags[help[at[2]:at[3]]] = ""
			if def := helpDefault.FindStringSubmatch(text); def != nil {
				flags[help[at[2]:at[3]]] = def[1]
			}
		}
	}
	return flags
}

func TestReadmeAndHelpNameTheSameFlagsWithTheSameDefaults(t *testing.T) {
	help := flagsOfHelp(t, "start")
	if len(help) < 30 {
		t.Fatalf("only %d flags found in the help: %v", len(help), help)
	}
	readme := map[string]string{}
	for _, row := range readmeFlag.FindAllStringSubmatch(page(t, "README.md"), -1) {
		if _, twice := readme[row[1]]; twice {
			t.Errorf("README.md has %s twice", row[1])
		}
		readme[row[1]] = strings.TrimSpace(row[2])
	}
	for flag, def := range help {
		got, ok := readme[flag]
		switch {
		case !ok:
			t.Errorf("README.md lacks %s of outbox-cdc start --help", flag)
		case got != def:
			t.Errorf("README.md has the default %q of %s, the help %q", got, flag, def)
		}
	}
	for flag := range readme {
		if _, ok := help[flag]; !ok {
			t.Errorf("README.md has %s, outbox-cdc start --help does not", flag)
		}
	}
}

func TestReadmeNamesEachCommandAndNoOther(t *testing.T) {
	_, list, _ := strings.Cut(env{}.run("--help").want(t, 0).stdout, "Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	_, section, _ := strings.Cut(page(t, "README.md"), "\n## Commands\n")
	section, _, _ = strings.Cut(section, "\n## ")
	named := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(section, -1) {
		named[row[1]] = true
	}
	for line := range strings.SplitSeq(list, "\n") {
		command := strings.Fields(line)[0]
		if !named[command] {
			t.Errorf("README.md lacks the command %s", command)
		}
		delete(named, command)
	}
	for command := range named {
		t.Errorf("README.md has the command %s, which there is not", command)
	}
}

func TestOperatingNamesEachReasonOfPoisonAndEachAlert(t *testing.T) {
	operating := page(t, "docs/OPERATING.md")
	for file, pattern := range map[string]string{
		"sink/poison.go":                         `(?m)^\tPoison\w+ += "([a-z0-9-]+)"`,
		"deploy/prometheus/outbox-cdc.rules.yml": `alert: (\w+)`,
	} {
		names := regexp.MustCompile(pattern).FindAllStringSubmatch(page(t, file), -1)
		if len(names) < 10 {
			t.Errorf("only %d names found in %s", len(names), file)
		}
		for _, name := range names {
			if !strings.Contains(operating, "`"+name[1]+"`") {
				t.Errorf("docs/OPERATING.md does not explain `%s` of %s", name[1], file)
			}
		}
	}
}

// A pointer to a test that was renamed is worse than none.
func TestEachTestAndPageThatTheDocumentationPointsToExists(t *testing.T) {
	tests := map[string]bool{}
	files := map[string]bool{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		files[filepath.ToSlash(name)] = true
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		content, err := os.ReadFile(path)
		for _, name := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(content), -1) {
			tests[name[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "docs/ARCHITECTURE.md", "docs/OPERATING.md", "docs/ERRORS.md"} {
		content := page(t, name)
		for _, pointer := range regexp.MustCompile("`(Test[A-Z]\\w+)`").FindAllStringSubmatch(content, -1) {
			if !tests[pointer[1]] {
				t.Errorf("%s points to %s, which does not exist", name, pointer[1])
			}
		}
		for _, link := range regexp.MustCompile(`\]\(([^):#]+)(#[^)]*)?\)`).FindAllStringSubmatch(content, -1) {
			target := filepath.ToSlash(filepath.Join(filepath.Dir(name), link[1]))
			if !files[target] {
				t.Errorf("%s links to %s, which does not exist", name, target)
			}
			if anchor := strings.TrimPrefix(link[2], "#"); anchor != "" && !hasHeading(page(t, target), anchor) {
				t.Errorf("%s links to %s%s: no such heading", name, target, link[2])
			}
		}
	}
}

// hasHeading tells whether a page has a heading whose anchor is that one.
func hasHeading(content, anchor string) bool {
	notInAnchor := regexp.MustCompile(`[^a-z0-9 -]`)
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(content, -1) {
		got := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(heading[1]), ""), " ", "-")
		if got == anchor {
			return true
		}
	}
	return false
}
