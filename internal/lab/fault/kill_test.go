package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// knob is a knob that a study may change without harm: the interval at which the kernel
// updates its memory statistics.
const knob = "/proc/sys/vm/stat_interval"

// testbed is the machine with a folder for this program's files.
type testbed struct {
	quell   string
	dir     string
	journal string
	knob    string // its original value
	// patience is the time limit for killed processes to disappear: the kernel and PID
	// 1 may reap them late.
	patience time.Duration
}

// inject kills quell at moments that the seed chooses, and disturbs runs, or runs the
// study of -smoke.
func inject(ctx context.Context, quell string, seed uint64) (err error) {
	s := &testbed{quell: quell, patience: time.Minute}
	if s.dir, err = os.MkdirTemp("", "quell-test-lab-fault-"); err != nil {
		return err
	}
	s.journal = filepath.Join(s.dir, "journal")
	text, err := os.ReadFile(knob)
	if err != nil {
		return err
	}
	s.knob = strings.TrimSpace(string(text))
	defer func() {
		if now, e := os.ReadFile(knob); e == nil && strings.TrimSpace(string(now)) != s.knob {
			err = errors.Join(err, os.WriteFile(knob, []byte(s.knob), 0o644)) // left has counted it
		}
		if err == nil {
			err = os.RemoveAll(s.dir)
		} else {
			err = fmt.Errorf("%w (folder: %s)", err, s.dir)
		}
	}()
	if *smokeStudy != "" {
		return s.smoke(ctx, *smokeStudy)
	}
	began := time.Now()
	fmt.Printf("seed %d: repeat with -seed\n", seed)
	bad, records, err := s.kills(ctx, seed)
	if err != nil {
		return err
	}
	fmt.Printf("%d kills, %d records, %.0f s: %d problems\n", *killCount, records, time.Since(began).Seconds(), len(bad))
	for _, scene := range scenes() {
		what, err := scene.play(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", scene.name, err)
		}
		fmt.Printf("%s: %s\n", scene.name, what.text)
		if !what.ok {
			bad = append(bad, scene.name+": "+what.text)
		}
	}
	if len(bad) > 0 {
		return errors.New(strings.Join(bad, "; "))
	}
	return nil
}

// longest is the maximum time from a lab's start to its kill: a second to get ready,
// and some runs.
const longest = 4 * time.Second

// kills runs the same study repeatedly and kills it each time.
func (s *testbed) kills(ctx context.Context, seed uint64) (bad []string, records int, err error) {
	r := rand.New(rand.NewPCG(seed, 0))
	study := studyText{repetitions: 2000, length: 300 * time.Millisecond, load: true, knob: s.other()}
	file, err := s.write("killed.yaml", study.String())
	if err != nil {
		return nil, 0, err
	}
	out := filepath.Join(s.dir, "killed")
	var kept []string
	for i := range *killCount {
		after := time.Duration(r.Int64N(int64(longest)))
		l, err := s.start(ctx, "run", "--journal", s.journal, "--out", out, file)
		if err != nil {
			return nil, 0, err
		}
		ended := l.wait(after)
		if ended {
			return nil, 0, fmt.Errorf("the study ended by itself: %s", l.output())
		}
		children := l.children()
		if err := l.cmd.Process.Kill(); err != nil {
			return nil, 0, err
		}
		<-l.done
		wrong := func(format string, args ...any) {
			text := fmt.Sprintf("kill %d after %s: ", i, after.Round(time.Millisecond)) + fmt.Sprintf(format, args...)
			fmt.Println(text)
			bad = append(bad, text)
		}
		if text, err := exec.CommandContext(ctx, s.quell, "lab", "restore", "--journal", s.journal).CombinedOutput(); err != nil {
			wrong("restore: %v: %s", err, text)
		}
		for _, text := range s.left(l.cmd.Process.Pid, children) {
			wrong("left: %s", text)
		}
		now, begun, problems := look(out)
		for _, p := range problems {
			wrong("%s", p)
		}
		for _, name := range kept {
			if !slices.Contains(now, name) {
				wrong("lost: %s", name)
			}
		}
		if lost := begun - len(now); lost > 1 {
			wrong("%d runs started without a record", lost)
		}
		kept = now
		if ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
	}
	return bad, len(kept), nil
}

// other returns a value that differs from the knob's value.
func (s *testbed) other() string {
	if s.knob == "2" {
		return "3"
	}
	return "2"
}

func (s *testbed) write(name, text string) (string, error) {
	file := filepath.Join(s.dir, name)
	return file, os.WriteFile(file, []byte(text), 0o644)
}
