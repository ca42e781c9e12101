package quelltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFuzzContinues: fuzz.sh runs each target once for a time, again after its code has changed or
// for a longer time, and again after a failure.
func TestFuzzContinues(t *testing.T) {
	script, err := filepath.Abs("fuzz.sh")
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	write("bin/go", "#!/bin/sh\n[ \"$5\" != '^FuzzBad$' ] || [ -e fixed ] || exit 1\n")
	write("internal/a/a_test.go", "package a\n\nfunc FuzzOne(f *testing.F) {}\n\nfunc FuzzBad(f *testing.F) {}\n")
	write("internal/a/a.go", "package a\n")
	write("cmd/b/b_test.go", "package b\n\nfunc FuzzTwo(f *testing.F) {}\n")
	write("record", "# head\n")
	run := func(time, want string) {
		t.Helper()
		cmd := exec.Command(script, time, "record")
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "PATH="+root+"/bin:"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		got := strings.ReplaceAll(string(out), "\n", ", ")
		if got != want || (err != nil) != !strings.Contains(read("record"), "FuzzBad") {
			t.Errorf("%s: %q, %v; want %q", time, got, err, want)
		}
	}
	run("10s", "cmd/b FuzzTwo, internal/a FuzzOne, internal/a FuzzBad, ")
	run("5s", "cmd/b FuzzTwo: fuzzed already, internal/a FuzzOne: fuzzed already, internal/a FuzzBad, ")
	write("fixed", "")
	run("10s", "cmd/b FuzzTwo: fuzzed already, internal/a FuzzOne: fuzzed already, internal/a FuzzBad, ")
	write("internal/a/a.go", "package a\n\nvar x int\n")
	run("10s", "cmd/b FuzzTwo: fuzzed already, internal/a FuzzOne, internal/a FuzzBad, ")
	run("1m", "cmd/b FuzzTwo, internal/a FuzzOne, internal/a FuzzBad, ")
	if text := read("record"); !strings.HasPrefix(text, "# head\ncmd/b\tFuzzTwo\t") || strings.Count(text, "\t60\t") != 3 || strings.Count(text, "\n") != 4 {
		t.Errorf("the record is %q", text)
	}
	cmd := exec.Command(script, "10", "record")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "want") && !strings.Contains(string(out), "usage") {
		t.Errorf("a time without a unit: %s, %v", out, err)
	}
}
