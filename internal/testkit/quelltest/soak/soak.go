package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/format/atomicfile"
)

// step is a command and how often it is run.
type step struct {
	what string
	argv []string
	runs int
}

type soak struct {
	repo, dir string
	plan      []step
	load      []string      // in parallel with each run
	deadline  time.Duration // of one run
	progress  io.Writer
}

// run is the record of a finished run.
type run struct {
	Commit      string    `json:"commit"`
	What        string    `json:"what"`
	Number      int       `json:"number"` // from 1, of the runs of What
	Start       time.Time `json:"start"`
	Seconds     float64   `json:"seconds"`
	Exit        int       `json:"exit"` // -1: ended by a signal, or at its deadline
	Passed      int       `json:"passed"`
	Failed      int       `json:"failed"`
	Skipped     int       `json:"skipped"`
	FailedTests []string  `json:"failed_tests,omitempty"`
	Load        string    `json:"load"`
	Machine     string    `json:"machine"`
	Log         string    `json:"log"`
}

// ok reports whether tests ran and none failed.
func (r run) ok() bool { return r.Exit == 0 && r.Failed == 0 && r.Passed > 0 }

// report sums up all runs of a commit.
type report struct {
	Commit  string `json:"commit"`
	OK      bool   `json:"ok"`
	Load    string `json:"load"`
	Machine string `json:"machine"`
	Runs    []run  `json:"runs"`
	plan    []step
}

// run makes the runs of the plan that the commit's record lacks.
func (s *soak) run(ctx context.Context) (*report, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.killLeft(); err != nil {
		return nil, err
	}
	commit, err := s.commit()
	if err != nil {
		return nil, err
	}
	home := filepath.Join(s.dir, commit[:12])
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	record := filepath.Join(home, "runs.jsonl")
	runs, err := read(record)
	if err != nil {
		return nil, err
	}
	r := &report{Commit: commit, Load: strings.Join(s.load, " "), Machine: machine(), Runs: runs, plan: s.plan}
	for _, step := range s.plan {
		for n := r.done(step.what) + 1; n <= step.runs; n++ {
			log := filepath.Join(home, fmt.Sprintf("%s-%d.log", regexp.MustCompile(`\W+`).ReplaceAllString(step.what, "-"), n))
			fmt.Fprintf(s.progress, "%s %d of %d: %s\n", step.what, n, step.runs, log)
			one := run{Commit: commit, What: step.what, Number: n, Start: time.Now(), Load: r.Load, Machine: r.Machine, Log: log}
			if err := s.once(ctx, step, filepath.Join(home, "clone"), &one); err != nil {
				return nil, err
			}
			fmt.Fprintf(s.progress, "%s %d of %d: exit %d, %.0f s, %d passed, %d failed, %d skipped\n", step.what, n, step.runs,
				one.Exit, one.Seconds, one.Passed, one.Failed, one.Skipped)
			r.Runs = append(r.Runs, one)
			if err := write(record, r.Runs); err != nil {
				return nil, err
			}
		}
	}
	r.OK = true
	for _, one := range r.Runs {
		r.OK = r.OK && one.ok()
	}
	return r, nil
}

func (r *report) done(what string) (n int) {
	for _, one := range r.Runs {
		if one.What == what {
			n++
		}
	}
	return n
}

// lock lets one soak at a time use the folder.
func (s *soak) lock() (unlock func(), err error) {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another soak uses %s: %w", s.dir, err), f.Close())
	}
	return func() { f.Close() }, nil
}

// commit returns the commit that is checked out, without changes.
func (s *soak) commit() (string, error) {
	changes, err := git(s.repo, "status", "--porcelain")
	if err != nil {
		return "", err
	}
	if changes != "" {
		return "", fmt.Errorf("changes are not committed:\n%s", changes)
	}
	return git(s.repo, "rev-parse", "HEAD")
}

