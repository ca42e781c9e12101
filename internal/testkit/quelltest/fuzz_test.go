package quelltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFuzzContinues: fuzz.sh adds to the time of each target what it lacks, from 0 after its code has
// changed or it has failed.
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
	write("bin/go", "#!/bin/sh\n[ \"$5\" != '^FuzzBad$' ] || [ -e fixed ] || { cat failure; exit 1; }\n")
	const late = "fuzz: elapsed: 10s, execs: 5 (0/sec)\n--- FAIL: FuzzBad (10.1s)\n    context deadline exceeded\n"
	const end = "FAIL\nexit status 1\nFAIL\tp\t10.1s\n"
	write("failure", late+"    Failing input written to testdata/fuzz/FuzzBad/1\n"+end)
	write("internal/a/a_test.go", "package a\n\nfunc FuzzOne(f *testing.F) {}\n\nfunc FuzzBad(f *testing.F) {}\n")
	write("internal/a/a.go", "package a\n")
	write("cmd/b/b_test.go", "package b\n\nfunc FuzzTwo(f *testing.F) {}\n")
	write("record", "# head\n")
	run := func(time, targets string, wantErr bool, first string, want ...string) {
		t.Helper()
		cmd := exec.Command(script, time, "record", targets)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "PATH="+root+"/bin:"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		got := slices.DeleteFunc(lines[1:], func(line string) bool {
			return !strings.HasPrefix(line, "internal/") && !strings.HasPrefix(line, "cmd/")
		})
		for i, line := range got { // the number of those that are done depends on which is first
			got[i], _, _ = strings.Cut(line, ",")
		}
		slices.Sort(got)
		slices.Sort(want)
		if !strings.HasPrefix(lines[0], first+" targets to fuzz") || !slices.Equal(got, want) || (err != nil) != wantErr {
			t.Errorf("%s %s: %v, %s", time, targets, err, out)
		}
	}
	run("10s", "", true, "3 of 3", "cmd/b FuzzTwo: 10 of 10 s", "internal/a FuzzOne: 10 of 10 s", "internal/a FuzzBad: failed")
	if text := read("record"); !regexp.MustCompile("^# head\ncmd/b\tFuzzTwo\t.*\t10\t[0-9-]+\ninternal/a\tFuzzBad\t.*\t0\t.*\tfailed\ninternal/a\tFuzzOne\t.*\n$").MatchString(text) {
		t.Errorf("the record is %q", text)
	}
	run("5s", "", true, "1 of 3", "internal/a FuzzBad: failed")
	run("5s", "b FuzzTwo", false, "0 of 1")
	write("failure", "")
	run("5s", "", true, "1 of 3", "internal/a FuzzBad: failed")
	write("failure", late+end) // go test was late, and found nothing
	run("5s", "", false, "1 of 3", "internal/a FuzzBad: 5 of 5 s")
	write("fixed", "")
	run("10s", "", false, "1 of 3", "internal/a FuzzBad: 10 of 10 s")
	write("internal/a/a.go", "package a\n\nvar x int\n")
	run("10s", "", false, "2 of 3", "internal/a FuzzOne: 10 of 10 s", "internal/a FuzzBad: 10 of 10 s")
	run("4m", "internal/a", false, "2 of 2", "internal/a FuzzOne: 130 of 240 s", "internal/a FuzzOne: 240 of 240 s", "internal/a FuzzBad: 130 of 240 s", "internal/a FuzzBad: 240 of 240 s")
	run("4m", "", false, "1 of 3", "cmd/b FuzzTwo: 130 of 240 s", "cmd/b FuzzTwo: 240 of 240 s")
	if text := read("record"); strings.Count(text, "\t240\t") != 3 || strings.Count(text, "\n") != 4 {
		t.Errorf("the record is %q", text)
	}
	cmd := exec.Command(script, "10", "record")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "want") && !strings.Contains(string(out), "usage") {
		t.Errorf("a time without a unit: %s, %v", out, err)
	}
}
