package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
)

// smokeTime bounds the time of smoke.
const smokeTime = 3 * time.Minute

// toleratedReasons are reasons that depend only on how busy the machine was.
var toleratedReasons = []result.Reason{result.Stalled, result.Starved, result.LoadUnattainable, result.LoadOffTarget, result.OverlapShort,
	result.ForeignCPU, result.Steal, result.Throttled, result.CacheLost, result.ClockStep, result.KernelLog}

// smoke runs studies/smoke.yaml as an operator would: it kills the lab in the middle of
// the second run, resumes the study, and has the report written.
func (s *testbed) smoke(ctx context.Context, file string) error {
	ctx, cancel := context.WithTimeout(ctx, smokeTime)
	defer cancel()
	began := time.Now()
	out := filepath.Join(s.dir, "smoke")
	l, err := s.launch(s.shown(ctx, "run", "--out", out, file))
	if err != nil {
		return err
	}
	for records, begun := []string(nil), 0; len(records) != 1 || begun != 2; records, begun, _ = look(out) {
		if l.wait(50 * time.Millisecond) {
			return fmt.Errorf("the study ended before it was killed: %w", errors.Join(ctx.Err(), errors.New(l.cmd.ProcessState.String())))
		}
	}
	l.wait(2 * time.Second) // the run is in its warm-up or its steps
	children := l.children()
	if err := l.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill the run: %w", err)
	}
	<-l.done
	kept, _, _ := look(out)
	fmt.Printf("killed with %d records written, %.0f s after the start\n", len(kept), time.Since(began).Seconds())

	resume := s.shown(ctx, "resume", out)
	var exit *exec.ExitError
	if err := resume.Run(); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) { // 1: invalid runs; judge checks them
		return fmt.Errorf("resume: %w", err)
	}
	if err := judge(out, kept); err != nil {
		return err
	}
	for _, words := range [][]string{{"analyse", out}, {"report", "--format", "html,md", out}} {
		if err := s.shown(ctx, words...).Run(); err != nil {
			return fmt.Errorf("%s: %w", words[0], err)
		}
	}
	page, err := os.ReadFile(filepath.Join(out, "report", "smoke.html"))
	if err != nil {
		return err
	}
	if !strings.Contains(string(page), "<svg") && !strings.Contains(string(page), "<table") {
		return fmt.Errorf("the report of %d bytes has no plot and no table", len(page))
	}
	if left := append(s.left(l.cmd.Process.Pid, children), s.left(resume.Process.Pid, nil)...); len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	fmt.Printf("smoke: passed, %.0f s\n", time.Since(began).Seconds())
	return nil
}

// shown is a command of `quell lab` whose output is shown.
func (s *testbed) shown(ctx context.Context, words ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.quell, append([]string{"lab"}, words...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// judge checks the folder of a study that was killed and resumed: no record may be lost,
// and every run of the plan must have its verdict.
func judge(out string, kept []string) error {
	records, _, problems := look(out)
	for _, name := range kept {
		if !slices.Contains(records, name) {
			problems = append(problems, "lost: "+name)
		}
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	slots := map[string]bool{}
	valid := 0
	for _, name := range records {
		r, err := read(name)
		if err != nil {
			return err
		}
		slots[fmt.Sprint(r.CellKey, " ", r.N)] = true
		switch r.Verdict {
		case result.Valid:
			valid++
			for _, p := range r.Parts {
				if len(p.Iterations) == 0 || p.CPUTime == 0 || len(p.CPUs) == 0 {
					return fmt.Errorf("%s is valid, but part %s has no iterations, no CPU time or no CPUs", name, p.Name)
				}
			}
		case result.Invalid:
			if len(r.Evidence) == 0 {
				return fmt.Errorf("%s is invalid without evidence", name)
			}
			for _, e := range r.Evidence {
				if !slices.Contains(toleratedReasons, e.Reason) {
					return fmt.Errorf("%s: %s: %s", name, e.Reason, e.Text)
				}
			}
		default:
			return fmt.Errorf("%s is %s: %+v", name, r.Verdict, r.Evidence)
		}
	}
	const planned = 4
	if len(slots) != planned {
		return fmt.Errorf("%d of %d runs have a record", len(slots), planned)
	}
	if valid == 0 {
		fmt.Println("note: this machine was too busy for a valid run")
	}
	return nil
}