func git(dir string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-C", dir}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// once makes one run in parallel with the load. An error is the soak's own or
// that of ctx, and the run is not counted.
func (s *soak) once(ctx context.Context, step step, clone string, r *run) error {
	if err := os.RemoveAll(clone); err != nil {
		return err
	}
	if _, err := git(s.repo, "clone", "--quiet", "--no-checkout", ".", clone); err != nil {
		return err
	}
	if _, err := git(clone, "checkout", "--quiet", "--detach", r.Commit); err != nil {
		return err
	}
	log, err := os.Create(r.Log)
	if err != nil {
		return err
	}
	defer log.Close()
	// Pdeathsig refers to the thread that started a child, not to the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	load := s.command(ctx, s.load)
	if err := load.Start(); err != nil {
		return err
	}
	loadEnded := make(chan error, 1)
	go func() { loadEnded <- load.Wait() }()
	if err := atomicfile.Write(s.loadFile(), []byte(strconv.Itoa(load.Process.Pid)), 0o644); err != nil {
		return errors.Join(err, load.Cancel(), s.killLeft())
	}
	limited, cancel := context.WithTimeout(ctx, s.deadline)
	defer cancel()
	cmd := s.command(limited, step.argv)
	cmd.Dir, cmd.Stdout, cmd.Stderr = clone, log, log
	begin := time.Now()
	runErr := cmd.Run()
	r.Seconds = time.Since(begin).Seconds()
	early := false
	select {
	case err = <-loadEnded:
		early = true
	default:
		err = load.Cancel()
	}
	err = errors.Join(err, s.killLeft())
	if !early {
		<-loadEnded // that it was killed is no error
	}
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("interrupted; the next soak continues: %w", ctx.Err())
	case early:
		return fmt.Errorf("the load exited early: %s: %w", strings.Join(s.load, " "), err)
	case err != nil:
		return err
	}
	if exit := (*exec.ExitError)(nil); runErr != nil && !errors.As(runErr, &exit) && !errors.Is(runErr, context.DeadlineExceeded) {
		return runErr
	}
	r.Exit = cmd.ProcessState.ExitCode()
	if limited.Err() != nil {
		r.Exit = -1
	}
	text, err := os.ReadFile(r.Log)
	if err != nil {
		return err
	}
	r.count(string(text))
	return nil
}

// command returns a child in its own process group. It is marked, so that
// killLeft finds it and its children, and it is interrupted when ctx ends.
func (s *soak) command(ctx context.Context, argv []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -count=1")
	cmd.Env = append(os.Environ(), "GOFLAGS="+flags, s.mark())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
		if errors.Is(err, syscall.ESRCH) {
			return nil
		}
		return err
	}
	cmd.WaitDelay = time.Minute
	return cmd
}

// summary matches the last line of tally, failed the head of its list of failed tests.
var (
	summary = regexp.MustCompile(`^(\d+) passed, (\d+) failed, (\d+) skipped$`)
	failed  = regexp.MustCompile(`^failed:$`)
)

// count adds up the summaries that the run's test suites print at their ends.
func (r *run) count(log string) {
	inFailed := false
	for line := range strings.Lines(log) {
		line = strings.TrimSuffix(line, "\n")
		if m := summary.FindStringSubmatch(line); m != nil {
			for i, n := range []*int{&r.Passed, &r.Failed, &r.Skipped} {
				add, _ := strconv.Atoi(m[i+1])
				*n += add
			}
		}
		name, indented := strings.CutPrefix(line, "  ")
		inFailed = failed.MatchString(line) || inFailed && indented
		if inFailed && indented {
			r.FailedTests = append(r.FailedTests, name)
		}
	}
}

// read returns the finished runs.
func read(record string) (runs []run, err error) {
	text, err := os.ReadFile(record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var r run
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("read %s: %w", record, err)
		}
		runs = append(runs, r)
	}
	return runs, nil
}

func write(record string, runs []run) error {
	var text bytes.Buffer
	for _, r := range runs {
		if err := json.NewEncoder(&text).Encode(r); err != nil {
			return err
		}
	}
	return atomicfile.Write(record, text.Bytes(), 0o644)
}
