package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/quell-dev/quell/internal/lab/load"
)

// method is a way to hold a process at a share of a CPU.
type method struct {
	name   string
	closed bool // it reports unattainable targets itself
	// program is the command to run instead of a busy loop; nil: the busy loop.
	program func(cpu int, target float64) []string
	// hold keeps the target until the context ends.
	hold func(ctx context.Context, s *subject, target float64, each func(load.Period)) error
}

const (
	closedName = "closed loop, "
	stressName = "stress-ng"
)

func methods() []method {
	burn := func(int, float64) []string { return nil }
	return []method{
		{closedName + "freezer", true, burn, func(ctx context.Context, s *subject, target float64, each func(load.Period)) error {
			path, err := s.file("cgroup.freeze", "freezer.state")
			if err != nil {
				return err
			}
			f, err := load.OpenFreezer(filepath.Dir(path), s.bench.guard)
			if err != nil {
				return err
			}
			return s.closed(ctx, f, target, each)
		}},
		{closedName + "SIGSTOP", true, burn, func(ctx context.Context, s *subject, target float64, each func(load.Period)) error {
			return s.closed(ctx, load.NewSignals(filepath.Join(s.dirs[0], "cgroup.procs"), s.bench.guard), target, each)
		}},
		{"open loop, SIGSTOP", false, burn, openLoop},
		{"quota", false, burn, quota},
		{stressName, false, func(_ int, target float64) []string {
			// stress-ng keeps its process where it was placed; its own default method
			// has loops of very different lengths.
			return []string{"stress-ng", "--quiet", "--cpu", "1", "--cpu-method", "int64", "--cpu-load", fmt.Sprintf("%.0f", target*100)}
		}, func(ctx context.Context, _ *subject, _ float64, _ func(load.Period)) error {
			<-ctx.Done()
			return nil
		}},
	}
}

// closed is the lab's own closed loop.
func (s *subject) closed(ctx context.Context, a load.Actuator, target float64, each func(load.Period)) error {
	levels := []load.Level{{Share: target, Until: time.Now().Add(time.Hour)}}
	return load.Hold(ctx, a, s.used, levels, load.Options{CPUs: 1, Period: period, Tolerance: most}, each)
}

// openLoop is a duty cycle without feedback.
func openLoop(ctx context.Context, s *subject, target float64, _ func(load.Period)) (err error) {
	a := load.NewSignals(filepath.Join(s.dirs[0], "cgroup.procs"), s.bench.guard)
	defer func() { err = errors.Join(err, a.Continue()) }()
	for at := time.Now(); ; at = at.Add(period) {
		if err := a.Continue(); err != nil {
			return err
		}
		if err := pass(ctx, time.Until(at.Add(time.Duration(target*float64(period))))); err != nil {
			return err
		}
		if err := a.Stop(); err != nil {
			return err
		}
		if err := pass(ctx, time.Until(at.Add(period))); err != nil {
			return err
		}
	}
}

// quota is the kernel's own limit, over its usual 100 ms.
func quota(ctx context.Context, s *subject, target float64, _ func(load.Period)) error {
	dir, v1 := s.bench.tree.CPUDir(s.task)
	us := int(target * 100_000)
	file, text := "cpu.max", fmt.Sprintf("%d 100000", us)
	if v1 {
		file, text = "cpu.cfs_quota_us", strconv.Itoa(us)
	}
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
