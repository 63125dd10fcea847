package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"iter"
	"slices"
	"testing"
)

// starts are the files that may start a goroutine, and what for. One file a package.
var starts = map[string]string{
	"internal/forwarder/run.go":    "reader, publisher, watcher, http",
	"internal/web/server.go":       "the listener",
	"internal/demo/run.go":         "forwarder and subscriber of the demo",
	"internal/cli/signals.go":      "the command, so that a second signal can end the process",
	"internal/devstack/process.go": "one for each child process, to reap it",
	"internal/testenv/proxy.go":    "the connections of the proxy",
	"internal/sim/process.go":      "a simulated process, and the time of its world",
}

func TestGoroutinesAreStartedInFewPlacesEachWithItsOwnerNamed(t *testing.T) {
	check(t, goroutineRule, map[string]string{
		"sink/a.go": "package sink\nfunc f() {\n// owned by nobody\n\tgo f()\n}",
		"internal/web/server.go": "package web\nfunc f() {\n\tgo f()\n\tx()\n" +
			"\t// Owns x; stops with it; waited for below.\n\tgo f()\n\tgroup.Go(f)\n}",
		"sink/a_test.go": "package sink\nfunc g() { go g() }",
	},
		"sink/a.go:4 starts a goroutine",
		"internal/web/server.go:3 has no comment",
		"internal/web/server.go:7 has no comment",
	)
}

func goroutineRule(tr tree) []string {
	var out []string
	for _, f := range tr.files {
		if f.isTest {
			continue
		}
		for _, g := range goStatements(f) {
			if _, ok := starts[f.path]; !ok {
				out = append(out, fmt.Sprintf("%s starts a goroutine: only the files in starts do", tr.at(g.Pos())))
			} else if !commented(tr, f, g.Pos()) {
				out = append(out, fmt.Sprintf("%s has no comment above it: owns what, stops when, waited for by whom", tr.at(g.Pos())))
			}
		}
	}
	return out
}

// goStatements returns each go statement and each call of a method Go, by which
// errgroup and sync.WaitGroup start one.
func goStatements(f file) []ast.Node {
	var out []ast.Node
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			out = append(out, n)
		case *ast.CallExpr:
			if sel, ok := n.Fun.(*ast.SelectorExpr); ok && (sel.Sel.Name == "Go" || sel.Sel.Name == "TryGo") && len(n.Args) == 1 {
				out = append(out, n)
			}
		}
		return true
	})
	return out
}

// commented tells whether a comment ends on the line above pos or stands on its line.
func commented(tr tree, f file, pos token.Pos) bool {
	line := tr.fset.Position(pos).Line
	return slices.ContainsFunc(f.ast.Comments, func(c *ast.CommentGroup) bool {
		end := tr.fset.Position(c.End()).Line
		return end == line-1 || end == line
	})
}

// A reserved function belongs to the packages in owners; tests may use it or not.
type reserved struct {
	pkg     string
	names   []string // empty: all
	owners  []string
	inTests bool
	why     string
}

var reservedCalls = []reserved{
	{"os", []string{"Exit"}, []string{"."}, true, "only main ends the process"},
	{"log", []string{"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln"}, nil, true, "return an error"},
	{"os/signal", nil, []string{"internal/cli"}, true, "signals belong to the command line"},
	{"time", []string{"Sleep"}, nil, false, "wait for a signal, or poll with a deadline"},
}

func TestOnlyMainAndTheCommandLineEndTheProcessAndTakeSignals(t *testing.T) {
	check(t, reservedRule, map[string]string{
		"sink/a.go":         `package sink; import ("os"; "log"; "os/signal"; "time"); func init() { os.Exit(1); log.Fatal(1); signal.Notify(nil); time.Sleep(1) }`,
		"sink/b.go":         `package sink; type s struct{}; func (s) init() {}; func f(os s) { os.Exit(1) }`,
		"sink/a_test.go":    `package sink; import ("os"; "time"; "testing"); func TestMain(m *testing.M) { time.Sleep(1); os.Exit(1) }; func TestX(t *testing.T) { t.Skip() }`,
		"main.go":           `package main; import "os"; func main() { os.Exit(1) }`,
		"internal/cli/a.go": `package cli; import "os/signal"; func f() { signal.Notify(nil) }`,
	},
		"sink/a.go:1 uses os.Exit", "uses log.Fatal", "uses os/signal.Notify", "sink/a.go:1 uses time.Sleep", "has a func init",
		"sink/a_test.go:1 uses time.Sleep", "skips a test",
	)
}

