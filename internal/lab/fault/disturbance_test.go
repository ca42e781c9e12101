package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/machine/host"
)

// disturbance is a disturbance of a run.
type disturbance struct {
	name string
	play func(ctx context.Context, s *testbed) (outcome, error)
}

type outcome struct {
	ok   bool
	text string
}

func scenes() []disturbance {
	return []disturbance{
		{"a co-runner is killed", func(ctx context.Context, s *testbed) (outcome, error) {
			return s.disturb(ctx, []result.Reason{result.CorunnerDied}, studyText{repetitions: 1, length: whole}, func(pid int) (func(), error) {
				return nil, unix.Kill(pid, unix.SIGKILL)
			})
		}},
		{"a co-runner is stopped", func(ctx context.Context, s *testbed) (outcome, error) {
			// Starved: it wanted to run when it was stopped, and the machine had no CPU
			// for it at that moment.
			return s.disturb(ctx, []result.Reason{result.Stalled, result.Starved}, studyText{repetitions: 1, length: whole}, func(pid int) (func(), error) {
				return nil, unix.Kill(pid, unix.SIGSTOP)
			})
		}},
		{"a foreign process on its CPU", func(ctx context.Context, s *testbed) (outcome, error) {
			return s.disturb(ctx, []result.Reason{result.ForeignCPU}, studyText{repetitions: 1, length: 4 * time.Second, foreign: "10%"}, func(int) (func(), error) {
				return hog(ctx)
			})
		}},
		{"the disk is full", fullDisk},
	}
}

// whole is the length of a run that a disturbance should end. The engine looks five
// times a second, but the machine may be busy; the check is only that the run does not
// last to its end, which holds on any machine.
const whole = 30 * time.Second

// plays is the number of runs in one of which the disturbance must be the reason. On a
// busy machine a run may end earlier for another reason.
const plays = 3

// disturb starts a run, does something to its second part's process, and compares the
// verdict with the wanted reasons, any of which is right.
func (s *testbed) disturb(ctx context.Context, want []result.Reason, study studyText, do func(pid int) (func(), error)) (outcome, error) {
	file, err := s.write("disturbed.yaml", study.String())
	if err != nil {
		return outcome{}, err
	}
	var r result.Run
	for range plays {
		out := filepath.Join(s.dir, "disturbed")
		if err := os.RemoveAll(out); err != nil {
			return outcome{}, err
		}
		l, err := s.start(ctx, "run", "--journal", s.journal, "--out", out, file)
		if err != nil {
			return outcome{}, err
		}
		pid, err := l.part(out)
		if err != nil {
			return outcome{}, fmt.Errorf("%w: %s", err, l.output())
		}
		l.wait(700 * time.Millisecond) // the run has begun
		did := time.Now()
		undo, err := do(pid)
		early := errors.Is(err, unix.ESRCH) // it has ended before, for another reason
		if err != nil && !early {
			return outcome{}, err
		}
		ended := l.wait(4 * time.Minute) // a limit in case it hangs
		if undo != nil {
			undo()
		}
		if !ended {
			return outcome{}, fmt.Errorf("the run does not end: %s", l.output())
		}
		records, _, problems := look(out)
		if len(records) != 1 || len(problems) > 0 {
			return outcome{}, fmt.Errorf("%d records %v: %s", len(records), problems, l.output())
		}
		if r, err = read(records[0]); err != nil {
			return outcome{}, err
		}
		i := slices.IndexFunc(r.Evidence, func(e result.Evidence) bool { return slices.Contains(want, e.Reason) })
		if early || i < 0 {
			continue
		}
		e := r.Evidence[i]
		after := e.At - did.Sub(r.Start)
		o := outcome{true, fmt.Sprintf("%s, %s, %.1f s after it: %s", r.Verdict, e.Reason, after.Seconds(), e.Text)}
		o.ok = r.Verdict == result.Invalid && (e.Reason == result.ForeignCPU || e.At < whole)
		if left := s.left(l.cmd.Process.Pid, nil); len(left) > 0 {
			o.ok, o.text = false, o.text+"; left: "+strings.Join(left, ", ")
		}
		return o, nil
	}
	return outcome{false, fmt.Sprintf("%s %v, wanted %v", r.Verdict, r.Evidence, want)}, nil
}

// part waits for the second part's process of a lab's run and returns its pid.
func (l *lab) part(out string) (int, error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		for _, pattern := range []string{"/sys/fs/cgroup/quell-lab-%d-*/e*.bg/cgroup.procs", "/sys/fs/cgroup/*/quell-lab-%d-*/e*.bg/cgroup.procs"} {
			found, _ := filepath.Glob(fmt.Sprintf(pattern, l.cmd.Process.Pid)) // the pattern is valid
			for _, name := range found {
				text, err := os.ReadFile(name)
				if f := strings.Fields(string(text)); err == nil && len(f) > 0 {
					return strconv.Atoi(f[0])
				}
			}
		}
		if l.wait(20 * time.Millisecond) {
			return 0, fmt.Errorf("the lab ended before its second part started")
		}
	}
	return 0, fmt.Errorf("no second part within a minute")
}

// hog is a busy shell on the first part's CPU.
func hog(ctx context.Context) (end func(), err error) {
	cmd := exec.CommandContext(ctx, "sh", "-c", "while :; do :; done")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	err = host.SetAffinity(cmd.Process.Pid, sample.SetOf(0))
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}, err
}

// fullDisk runs a study in a file system of its own that is too small, in a mount
// namespace of its own. The study must end and give the reason; its records must be
// complete.
func fullDisk(ctx context.Context, s *testbed) (outcome, error) {
	file, err := s.write("full.yaml", studyText{repetitions: 200, length: 100 * time.Millisecond}.String())
	if err != nil {
		return outcome{}, err
	}
	small, kept := filepath.Join(s.dir, "small"), filepath.Join(s.dir, "kept")
	if err := os.Mkdir(small, 0o755); err != nil {
		return outcome{}, err
	}
	const script = `mount -t tmpfs -o size=512k none "$1" && "$2" lab run --journal "$3" --out "$1/out" "$4"; code=$?; cp -r "$1/out" "$5"; exit $code`
	cmd := exec.CommandContext(ctx, "sh", "-c", script, "sh", small, s.quell, s.journal, file, kept)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	l, err := s.launch(cmd)
	if err != nil {
		return outcome{}, err
	}
	if !l.wait(4 * time.Minute) {
		_ = l.cmd.Process.Kill()
		return outcome{}, fmt.Errorf("the study does not end: %s", l.output())
	}
	records, begun, problems := look(kept)
	lines := strings.Split(l.output(), "\n")
	said := lines[max(0, len(lines)-2):]
	o := outcome{true, fmt.Sprintf("exit %d with %d records: %s", l.cmd.ProcessState.ExitCode(), len(records), strings.Join(said, " "))}
	o.ok = l.cmd.ProcessState.ExitCode() == 1 && strings.Contains(l.output(), "no space left") && len(problems) == 0 && len(records) > 0 && begun-len(records) <= 1
	if len(problems) > 0 {
		o.text += "; " + strings.Join(problems, ", ")
	}
	return o, nil
}
