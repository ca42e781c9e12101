package archtest

import (
	"go/ast"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// rule checks the whole tree and reports each problem in one line.
type rule struct {
	name  string
	check func(pkgs []*pkg, report func(format string, args ...any))
}

var rules = []rule{
	{"rooms import from themselves and those above", checkRooms},
	{"comments and strings name things", eachFile(checkWords)},
	{"dependencies point up the table", checkImports},
	{"the core is pure", eachFile(checkCore)},
	{"one package comment each, in doc.go past 15 lines", checkPackageComment},
	{"no mutable package-level variables", checkVars},
	{"no init functions", eachFile(checkInit)},
	{"no file past 600 lines", eachFile(checkLength)},
	{"gofmt", checkFormat},
	{"tests skip only by a capability's name", eachFile(checkSkip)},
	{"CI promises what tests need, or says why not", checkNeeds},
	{"tests wait for a thing, not for time", eachFile(checkSleep)},
	{"nothing is left to be done", eachFile(checkLeftovers)},
}

func eachFile(check func(*pkg, *file, func(string, ...any))) func([]*pkg, func(string, ...any)) {
	return func(pkgs []*pkg, report func(string, ...any)) {
		for _, p := range pkgs {
			for _, f := range p.files {
				check(p, f, report)
			}
		}
	}
}

func lookup(name string) (row, bool) {
	for _, r := range table {
		if r.pkg == name {
			return r, true
		}
	}
	return row{}, false
}

func checkImports(pkgs []*pkg, report func(string, ...any)) {
	for _, p := range pkgs {
		r, ok := lookup(p.name())
		if !ok {
			report("%s: has no row in internal/testkit/archtest/table_test.go", p.dir)
			continue
		}
		for _, f := range p.files {
			if f.test {
				continue // a test may set up whatever it needs
			}
			for _, s := range f.ast.Imports {
				target := strings.Trim(s.Path.Value, `"`)
				own, internal := strings.CutPrefix(target, module+"/")
				first, _, _ := strings.Cut(target, "/")
				switch {
				case internal:
					own = strings.TrimPrefix(own, "internal/")
					if !slices.Contains(words(r.may), own) {
						report("%s: %s may not import %s", f.at(s), p.name(), own)
					}
				case target == "C":
					report("%s: cgo", f.at(s))
				case strings.Contains(first, "."):
					if !slices.ContainsFunc(words(r.outside), func(prefix string) bool {
						return target == prefix || strings.HasPrefix(target, prefix+"/")
					}) {
						report("%s: %s may not import %s", f.at(s), p.name(), target)
					}
				}
			}
		}
	}
}

func checkCore(p *pkg, f *file, report func(string, ...any)) {
	if r, _ := lookup(p.name()); !r.core || f.test {
		return
	}
	imports := f.imports()
	for name, target := range imports {
		first, _, _ := strings.Cut(target, "/")
		if !strings.Contains(first, ".") && !slices.Contains(coreStd, target) {
			report("%s: the core may not import %s", f.name, target)
		}
		if name == "." {
			report("%s: dot import of %s", f.name, target)
		}
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			report("%s: go statement in the core", f.at(n))
		case *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
			report("%s: channel in the core", f.at(n))
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && (id.Name == "print" || id.Name == "println") {
				report("%s: %s in the core", f.at(n), id.Name)
			}
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			if !ok {
				return true
			}
			target, name := imports[x.Name], n.Sel.Name
			if slices.Contains(impure[target], name) {
				report("%s: %s.%s in the core", f.at(n), x.Name, name)
			}
		}
		return true
	})
}

func checkPackageComment(pkgs []*pkg, report func(string, ...any)) {
	for _, p := range pkgs {
		var in []*file
		code := false
		for _, f := range p.files {
			code = code || !f.test
			if !f.test && f.ast.Doc != nil {
				in = append(in, f)
			}
		}
		switch {
		case !code:
			report("%s: no package comment, put it in doc.go", p.dir)
		case len(in) != 1:
			report("%s: %d package comments, want one", p.dir, len(in))
		case path.Base(in[0].name) != "doc.go" && in[0].set.Position(in[0].ast.Doc.End()).Line-in[0].set.Position(in[0].ast.Doc.Pos()).Line >= 15:
			report("%s: package comment past 15 lines, put it in doc.go", in[0].name)
		}
	}
}

func checkInit(_ *pkg, f *file, report func(string, ...any)) {
	for _, d := range f.ast.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !f.generated {
			report("%s: init function", f.at(d))
		}
	}
}

func checkLength(_ *pkg, f *file, report func(string, ...any)) {
	if n := f.lines(); n > 600 && !f.generated {
		report("%s: %d lines, split it", f.name, n)
	}
}

// checkFormat runs gofmt over copies of all files: in this process, with the race detector, it
// would take ten times as long.
func checkFormat(pkgs []*pkg, report func(string, ...any)) {
	if err := unformatted(pkgs, func(name string) { report("%s: run gofmt", name) }); err != nil {
		report("gofmt: %v", err)
	}
}

func unformatted(pkgs []*pkg, found func(name string)) error {
	dir, err := os.MkdirTemp("", "quell-test-gofmt-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, p := range pkgs {
		if err := os.MkdirAll(filepath.Join(dir, p.dir), 0o755); err != nil {
			return err
		}
		for _, f := range p.files {
			if err := os.WriteFile(filepath.Join(dir, f.name), f.text, 0o644); err != nil {
				return err
			}
		}
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	cmd := exec.Command(filepath.Join(strings.TrimSpace(string(goroot)), "bin", "gofmt"), "-l", ".")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(out)) {
		found(filepath.Clean(name))
	}
	return nil
}

// checkSkip reports tests that skip without quelltest.Need or quelltest.Skip.
func checkSkip(p *pkg, f *file, report func(string, ...any)) {
	if p.name() == "testkit/quelltest" || !f.test {
		return
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(words("Skip Skipf SkipNow"), sel.Sel.Name) {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && slices.Contains(words("t b f tb"), x.Name) {
			report("%s: skip with quelltest.Need or quelltest.Skip, which name the capability", f.at(n))
		}
		return true
	})
}

func checkSleep(_ *pkg, f *file, report func(string, ...any)) {
	if !f.test {
		return
	}
	imports := f.imports()
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
			if x, ok := sel.X.(*ast.Ident); ok && imports[x.Name] == "time" {
				report("%s: time.Sleep in a test, wait with quelltest.Until", f.at(n))
			}
		}
		return true
	})
}

// The words are concatenated so that this file passes its own rule.
var (
	leftovers = words("TO" + "DO FIX" + "ME X" + "XX")
	leftover  = regexp.MustCompile(`\b(` + strings.Join(leftovers, "|") + `)\b`)
)

func checkLeftovers(_ *pkg, f *file, report func(string, ...any)) {
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			// Most comments have none, and the pattern is slow with the race detector.
			if !slices.ContainsFunc(leftovers, func(word string) bool { return strings.Contains(c.Text, word) }) {
				continue
			}
			if m := leftover.FindString(c.Text); m != "" {
				report("%s: %s", f.at(c), m)
			}
		}
	}
}