func reservedRule(tr tree) []string {
	var out []string
	for _, f := range tr.files {
		imports := f.imports()
		for e, pos := range uses(f) {
			pkg, name, ok := selected(imports, e)
			if !ok {
				if f.isTest && isSkip(e) {
					out = append(out, fmt.Sprintf("%s skips a test: a missing server is a failure", tr.at(pos)))
				}
				continue
			}
			for _, r := range reservedCalls {
				if pkg == r.pkg && (len(r.names) == 0 || slices.Contains(r.names, name)) &&
					!slices.Contains(r.owners, f.dir) && (!f.isTest || !r.inTests) {
					out = append(out, fmt.Sprintf("%s uses %s.%s: %s", tr.at(pos), pkg, name, r.why))
				}
			}
		}
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				out = append(out, fmt.Sprintf("%s has a func init: a package does nothing until it is called", tr.at(fn.Pos())))
			}
		}
	}
	return out
}

// isSkip tells whether e is Skip of a test, by the names that tests are given.
func isSkip(e ast.Expr) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return ok && slices.Contains([]string{"t", "b", "f", "tb"}, id.Name) &&
		slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name)
}

// uses returns each expression a.B of a file with its place.
func uses(f file) iter.Seq2[ast.Expr, token.Pos] {
	return func(yield func(ast.Expr, token.Pos) bool) {
		more := true
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && more {
				more = yield(sel, sel.Pos())
			}
			return more
		})
	}
}

// shared are the files whose package variable is meant for the whole process.
var shared = map[string]string{
	"internal/devstack/port.go":    "a port is handed out once in a process, behind a lock",
	"internal/testenv/main.go":     "one server for all tests of a package",
	"internal/testenv/binary.go":   "one build for all tests of a package",
	"internal/testenv/postgres.go": "one server for all tests of a package",
}

func TestNoPackageVariableIsChanged(t *testing.T) {
	check(t, variableRule, map[string]string{
		"sink/a.go": `package sink
var count int
var table = map[string]int{}
func f() { count++ }
func g() { count := 1; count = 2; _ = count }
func h() { table["x"] = 1 }`,
		"sink/b.go":      `package sink; func i() { count = 3 }`,
		"sink/a_test.go": `package sink; func j() { count = 3 }`,
	}, "sink/a.go:4 changes count", "sink/a.go:6 changes table", "sink/b.go:1 changes count")
}

func variableRule(tr tree) []string {
	vars := map[string]map[string]bool{} // by package, then by name
	for _, f := range tr.files {
		if f.isTest {
			continue
		}
		if vars[f.dir] == nil {
			vars[f.dir] = map[string]bool{}
		}
		for name := range packageVars(f) {
			vars[f.dir][name] = true
		}
	}
	var out []string
	for _, f := range tr.files {
		if _, ok := shared[f.path]; ok || f.isTest {
			continue
		}
		own := packageVars(f)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			var changed []ast.Expr
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					changed = n.Lhs
				}
			case *ast.IncDecStmt:
				changed = []ast.Expr{n.X}
			}
			for _, e := range changed {
				id := base(e)
				if id == nil || !vars[f.dir][id.Name] {
					continue
				}
				// Names of other files are not resolved; those of this one are, to where
				// they are declared.
				if id.Obj == nil || id.Obj.Decl == own[id.Name] {
					out = append(out, fmt.Sprintf("%s changes %s, a variable of the package", tr.at(n.Pos()), id.Name))
				}
			}
			return true
		})
	}
	return out
}

// packageVars returns the variables of the package that a file declares.
func packageVars(f file) map[string]*ast.ValueSpec {
	out := map[string]*ast.ValueSpec{}
	for _, d := range f.ast.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != token.VAR {
			continue
		}
		for _, spec := range gen.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				for _, name := range v.Names {
					out[name.Name] = v
				}
			}
		}
	}
	delete(out, "_")
	return out
}

// base returns the variable that an assignment to e changes: x of x, x.f, x[i] and *x.
func base(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}
