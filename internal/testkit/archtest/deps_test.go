package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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
	deps, problems, err := dependencies(root, "./cmd/quell-agent")
	if err != nil {
		t.Fatal(err)
	}
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

// dependencies lists the packages outside the standard library that are linked
// into a program on linux/amd64 and arm64, and those of them that must not be.
func dependencies(dir, program string) (deps, problems []string, err error) {
	for _, arch := range []string{"amd64", "arm64"} {
		// With cgo on, so that a package that would use cgo is found.
		cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,CgoFiles", program)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", "GOOS=linux", "GOARCH="+arch)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			return nil, nil, fmt.Errorf("go list %s: %w", program, err)
		}
		for dec := json.NewDecoder(bytes.NewReader(out)); ; {
			var p struct {
				ImportPath string
				Standard   bool
				CgoFiles   []string
			}
			if err := dec.Decode(&p); err == io.EOF {
				break
			} else if err != nil {
				return nil, nil, fmt.Errorf("go list %s: %w", program, err)
			}
			if p.Standard {
				continue
			}
			if len(p.CgoFiles) > 0 {
				problems = append(problems, p.ImportPath+" uses cgo")
			}
			for _, never := range agentNever {
				if p.ImportPath == never || strings.HasPrefix(p.ImportPath, never+"/") {
					problems = append(problems, p.ImportPath+" must not be linked into the agent")
				}
			}
			deps = append(deps, p.ImportPath)
		}
	}
	slices.Sort(deps)
	return slices.Compact(deps), problems, nil
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
	deps, problems, err := dependencies(dir, ".")
	if err != nil {
		t.Fatal(err)
	}
	if want := words(module + " " + module + "/c " + module + "/internal/format/trace/parquet"); !slices.Equal(deps, want) {
		t.Errorf("deps %v, want %v", deps, want)
	}
	all := strings.Join(problems, "\n")
	if !strings.Contains(all, "/c uses cgo") || !strings.Contains(all, "parquet must not be linked") {
		t.Errorf("problems: %s", all)
	}
}
