package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

// checkVars bars package-level state. A variable counts as a constant that Go cannot express
// (a table, an error, a pattern) if its declaration assigns a literal or one of the calls in
// constantCalls, and nothing in the package writes to it or takes its address.
func checkVars(pkgs []*pkg, report func(string, ...any)) {
	for _, p := range pkgs {
		vars := map[string]*ast.ValueSpec{}
		for _, f := range p.files {
			if f.generated {
				continue
			}
			for _, d := range f.ast.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.VAR {
					continue
				}
				for _, s := range g.Specs {
					s := s.(*ast.ValueSpec)
					embedded := strings.Contains(text(g.Doc)+text(s.Doc), "go:embed")
					for i, name := range s.Names {
						_, allowed := mutable[p.dir+"."+name.Name]
						if name.Name == "_" || allowed {
							continue
						}
						vars[name.Name] = s
						// Tests may hold flags.
						if !f.test && !embedded && (i >= len(s.Values) || !constant(s.Values[i])) {
							report("%s: package-level variable %s", f.at(name), name.Name)
						}
					}
				}
			}
		}
		for _, f := range p.files {
			for _, id := range written(f.ast) {
				s, ok := vars[id.Name]
				if ok && (id.Obj == nil || id.Obj.Decl == s) {
					report("%s: package-level variable %s is written", f.at(id), id.Name)
				}
			}
		}
	}
}

// text is the raw comment: Text() drops directives.
func text(g *ast.CommentGroup) string {
	var b strings.Builder
	if g != nil {
		for _, c := range g.List {
			b.WriteString(c.Text)
		}
	}
	return b.String()
}

var constantCalls = words("errors.New fmt.Errorf regexp.MustCompile strings.NewReplacer")

func constant(e ast.Expr) bool {
	ok := true
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			sel, isSel := n.Fun.(*ast.SelectorExpr)
			if isSel {
				x, isIdent := sel.X.(*ast.Ident)
				ok = ok && isIdent && slices.Contains(constantCalls, x.Name+"."+sel.Sel.Name)
				return true
			}
			// A conversion or a function of the package. Only basic types and
			// the listed functions are allowed.
			id, isIdent := n.Fun.(*ast.Ident)
			ok = ok && isIdent && slices.Contains(words("len cap min max string int int64 uint64 float64 float32 byte rune words"), id.Name)
		case *ast.FuncLit:
			return false // runs later, if at all
		case *ast.ChanType:
			ok = false
		}
		return ok
	})
	return ok
}

// written returns the root identifiers of the expressions that a file assigns
// to, increments or takes the address of.
func written(f *ast.File) []*ast.Ident {
	var ids []*ast.Ident
	add := func(e ast.Expr) {
		for {
			switch x := e.(type) {
			case *ast.Ident:
				ids = append(ids, x)
				return
			case *ast.IndexExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.StarExpr:
				e = x.X
			case *ast.ParenExpr:
				e = x.X
			default:
				return
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, e := range n.Lhs {
					add(e)
				}
			}
		case *ast.IncDecStmt:
			add(n.X)
		case *ast.RangeStmt:
			if n.Tok == token.ASSIGN {
				add(n.Key)
				add(n.Value)
			}
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				add(n.X)
			}
		}
		return true
	})
	return ids
}
