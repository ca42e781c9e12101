package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
)

// childEnv is set for the processes that run this program again.
const childEnv = "QUELL_COMPARE_CHILD"

// bench is a CPU, with cgroups for the processes on it.
type bench struct {
	cpu   int
	self  string // this program
	host  *host.Host
	tree  *workload.Tree
	guard *load.Guard
	made  int
}

func openBench(cpu int) (*bench, error) {
	if _, err := workload.Sweep("quell-lab-compare"); err != nil {
		return nil, err
	}
	h, err := host.Open("/")
	if err != nil {
		return nil, err
	}
	b := &bench{cpu: cpu, host: h}
	if b.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if b.guard, err = load.StartGuard("/usr/bin/env", childEnv+"=1", b.self, "guard"); err != nil {
		return nil, err
	}
	b.tree, err = workload.OpenTree("quell-lab-compare", workload.TreeOptions{Controllers: []string{"freezer"}})
	if err != nil {
		return nil, errors.Join(err, b.guard.Close())
	}
	return b, nil
}

func (b *bench) close() error { return errors.Join(b.tree.Close(), b.guard.Close()) }

// subject is the process to hold, in a cgroup of its own.
type subject struct {
	bench *bench
	task  string
	dirs  []string
	cmd   *exec.Cmd
}

func (b *bench) start(argv ...string) (*subject, error) {
	b.made++
	s := &subject{bench: b, task: "s" + strconv.Itoa(b.made)}
	if err := b.tree.Add(s.task); err != nil {
		return nil, err
	}
	s.dirs = b.tree.Dirs(s.task)
	s.cmd = exec.Command(argv[0], argv[1:]...)
	s.cmd.Env = append(os.Environ(), childEnv+"=1", "GOMAXPROCS=1")
	if err := b.tree.Launch(s.task, s.cmd, sample.SetOf(b.cpu)); err != nil {
		return nil, err
	}
	return s, nil
}

func (b *bench) burn() (*subject, error) { return b.start(b.self, "burn") }

func (s *subject) end() error {
	_ = s.cmd.Process.Kill() // Remove ends the other processes in the cgroup
	err := s.bench.tree.Remove(s.task)
	_ = s.cmd.Wait()
	return err
}

// file returns the path of a file of the cgroup in the first hierarchy that has it.
func (s *subject) file(names ...string) (string, error) {
	for _, name := range names {
		for _, dir := range s.dirs {
			if path := filepath.Join(dir, name); unix.Access(path, unix.F_OK) == nil {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("no %s in the cgroups", strings.Join(names, " and no "))
}

// used returns the CPU time of the cgroup.
func (s *subject) used() (time.Duration, error) {
	path, err := s.file("cpuacct.usage", "cpu.stat")
	if err != nil {
		return 0, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	words, unit := strings.Fields(string(text)), time.Nanosecond
	if filepath.Base(path) == "cpu.stat" {
		words, unit = words[1:], time.Microsecond // usage_usec is first
	}
	n, err := strconv.ParseInt(words[0], 10, 64)
	return time.Duration(n) * unit, err
}

// busy is the time for which the CPU was not idle, by any process.
func (b *bench) busy() (time.Duration, error) {
	times, err := b.host.CPUTimes()
	if err != nil {
		return 0, err
	}
	for _, c := range times.CPUs {
		if c.ID == b.cpu {
			return c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal, nil
		}
	}
	return 0, fmt.Errorf("no CPU %d", b.cpu)
}

// measure holds a target by a method and measures the result over a window.
func (b *bench) measure(ctx context.Context, m method, target float64) (h held, err error) {
	h = held{method: m.name, target: target}
	argv := m.program(b.cpu, target)
	var s *subject
	if argv == nil {
		s, err = b.burn()
	} else {
		s, err = b.start(argv...)
	}
	if err != nil {
		return h, err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	ctx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- m.hold(ctx, s, target, nil) }()
	defer func() {
		stop()
		if e := <-done; e != nil && !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}()
	if err := pass(ctx, settle); err != nil {
		return h, err
	}
	from := time.Now()
	used0, err0 := s.used()
	busy0, err1 := b.busy()
	if err := errors.Join(err0, err1, pass(ctx, window)); err != nil {
		return h, err
	}
	used1, err0 := s.used()
	busy1, err1 := b.busy()
	span := time.Since(from).Seconds()
	h.achieved = (used1 - used0).Seconds() / span
	h.others = max(0, (busy1-busy0-(used1-used0)).Seconds()/span)
	return h, errors.Join(err0, err1)
}

// unattainable holds a target with a rival on the same CPU. It returns the time until
// the target was reported as unattainable, 0 for never, and the achieved load.
func (b *bench) unattainable(ctx context.Context, m method, target float64) (took time.Duration, achieved float64, err error) {
	rival, err := b.burn()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, rival.end()) }()
	s, err := b.burn()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.end()) }()
	ctx, stop := context.WithTimeout(ctx, 2*prompt)
	defer stop()
	from := time.Now()
	before, err := s.used()
	if err != nil {
		return 0, 0, err
	}
	err = m.hold(ctx, s, target, func(p load.Period) {
		if p.Unattainable && took == 0 {
			took = time.Since(from)
			stop()
		}
	})
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return 0, 0, err
	}
	after, err := s.used()
	return took, (after - before).Seconds() / time.Since(from).Seconds(), err
}

func pass(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func affinity() (sample.Set, error) {
	var mask unix.CPUSet
	var set sample.Set
	if err := unix.SchedGetaffinity(0, &mask); err != nil {
		return set, err
	}
	for n := range 64 * len(mask) {
		if mask.IsSet(n) {
			set = set.With(n)
		}
	}
	return set, nil
}
