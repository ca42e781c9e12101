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

// laterUses returns the references from a file to a declaration in a later one.
func laterUses(t *testing.T, dir string, order []string) (all []string) {
	t.Helper()
	export := exportData(t, dir)
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range order {
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
	place := func(p token.Pos) int {
		return slices.Index(order, strings.TrimSuffix(filepath.Base(fset.Position(p).Filename), ".go"))
	}
	for id, object := range info.Uses {
		if from, to := place(id.Pos()), place(object.Pos()); object.Pkg() != nil && object.Pkg().Path() == dir && to > from {
			all = append(all, fmt.Sprintf("%s.go uses %s of %s.go, which is below it", order[from], id.Name, order[to]))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
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
	for _, use := range laterUses(t, dir, order) {
		t.Error(use)
	}
	slices.Reverse(order)
	if len(laterUses(t, dir, order)) == 0 {
		t.Error("the reverse order is accepted as well")
	}
}
