package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// childDir makes the test binary run a soak of the repository in the next variable.
const (
	childDir  = "SOAK_TEST_DIR"
	childRepo = "SOAK_TEST_REPO"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if _, err := newSoak(os.Getenv(childRepo), dir).run(context.Background()); err != nil {
			panic(err)
		}
		return
	}
	quelltest.Main(m)
}

func newSoak(repo, dir string) *soak {
	return &soak{
		repo: repo, dir: dir, deadline: time.Minute, progress: io.Discard,
		plan: []step{{"make test", []string{"make", "-s", "test"}, 2}, {".ci/run", []string{"./ci"}, 1}},
		load: []string{"sleep", "1000"},
	}
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
		"ci":       "#!/bin/sh\necho '5 passed, 0 failed, 1 skipped'\necho '2 passed, 0 failed, 3 skipped'\n",
	})
	return dir
}

func commitFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	gitIn(t, dir, "add", ".")
	gitIn(t, dir, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "x")
}

func gitIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	out, err := git(dir, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const passing = "echo '3 passed, 0 failed, 1 skipped'\n"

func TestEveryRunIsRecorded(t *testing.T) {
	s := newSoak(repository(t, `test "$GOFLAGS" = -count=1 && `+passing), t.TempDir())
	t.Setenv("GOFLAGS", "")
	r, err := s.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Runs) != 3 || !r.OK || r.Commit != gitIn(t, s.repo, "rev-parse", "HEAD") {
		t.Fatalf("%+v", r)
	}
	for i, want := range []run{
		{What: "make test", Number: 1, Passed: 3, Skipped: 1}, {What: "make test", Number: 2, Passed: 3, Skipped: 1},
		{What: ".ci/run", Number: 1, Passed: 7, Skipped: 4},
	} {
		got := r.Runs[i]
		if got.What != want.What || got.Number != want.Number || got.Passed != want.Passed || got.Skipped != want.Skipped ||
			got.Seconds <= 0 || got.Commit != r.Commit || got.Machine == "" || got.Load != "sleep 1000" {
			t.Errorf("run %d is %+v, want %+v", i, got, want)
		}
	}
	// A second soak of the same commit has nothing to do, and reports the same.
	again, err := s.run(t.Context())
	if err != nil || len(again.Runs) != 3 || !again.Runs[2].Start.Equal(r.Runs[2].Start) {
		t.Errorf("%+v, %v", again, err)
	}
	var table strings.Builder
	if err := r.table(&table); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"make test: 2 of 2\n", ".ci/run: 1 of 1\n", r.Commit, r.Machine} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("%q is not in\n%s", want, table.String())
		}
	}
}

