package archtest

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/outbox-cdc/outbox-cdc"

// tree is the parsed source of the module.
type tree struct {
	fset  *token.FileSet
	files []file
}

type file struct {
	path   string // from the module's root, with slashes
	dir    string // of the package; "." is main
	isTest bool
	ast    *ast.File
}

// rule returns what is wrong with a tree, one line each.
type rule func(tree) []string

// check applies a rule to the module, and to a made-up tree that breaks it: a rule
// that finds nothing there could not fail.
func check(t *testing.T, r rule, broken map[string]string, want ...string) {
	t.Helper()
	for _, finding := range r(load(t)) {
		t.Error(finding)
	}
	findings := r(parse(t, broken))
	for _, w := range want {
		if !slices.ContainsFunc(findings, func(f string) bool { return strings.Contains(f, w) }) {
			t.Errorf("the rule does not find %q in a tree that breaks it; it finds %q", w, findings)
		}
	}
	if len(findings) != len(want) {
		t.Errorf("the rule finds %d things in the made-up tree, want %d: %q", len(findings), len(want), findings)
	}
}

// load parses every Go file of the module.
func load(t *testing.T) tree {
	t.Helper()
	const root = "../.."
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if name == "testdata" || (strings.HasPrefix(name, ".") && p != root) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		sources[filepath.ToSlash(rel)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	tr := parse(t, sources)
	if len(tr.files) < 20 {
		t.Fatalf("only %d files were found: the rules would prove nothing", len(tr.files))
	}
	return tr
}

func parse(t *testing.T, sources map[string]string) tree {
	t.Helper()
	tr := tree{fset: token.NewFileSet()}
	for p, text := range sources {
		f, err := parser.ParseFile(tr.fset, p, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		tr.files = append(tr.files, file{path: p, dir: path.Dir(p), isTest: strings.HasSuffix(p, "_test.go"), ast: f})
	}
	slices.SortFunc(tr.files, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return tr
}

// imports returns the import paths of a file by the name that the file uses for them.
func (f file) imports() map[string]string {
	out := map[string]string{}
	for _, spec := range f.ast.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has accepted it: cannot happen
		}
		name := path.Base(p)
		if len(name) > 1 && name[0] == 'v' && strings.Trim(name[1:], "0123456789") == "" {
			name = path.Base(path.Dir(p)) // pgx/v5 is pgx, rand/v2 is rand
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		out[strings.TrimSuffix(name, ".go")] = p // nats.go is nats
	}
	return out
}

// selected returns the import path and the name of an expression such as os.Exit, and
// false for anything else.
func selected(imports map[string]string, e ast.Expr) (pkg, name string, ok bool) {
	sel, isSel := e.(*ast.SelectorExpr)
	if !isSel {
		return "", "", false
	}
	id, isIdent := sel.X.(*ast.Ident)
	if !isIdent || id.Obj != nil { // a variable of that name
		return "", "", false
	}
	p, ok := imports[id.Name]
	return p, sel.Sel.Name, ok
}

func (t tree) at(pos token.Pos) string {
	p := t.fset.Position(pos)
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// within tells whether an import path is root or below it.
func within(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }
