package archtest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// agentFiles are the files of internal/agent in the order of their parts: a file refers only
// to itself and to files above it. So a part cannot reach the state of a part that uses it.
const agentFiles = `doc ports health clock stats reach cgroups rotation task taskset placement overhead scheduler
	overrides statedir recorder finder overruled actor discovery attribution blind sampler judge window decided operator
	status jobs pairs metrics agent loop serve`

// use is a reference from a file to a declaration in another one, without ".go".
type use struct{ from, name, to string }

// uses returns the references between files of a package.
func uses(t *testing.T, dir string, names []string) (all []use) {
	t.Helper()
	export := exportData(t, dir)
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name+".go"), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(export[path]) })}
	if _, err := conf.Check(dir, fset, files, &info); err != nil {
		t.Fatal(err)
	}
	file := func(p token.Pos) string { return strings.TrimSuffix(filepath.Base(fset.Position(p).Filename), ".go") }
	for id, object := range info.Uses {
		if object.Pkg() != nil && object.Pkg().Path() == dir {
			all = append(all, use{file(id.Pos()), id.Name, file(object.Pos())})
		}
	}
	return all
}

// later returns those of the references that are to a later file.
func later(all []use, order []string) (bad []string) {
	place := map[string]int{}
	for i, name := range order {
		place[name] = i
	}
	for _, u := range all {
		if place[u.to] > place[u.from] {
			bad = append(bad, fmt.Sprintf("%s.go uses %s of %s.go, which is below it", u.from, u.name, u.to))
		}
	}
	slices.Sort(bad)
	return slices.Compact(bad)
}

// exportData returns the files that hold the types of a package's dependencies.
func exportData(t *testing.T, dir string) map[string]string {
	t.Helper()
	// Compiled as the agent is shipped, which make test does anyway.
	cmd := exec.Command("go", "list", "-trimpath", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", ".")
	var fails bytes.Buffer
	cmd.Dir, cmd.Stderr, cmd.Env = dir, &fails, append(os.Environ(), "CGO_ENABLED=0")
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v: %s", err, fails.String())
	}
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[path] = file
	}
	return all
}

func TestFilesOfTheAgentAreInOrder(t *testing.T) {
	const dir = "../../agent"
	order := strings.Fields(agentFiles)
	there, err := filepath.Glob(dir + "/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range there {
		if name := strings.TrimSuffix(filepath.Base(path), ".go"); !strings.HasSuffix(name, "_test") && !slices.Contains(order, name) {
			t.Fatalf("%s.go is not in agentFiles", name)
		}
	}
	all := uses(t, dir, order)
	for _, bad := range later(all, order) {
		t.Error(bad)
	}
	slices.Reverse(order)
	if len(later(all, order)) == 0 {
		t.Error("the reverse order is accepted as well")
	}
}
