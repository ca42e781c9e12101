// Command fault kills the shipped `quell lab run` with SIGKILL at random moments of a
// study that holds a load, pins its parts and has changed a knob of the machine. Each
// time it checks the result: every earlier record is still there, at most one run is
// begun without a record, and after `quell lab restore` no cgroup, process or knob
// change of the lab is left (`make lab-fault`).
//
// Then it causes disturbances of a run: a co-runner that is killed, a co-runner that is
// stopped, a foreign process on a part's CPU, a full disk. It checks that the run's
// verdict reports each.
//
// With -smoke it runs one study from its file to its report, with one kill and a resume
// (`make lab-smoke`).
//
// It exits with 1 if anything was left or lost, or if a disturbed run counted as valid.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	quell  string
	kills  int
	seed   uint64
	scenes bool
	smoke  string
}

func main() {
	var o options
	flag.StringVar(&o.quell, "quell", "bin/quell", "quell program to test")
	flag.IntVar(&o.kills, "kills", 50, "number of kills")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "random seed of the moments")
	flag.BoolVar(&o.scenes, "scenes", true, "also test disturbances of a run")
	flag.StringVar(&o.smoke, "smoke", "", "instead run this study, studies/smoke.yaml, to its report, with one kill")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := inject(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "fault:", err)
		os.Exit(1)
	}
}

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

func inject(ctx context.Context, o options) (err error) {
	s := &testbed{patience: time.Minute}
	if s.quell, err = filepath.Abs(o.quell); err == nil {
		_, err = os.Stat(s.quell)
	}
	if err != nil {
		return fmt.Errorf("find quell (make bin/quell): %w", err)
	}
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
	if o.smoke != "" {
		return s.smoke(ctx, o.smoke)
	}
	began := time.Now()
	fmt.Printf("seed %d: repeat with -seed\n", o.seed)
	bad, records, err := s.kills(ctx, o)
	if err != nil {
		return err
	}
	fmt.Printf("%d kills, %d records, %.0f s: %d problems\n", o.kills, records, time.Since(began).Seconds(), len(bad))
	if o.scenes {
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
func (s *testbed) kills(ctx context.Context, o options) (bad []string, records int, err error) {
	r := rand.New(rand.NewPCG(o.seed, 0))
	study := studyText{repetitions: 2000, length: 300 * time.Millisecond, load: true, knob: s.other()}
	file, err := s.write("killed.yaml", study.String())
	if err != nil {
		return nil, 0, err
	}
	out := filepath.Join(s.dir, "killed")
	var kept []string
	for i := range o.kills {
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
