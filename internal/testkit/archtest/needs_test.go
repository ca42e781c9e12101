package archtest

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strconv"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// checkNeeds reports each capability that a test needs and that is neither in
// promises.txt nor in unpromised.txt. It sees only constant arguments; for
// others quelltest.Skip fails with CI=true.
func checkNeeds(pkgs []*pkg, report func(string, ...any)) {
	eachNeed(pkgs, func(f *file, arg ast.Expr, capability string) {
		if !slices.Contains(quelltest.Promised(), capability) && !slices.Contains(quelltest.Unpromised(), capability) {
			report("%s: capability %q is neither in promises.txt nor in unpromised.txt of internal/testkit/quelltest", f.at(arg), capability)
		}
	})
}

// eachNeed calls do for each capability that is a constant in a call of
// quelltest.Need or Skip.
func eachNeed(pkgs []*pkg, do func(f *file, arg ast.Expr, capability string)) {
	names := capabilityNames(pkgs)
	for _, p := range pkgs {
		for _, f := range p.files {
			own := p.name() == "testkit/quelltest"
			if _, imported := f.imports()["quelltest"]; !own && !imported {
				continue
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				for _, arg := range needArgs(call, own) {
					if capability := constantString(arg, names); capability != "" {
						do(f, arg, capability)
					}
				}
				return true
			})
		}
	}
}

// needArgs returns the arguments of a call that are capabilities. Inside
// quelltest its functions have no qualifier.
func needArgs(call *ast.CallExpr, own bool) []ast.Expr {
	name := ""
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		if own {
			name = fun.Name
		}
	case *ast.SelectorExpr:
		if x, ok := fun.X.(*ast.Ident); ok && x.Name == "quelltest" {
			name = fun.Sel.Name
		}
	}
	switch {
	case name == "Need" && len(call.Args) > 1:
		return call.Args[1:]
	case name == "Skip" && len(call.Args) > 1:
		return call.Args[1:2]
	}
	return nil
}

// constantString returns the value of a string literal or of a constant of
// quelltest, "" for anything else.
func constantString(e ast.Expr, names map[string]string) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			s, _ := strconv.Unquote(e.Value)
			return s
		}
	case *ast.Ident:
		return names[e.Name]
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok && x.Name == "quelltest" {
			return names[e.Sel.Name]
		}
	}
	return ""
}

// capabilityNames returns quelltest's string constants by name.
func capabilityNames(pkgs []*pkg) map[string]string {
	names := map[string]string{}
	for _, p := range pkgs {
		if p.name() != "testkit/quelltest" {
			continue
		}
		for _, f := range p.files {
			if path.Base(f.name) != "need.go" {
				continue
			}
			ast.Inspect(f.ast, func(n ast.Node) bool {
				s, ok := n.(*ast.ValueSpec)
				if ok && len(s.Names) == 1 && len(s.Values) == 1 {
					if value := constantString(s.Values[0], nil); value != "" {
						names[s.Names[0].Name] = value
					}
				}
				return true
			})
		}
	}
	return names
}

// A listed capability that no test asks for is misspelt or left over.
func TestListedCapabilitiesAreAskedFor(t *testing.T) {
	pkgs, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	// Not passed as constants: the programs that the writers of docs/progress-file.md
	// need, and a capability (psi) that quell doctor is compared with.
	asked := words("cc java javac python3 rustc sh dd psi")
	eachNeed(pkgs, func(_ *file, _ ast.Expr, capability string) { asked = append(asked, capability) })
	for _, capability := range slices.Concat(quelltest.Promised(), quelltest.Unpromised()) {
		if !slices.Contains(asked, capability) {
			t.Errorf("no test asks for %s", capability)
		}
	}
}