func TestAFailureIsKept(t *testing.T) {
	s := newSoak(repository(t, "printf 'failed:\\n  q/a TestX\\nskipped:\\n  q/b TestY: needs pmu: no\\n3 passed, 1 failed, 1 skipped\\n'; exit 1\n"), t.TempDir())
	r, err := s.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.OK || len(r.Runs) != 3 || r.Runs[1].Exit != 2 || r.Runs[1].Failed != 1 || !slices.Equal(r.Runs[1].FailedTests, []string{"q/a TestX"}) || !r.Runs[2].ok() {
		t.Errorf("%+v", r)
	}
	// Another soak does not repair it.
	if r, err = s.run(t.Context()); err != nil || r.OK || len(r.Runs) != 3 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A run in which no test ran, or that exits with an error after its tests, is no success.
func TestWhatCountsAsSuccess(t *testing.T) {
	for _, c := range []struct {
		script string
		ok     bool
	}{{passing, true}, {"true\n", false}, {passing + "exit 1\n", false}, {"echo '0 passed, 0 failed, 9 skipped'\n", false}} {
		r, err := newSoak(repository(t, c.script), t.TempDir()).run(t.Context())
		if err != nil || r.OK != c.ok {
			t.Errorf("%q: %+v, %v", c.script, r, err)
		}
	}
}

func TestADirtyTreeIsRefused(t *testing.T) {
	s := newSoak(repository(t, passing), t.TempDir())
	if err := os.WriteFile(filepath.Join(s.repo, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), "not committed") {
		t.Errorf("%v", err)
	}
}

// Edits of the tree while it runs change no run, and another commit begins anew.
func TestOneCommitIsTested(t *testing.T) {
	repo := repository(t, "")
	commitFiles(t, repo, map[string]string{"script": "echo 'exit 1' > " + repo + "/script\n" + passing})
	s := newSoak(repo, t.TempDir())
	r, err := s.run(t.Context())
	if err != nil || !r.OK {
		t.Fatalf("%+v, %v", r, err)
	}
	commitFiles(t, repo, map[string]string{"script": "echo '4 passed, 0 failed, 0 skipped'\n"})
	other, err := s.run(t.Context())
	if err != nil || !other.OK || len(other.Runs) != 3 || other.Runs[0].Passed != 4 || other.Commit == r.Commit {
		t.Errorf("%+v, %v", other, err)
	}
}

// blocking returns a script whose second run writes to the pipe begun and does
// not end by itself.
func blocking(t *testing.T, dir string) string {
	t.Helper()
	if err := syscall.Mkfifo(filepath.Join(dir, "begun"), 0o600); err != nil {
		t.Fatal(err)
	}
	return "echo x >> " + dir + "/runs\nif test $(wc -l < " + dir + "/runs) = 2; then echo > " + dir + "/begun; sleep 1000; fi\n" + passing
}

func TestAnInterruptLosesOneRun(t *testing.T) {
	notes := t.TempDir()
	s := newSoak(repository(t, blocking(t, notes)), t.TempDir())
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := s.run(ctx)
		ended <- err
	}()
	begun(t, notes)
	interrupt()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	nothingLeft(t, s)
	goesOn(t, s, notes)
}

func TestAfterAKillTheNextSoakGoesOn(t *testing.T) {
	notes, dir := t.TempDir(), t.TempDir()
	s := newSoak(repository(t, blocking(t, notes)), dir)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childRepo+"="+s.repo)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	begun(t, notes)
	if _, err := s.run(t.Context()); err == nil || !strings.Contains(err.Error(), "another soak") {
		t.Errorf("a second one in the same folder: %v", err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	goesOn(t, s, notes)
	nothingLeft(t, s)
}

func begun(t *testing.T, notes string) {
	t.Helper()
	if _, err := os.ReadFile(filepath.Join(notes, "begun")); err != nil { // waits for the writer
		t.Fatal(err)
	}
}

// goesOn expects the second run to be made once more, and no other.
func goesOn(t *testing.T, s *soak, notes string) {
	t.Helper()
	r, err := s.run(t.Context())
	if err != nil || !r.OK || len(r.Runs) != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	if text, err := os.ReadFile(filepath.Join(notes, "runs")); err != nil || strings.Count(string(text), "x") != 3 {
		t.Errorf("make test began %d times, %v; want 3", strings.Count(string(text), "x"), err)
	}
}

func nothingLeft(t *testing.T, s *soak) {
	t.Helper()
	if left, err := s.left(0); err != nil || len(left) > 0 {
		t.Errorf("still running: %v, %v", left, err)
	}
}

// A load that overwrites its environment is found by its process group. Another
// process that has the group's number by now is not killed.
func TestALoadWithoutItsMarkIsKilled(t *testing.T) {
	s := newSoak("", t.TempDir())
	load := group(t, "sleep", "1000")
	if err := os.WriteFile(s.loadFile(), []byte(load), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.killLeft(); err != nil {
		t.Fatal(err)
	}
	if alive(load) {
		t.Error("the load is left")
	}
	other := group(t, "cat")
	if err := os.WriteFile(s.loadFile(), []byte(other), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.killLeft(); err != nil {
		t.Fatal(err)
	}
	if !alive(other) {
		t.Error("another process was killed")
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
