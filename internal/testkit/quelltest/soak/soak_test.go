package soak

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// soak is a soak of a repository, in a folder for its records.
type soak struct{ repo, dir string }

// command returns soak.sh with two runs of make test and one of .ci/run.
func (s soak) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	script, err := filepath.Abs("soak.sh")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", append([]string{script, "-dir", s.dir, "-tests", "2"}, args...)...)
	cmd.Dir = s.repo
	cmd.Env = append(os.Environ(), "SOAK_LOAD=sleep 1000", "GOFLAGS=")
	return cmd
}

// run runs it and returns its table, and whether it exited with 0.
func (s soak) run(t *testing.T, args ...string) (table string, ok bool) {
	t.Helper()
	cmd := s.command(t, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	t.Logf("%v, it wrote:\n%s%s", err, stderr.String(), out)
	return stderr.String() + string(out), err == nil
}

// records returns the first seven fields of each recorded run of the checked-out commit.
func (s soak) records(t *testing.T) (all []string) {
	t.Helper()
	commit := gitIn(t, s.repo, "rev-parse", "HEAD")
	text, err := os.ReadFile(filepath.Join(s.dir, commit[:12], "runs.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 8 || !strings.HasPrefix(f[7], "sleep 1000, ") || !strings.Contains(f[7], "Linux") {
			t.Fatalf("record %q", line)
		}
		f[3] = "-" // seconds
		all = append(all, strings.Join(f[:7], " "))
	}
	return all
}

// repository makes a repository whose make test runs this shell script.
func repository(t *testing.T, script string) string {
	t.Helper()
	quelltest.Need(t, "git", "make")
	dir := t.TempDir()
	gitIn(t, dir, "init", "--quiet")
	commitFiles(t, dir, map[string]string{
		"Makefile": "test:\n\t@sh ./script\n",
		"script":   script,
		".ci/run":  "#!/bin/sh\necho '5 passed, 0 failed, 1 skipped'\necho '2 passed, 0 failed, 3 skipped'\n",
	})
	return dir
}

func commitFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	gitIn(t, dir, "add", ".")
	gitIn(t, dir, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "x")
}

