package archtest

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// owned says in whose exported signatures the types of a library may appear. The test
// environment is no stage: handing out connections is what it is for.
var owned = map[string][]string{
	"github.com/jackc/pgx/v5":        {"replication", "internal/testenv", "outbox", "inbox"},
	"github.com/jackc/pglogrepl":     {"replication"}, // but for LSN, the one value that may cross
	"github.com/nats-io/nats.go":     {"sink", "internal/testenv", "inbox"},
	"github.com/nats-io/nats-server": {"internal/testenv"},
	"github.com/urfave/cli/v2":       {"internal/cli"},
}

func TestNoLibraryTypeCrossesAStage(t *testing.T) {
	check(t, signatureRule, map[string]string{
		"decode/a.go": `package decode
import ("github.com/jackc/pgx/v5/pgconn"; "github.com/jackc/pglogrepl"; "github.com/nats-io/nats.go"; urfave "github.com/urfave/cli/v2")
func F(c *pgconn.PgConn) {}
func f(c *pgconn.PgConn) {}
type T struct { C chan map[string]*nats.Msg; c *nats.Msg; L pglogrepl.LSN }
type I interface { M(urfave.Context) }
type i interface { M(urfave.Context) }
func (T) N() (x pglogrepl.Relation) { return }
func (t) O() (x pglogrepl.Relation) { return }
var V func(pgconn.PgConn)
type A = nats.Msg`,
		"replication/a.go": `package replication; import "github.com/jackc/pgx/v5/pgconn"; func F(c *pgconn.PgConn) {}`,
	},
		"decode/a.go:3 shows pgconn.PgConn in F",
		"decode/a.go:5 shows nats.Msg in T",
		"decode/a.go:6 shows urfave.Context in I",
		"decode/a.go:8 shows pglogrepl.Relation in N",
		"decode/a.go:10 shows pgconn.PgConn in V",
		"decode/a.go:11 shows nats.Msg in A",
	)
}

func signatureRule(tr tree) []string {
	var out []string
	for _, f := range tr.files {
		if f.isTest {
			continue
		}
		imports := f.imports()
		for name, expr := range exportedTypes(f) {
			for sel := range foreign(expr) {
				pkg, typ, ok := selected(imports, sel)
				if !ok || (pkg == "github.com/jackc/pglogrepl" && typ == "LSN") {
					continue
				}
				for library, owners := range owned {
					if within(pkg, library) && !slices.Contains(owners, f.dir) {
						x, _ := sel.X.(*ast.Ident)
						out = append(out, fmt.Sprintf("%s shows %s.%s in %s: that type belongs to %s",
							tr.at(sel.Pos()), x.Name, typ, name, strings.Join(owners, ", ")))
					}
				}
			}
		}
	}
	return out
}

// exportedTypes yields the type expression of everything that a file exports, with
// the name under which it does.
func exportedTypes(f file) func(yield func(string, ast.Expr) bool) {
	return func(yield func(string, ast.Expr) bool) {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || exportedReceiver(d.Recv.List[0].Type)) && !yield(d.Name.Name, d.Type) {
					return
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.TypeSpec:
						if s.Name.IsExported() && !yield(s.Name.Name, s.Type) {
							return
						}
					case *ast.ValueSpec:
						if s.Type != nil && s.Names[0].IsExported() && !yield(s.Names[0].Name, s.Type) {
							return
						}
					}
				}
			}
		}
	}
}

func exportedReceiver(e ast.Expr) bool {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return false
		}
	}
}

// foreign yields each a.B in a type, leaving out the unexported fields of a struct.
func foreign(e ast.Expr) func(yield func(*ast.SelectorExpr) bool) {
	return func(yield func(*ast.SelectorExpr) bool) {
		more := true
		ast.Inspect(e, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok && isUnexportedField(e, field) {
				return false
			}
			if sel, ok := n.(*ast.SelectorExpr); ok && more {
				more = yield(sel)
			}
			return more
		})
	}
}

func isUnexportedField(e ast.Expr, field *ast.Field) bool {
	s, ok := e.(*ast.StructType)
	if !ok || !slices.Contains(s.Fields.List, field) || len(field.Names) == 0 {
		return false
	}
	return !slices.ContainsFunc(field.Names, func(id *ast.Ident) bool { return id.IsExported() })
}
