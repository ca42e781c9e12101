package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// unused returns the allowances that no code needs: rows of packages that do not exist, imports
// that a row allows and its package does not have, and exceptions without a variable.
func unused(table []row, mutable map[string]string, pkgs []*pkg) (problems []string) {
	report := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	variables := map[string]bool{}
	for _, p := range pkgs {
		for _, f := range p.files {
			for _, d := range f.ast.Decls {
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
					for _, s := range g.Specs {
						for _, name := range s.(*ast.ValueSpec).Names {
							variables[p.dir+"."+name.Name] = true
						}
					}
				}
			}
		}
	}
	for name := range mutable {
		if !variables[name] {
			report("mutable: there is no variable %s", name)
		}
	}
	for _, r := range table {
		i := slices.IndexFunc(pkgs, func(p *pkg) bool { return p.name() == r.pkg })
		if i < 0 {
			report("table: there is no package %s", r.pkg)
			continue
		}
		own, outside := pkgs[i].targets()
		for _, m := range words(r.may) {
			if !slices.Contains(own, m) {
				report("table: %s does not import %s", r.pkg, m)
			}
		}
		for _, prefix := range words(r.outside) {
			if !slices.ContainsFunc(outside, func(s string) bool { return s == prefix || strings.HasPrefix(s, prefix+"/") }) {
				report("table: %s does not import %s", r.pkg, prefix)
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// targets returns what a package imports outside its tests: packages of the module by their
// names in the table, and all others.
func (p *pkg) targets() (own, outside []string) {
	for _, f := range p.files {
		if f.test {
			continue
		}
		for _, s := range f.ast.Imports {
			target := strings.Trim(s.Path.Value, `"`)
			if name, ok := strings.CutPrefix(target, module+"/"); ok {
				own = append(own, strings.TrimPrefix(name, "internal/"))
			} else {
				outside = append(outside, target)
			}
		}
	}
	return own, outside
}

// TestAllowancesAreUsed: what nothing uses is removed, so that a new use of it is a decision.
func TestAllowancesAreUsed(t *testing.T) {
	pkgs, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range unused(table, mutable, pkgs) {
		t.Error(p)
	}
	var text strings.Builder
	for _, p := range pkgs {
		if p.name() != "testkit/archtest" {
			for _, f := range p.files {
				text.Write(f.text)
			}
		}
	}
	for _, call := range constantCalls {
		if !regexp.MustCompile(`(?m)^(var|\t).*= ` + regexp.QuoteMeta(call) + `\(`).MatchString(text.String()) {
			t.Errorf("constantCalls: no variable has a value of %s", call)
		}
	}
}

// TestAllowancesCanFail checks a tree that uses some of what is allowed.
func TestAllowancesCanFail(t *testing.T) {
	pkgs, err := load(fstest.MapFS{
		"internal/a/a.go":      {Data: []byte("package a\n\nimport _ \"golang.org/x/sys/unix\"\n\nvar state int\n")},
		"internal/b/b.go":      {Data: []byte("package b\n\nimport _ \"" + module + "/internal/a\"\n")},
		"internal/b/b_test.go": {Data: []byte("package b\n\nimport _ \"example.org/only/tests\"\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := unused([]row{
		{pkg: "a", outside: "golang.org/x/sys"},
		{pkg: "b", may: "a gone", outside: "example.org/only golang.org/x"},
		{pkg: "gone"},
	}, map[string]string{"internal/a.state": "", "internal/b.state": ""}, pkgs)
	want := []string{
		"mutable: there is no variable internal/b.state",
		"table: b does not import example.org/only",
		"table: b does not import golang.org/x",
		"table: b does not import gone",
		"table: there is no package gone",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
