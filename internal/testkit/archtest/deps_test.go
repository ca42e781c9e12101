package archtest

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

var update = flag.Bool("update", false, "accept the agent's dependencies as they are")

// TestAgentDependencies compares the packages outside the standard library that are
// linked into the agent with the committed list, so that a new one is a decision.
func TestAgentDependencies(t *testing.T) {
	const golden = root + "/cmd/quell-agent/deps.txt"
	if _, err := os.Stat(filepath.Dir(golden)); errors.Is(err, os.ErrNotExist) {
		t.Log("no agent yet")
		return
	}
	// Reading go.mod makes a cached test run again when go.mod has changed.
	if _, err := os.ReadFile(root + "/go.mod"); err != nil {
		t.Fatal(err)
	}
	pkgs, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	deps, problems := dependencies(pkgs, module+"/cmd/quell-agent")
	for _, p := range problems {
		t.Error(p)
	}
	got := []byte(strings.Join(deps, "\n") + "\n")
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatalf("%v; to make it: go test ./internal/testkit/archtest -update", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the agent's dependencies changed; if that is meant: go test ./internal/testkit/archtest -update\ngot:\n%s\nwant:\n%s", got, want)
	}
}

// listed is what go list tells of a package.
type listed struct {
	path           string
	standard, main bool // of the standard library; of this module
	cgo            bool
	module         linked
	deps           []string // of a program, all below it
}

// listing is a line for each package: fields that are separated by tabs. JSON would be slow to
// read with the race detector.
const listing = `{{.ImportPath}}	{{.Standard}}	{{if .CgoFiles}}cgo{{end}}	{{with .Module}}{{.Main}}	{{.Path}}	{{.Version}}	{{.Dir}}{{else}}			{{end}}	{{if eq .Name "main"}}{{join .Deps " "}}{{end}}`

// programs lists what is linked into the three programs on linux/amd64, and into those of them
// that exist there on arm64. It also returns the programs.
var programs = sync.OnceValues(func() (all []listed, err error) {
	for _, c := range []struct{ arch, programs string }{{"amd64", "./cmd/quell ./cmd/quell-agent ./cmd/quell-server"}, {"arm64", "./cmd/quell ./cmd/quell-agent"}} {
		some, err := list(root, c.arch, words(c.programs)...)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
})

// list lists programs and what is linked into them on linux.
func list(dir, arch string, programs ...string) (all []listed, err error) {
	cmd := exec.Command("go", append([]string{"list", "-deps", "-f", listing}, programs...)...)
	cmd.Dir = dir
	// With cgo on, so that a package that would use cgo is found.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOOS=linux", "GOARCH="+arch)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %q: %w", programs, err)
	}
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 8 {
			return nil, fmt.Errorf("go list %q: %d fields in %q", programs, len(f), line)
		}
		all = append(all, listed{path: f[0], standard: f[1] == "true", cgo: f[2] != "", main: f[3] == "true", module: linked{f[4], f[5], f[6]}, deps: strings.Fields(f[7])})
	}
	return all, nil
}

// dependencies returns the packages outside the standard library that are linked into a program
// on any architecture, and those of them that must not be.
func dependencies(pkgs []listed, program string) (deps, problems []string) {
	below := map[string]bool{program: true}
	for _, p := range pkgs {
		if p.path == program {
			for _, d := range p.deps {
				below[d] = true
			}
		}
	}
	for _, p := range pkgs {
		if p.standard || !below[p.path] {
			continue
		}
		if p.cgo {
			problems = append(problems, p.path+" uses cgo")
		}
		for _, never := range agentNever {
			if p.path == never || strings.HasPrefix(p.path, never+"/") {
				problems = append(problems, p.path+" must not be linked into the agent")
			}
		}
		deps = append(deps, p.path)
	}
	slices.Sort(deps)
	return slices.Compact(deps), problems
}

// TestDependenciesCanFail checks a module with a cgo package and a barred package.
func TestDependenciesCanFail(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":                             "module " + module + "\ngo 1.26\n",
		"main.go":                            "package main\nimport (\n_ \"" + module + "/c\"\n_ \"" + module + "/internal/format/trace/parquet\"\n)\nfunc main() {}\n",
		"c/c.go":                             "package c\nimport \"C\"\n",
		"internal/format/trace/parquet/p.go": "package parquet\n",
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pkgs, err := list(dir, "amd64", ".")
	if err != nil {
		t.Fatal(err)
	}
	deps, problems := dependencies(pkgs, module)
	if want := words(module + " " + module + "/c " + module + "/internal/format/trace/parquet"); !slices.Equal(deps, want) {
		t.Errorf("deps %v, want %v", deps, want)
	}
	all := strings.Join(problems, "\n")
	if !strings.Contains(all, "/c uses cgo") || !strings.Contains(all, "parquet must not be linked") {
		t.Errorf("problems: %s", all)
	}
}
