// Command smoke runs studies/smoke.yaml with the shipped quell as an operator would: it
// runs the study, kills it with SIGKILL in the middle of a run, resumes it, and has the
// report written. Then it checks: no record may be lost, every run of the plan must have
// its verdict, nothing may be left on the machine.
package main

import (
	"encoding/json"
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

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: smoke QUELL STUDY.yaml")
		os.Exit(2)
	}
	if err := smoke(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "smoke:", err)
		os.Exit(1)
	}
}

// patience bounds the total time.
const patience = 3 * time.Minute

// toleratedReasons are reasons that depend only on how busy the machine was.
var toleratedReasons = []result.Reason{result.Stalled, result.Starved, result.LoadUnattainable, result.LoadOffTarget, result.OverlapShort,
	result.ForeignCPU, result.Steal, result.Throttled, result.CacheLost, result.ClockStep, result.KernelLog}

func smoke(quell, file string) (err error) {
	began := time.Now()
	dir, err := os.MkdirTemp("", "quell-smoke-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w (records: %s)", err, dir)
		}
	}()
	before, err := cgroups()
	if err != nil {
		return err
	}
	out := filepath.Join(dir, "out")
	kept, err := interrupted(quell, file, out)
	if err != nil {
		return err
	}
	fmt.Printf("killed with %d records written, %.0f s after the start\n", len(kept), time.Since(began).Seconds())

	// Invalid runs make it exit with 1; judge checks them below.
	resume := exec.Command(quell, "lab", "resume", out)
	resume.Stdout, resume.Stderr = os.Stdout, os.Stderr
	err = bounded(resume, patience-time.Since(began))
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		return fmt.Errorf("resume: %w", err)
	}
	if err := judge(out, kept); err != nil {
		return err
	}
	for _, words := range [][]string{{"analyse", out}, {"report", "--format", "html,md", out}} {
		cmd := exec.Command(quell, append([]string{"lab"}, words...)...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", words[0], err)
		}
	}
	page, err := os.ReadFile(filepath.Join(out, "report", "smoke.html"))
	if err != nil || !strings.Contains(string(page), "<svg") && !strings.Contains(string(page), "<table") {
		return fmt.Errorf("the report of %d bytes has no plot and no table: %w", len(page), err)
	}
	after, err := cgroups()
	if err != nil {
		return err
	}
	if left := slices.DeleteFunc(after, func(dir string) bool { return slices.Contains(before, dir) }); len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	fmt.Printf("smoke: passed, %.0f s\n", time.Since(began).Seconds())
	return nil
}

// interrupted runs the study and kills it in the middle of the second run. It returns the
// records that exist then.
func interrupted(quell, file, out string) ([]string, error) {
	cmd := exec.Command(quell, "lab", "run", "--out", out, file)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	killed := false
	for deadline := time.Now().Add(patience / 2); !killed && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		records, err := filepath.Glob(filepath.Join(out, "runs", "*", "*", "run.json"))
		if err != nil {
			return nil, err
		}
		// A role's output is created when the role is started: the run has begun.
		roles, err := filepath.Glob(filepath.Join(out, "runs", "*", "*", "bg.out"))
		if err != nil {
			return nil, err
		}
		if killed = len(records) == 1 && len(roles) == 2; killed {
			time.Sleep(2 * time.Second) // into its warm-up or its steps
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		return nil, fmt.Errorf("kill the run: %w", err)
	}
	err := cmd.Wait()
	if !killed {
		return nil, fmt.Errorf("no second run began within %s: %w", patience/2, err)
	}
	return filepath.Glob(filepath.Join(out, "runs", "*", "*", "run.json"))
}

func bounded(cmd *exec.Cmd, d time.Duration) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	t := time.AfterFunc(d, func() { _ = cmd.Process.Kill() })
	defer t.Stop()
	return cmd.Wait()
}

// judge checks the folder of a study that was killed and resumed.
func judge(out string, kept []string) error {
	for _, name := range kept {
		if _, err := os.Stat(name); err != nil {
			return fmt.Errorf("an existing record is lost: %w", err)
		}
	}
	names, err := filepath.Glob(filepath.Join(out, "runs", "*", "*", "run.json"))
	if err != nil {
		return err
	}
	slots := map[string]bool{}
	valid := 0
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var r result.Run
		if err := json.Unmarshal(text, &r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
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

// cgroups are the lab's, in every hierarchy.
func cgroups() ([]string, error) {
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/quell-lab-*", "/sys/fs/cgroup/*/quell-lab-*"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}