func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
	if err != nil {
		t.Fatalf("git %v: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

const passing = "echo '3 passed, 0 failed, 1 skipped'\n"

func TestEveryRunIsRecorded(t *testing.T) {
	s := soak{repository(t, `test "$GOFLAGS" = -count=1 && `+passing), t.TempDir()}
	table, ok := s.run(t)
	want := []string{"make test 1 0 - 3 0 1", "make test 2 0 - 3 0 1", ".ci/run 1 0 - 7 0 4"}
	if got := s.records(t); !ok || !slices.Equal(got, want) {
		t.Fatalf("%v, recorded %q, want %q", ok, got, want)
	}
	// A second soak of the same commit has nothing to do, and reports the same.
	again, ok := s.run(t)
	if got := s.records(t); !ok || !slices.Equal(got, want) || !strings.HasSuffix(table, again) {
		t.Errorf("%v, recorded %q, and another table", ok, got)
	}
	for _, want := range []string{"make test: 2 of 2\n", ".ci/run: 1 of 1\n", gitIn(t, s.repo, "rev-parse", "HEAD"), "load sleep 1000"} {
		if !strings.Contains(again, want) {
			t.Errorf("%q is not in\n%s", want, again)
		}
	}
}

func TestAFailureIsKept(t *testing.T) {
	s := soak{repository(t, "printf 'failed:\\n  q/a TestX\\nskipped:\\n  q/b TestY: needs pmu: no\\n3 passed, 1 failed, 1 skipped\\n'; exit 1\n"), t.TempDir()}
	want := []string{"make test 1 2 - 3 1 1", "make test 2 2 - 3 1 1", ".ci/run 1 0 - 7 0 4"}
	for range 2 { // another soak does not repair it
		table, ok := s.run(t)
		if got := s.records(t); ok || !slices.Equal(got, want) {
			t.Errorf("%v, recorded %q, want %q", ok, got, want)
		}
		if strings.Count(table, "  q/a TestX\n") != 2 || strings.Contains(table, "TestY") || !strings.Contains(table, "make test: 0 of 2\n.ci/run: 1 of 1\n") {
			t.Errorf("table:\n%s", table)
		}
	}
}

// A run in which no test ran, that exits with an error after its tests, or that exceeds its
// deadline is no success.
func TestWhatCountsAsSuccess(t *testing.T) {
	for _, c := range []struct {
		script, deadline string
		ok               bool
	}{{passing, "4m", true}, {"true\n", "4m", false}, {passing + "exit 1\n", "4m", false}, {"echo '0 passed, 0 failed, 9 skipped'\n", "4m", false}, {passing + "sleep 1000\n", "1s", false}} {
		if _, ok := (soak{repository(t, c.script), t.TempDir()}).run(t, "-tests", "1", "-deadline", c.deadline); ok != c.ok {
			t.Errorf("%q: %v, want %v", c.script, ok, c.ok)
		}
	}
}

func TestADirtyTreeIsRefused(t *testing.T) {
	s := soak{repository(t, passing), t.TempDir()}
	if err := os.WriteFile(filepath.Join(s.repo, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, ok := s.run(t); ok || !strings.Contains(out, "not committed") {
		t.Errorf("%v", ok)
	}
}

// Edits of the tree while it runs change no run, and another commit begins anew.
func TestOneCommitIsTested(t *testing.T) {
	repo := repository(t, "")
	commitFiles(t, repo, map[string]string{"script": "echo 'exit 1' > " + repo + "/script\n" + passing})
	s := soak{repo, t.TempDir()}
	if _, ok := s.run(t); !ok {
		t.Fatal("it fails")
	}
	commitFiles(t, repo, map[string]string{"script": "echo '4 passed, 0 failed, 0 skipped'\n"})
	if _, ok := s.run(t); !ok || s.records(t)[0] != "make test 1 0 - 4 0 0" {
		t.Errorf("the next commit: %v, %q", ok, s.records(t))
	}
}

// blocked starts a soak whose second run does not end by itself, and returns when that
// run has begun.
func blocked(t *testing.T) (s soak, cmd *exec.Cmd, notes string) {
	t.Helper()
	notes = t.TempDir()
	begun := filepath.Join(notes, "begun")
	if err := syscall.Mkfifo(begun, 0o600); err != nil {
		t.Fatal(err)
	}
	s = soak{repository(t, "echo x >> "+notes+"/runs\nif test $(wc -l < "+notes+"/runs) = 2; then echo > "+begun+"; sleep 1000; fi\n"+passing), t.TempDir()}
	cmd = s.command(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(begun); err != nil { // waits for the writer
		t.Fatal(err)
	}
	return s, cmd, notes
}

func TestAnInterruptLosesOneRun(t *testing.T) {
	s, cmd, notes := blocked(t)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v", err)
	}
	nothingLeft(t, s)
	goesOn(t, s, notes)
}

func TestAfterAKillTheNextSoakGoesOn(t *testing.T) {
	s, cmd, notes := blocked(t)
	if out, ok := s.run(t); ok || !strings.Contains(out, "another soak") {
		t.Error("a second one in the same folder is not refused")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	goesOn(t, s, notes)
	nothingLeft(t, s)
}

// goesOn expects the second run to be made once more, and no other.
func goesOn(t *testing.T, s soak, notes string) {
	t.Helper()
	if _, ok := s.run(t); !ok || len(s.records(t)) != 3 {
		t.Fatalf("%v, %q", ok, s.records(t))
	}
	if text, err := os.ReadFile(filepath.Join(notes, "runs")); err != nil || strings.Count(string(text), "x") != 3 {
		t.Errorf("make test began %d times, %v; want 3", strings.Count(string(text), "x"), err)
	}
}

func nothingLeft(t *testing.T, s soak) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if text, _ := os.ReadFile(file); strings.Contains("\x00"+string(text), "\x00SOAK_GATE="+s.dir+"\x00") { // it may have ended
			t.Errorf("%s: still running", file)
		}
	}
}

// A load that overwrites its environment is found by its process group. Another
// process that has the group's number by now is not killed.
func TestALoadWithoutItsMarkIsKilled(t *testing.T) {
	s := soak{repository(t, passing), t.TempDir()}
	for argv, killed := range map[string]bool{"sleep 1000": true, "cat": false} {
		pid := group(t, strings.Fields(argv)...)
		if err := os.WriteFile(filepath.Join(s.dir, "load.pid"), []byte(pid+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _ = s.run(t, "-tests", "0", "-ci", "0"); alive(pid) == killed {
			t.Errorf("%s: killed %v, want %v", argv, !killed, killed)
		}
	}
}

// group starts a process in a group of its own and returns its number.
func group(t *testing.T, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	child := quelltest.StartChild(t, cmd, "")
	return strconv.Itoa(child.PID)
}

func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}
