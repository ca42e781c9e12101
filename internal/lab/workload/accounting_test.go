package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// LoadProgress reads a progress file.
func LoadProgress(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("load progress: %w", err)
	}
	defer f.Close()
	var buf [8]byte
	if _, err := io.ReadFull(f, buf[:]); err != nil {
		return 0, fmt.Errorf("load progress %s: %w", path, err)
	}
	return binary.LittleEndian.Uint64(buf[:]), nil
}

// Sched is the scheduler's accounting of a process, summed over its threads.
type Sched struct {
	CPU  time.Duration // on a CPU
	Wait time.Duration // runnable, waiting for one
}

// Sched reads /proc/PID/task/*/schedstat (Documentation/scheduler/ sched-stats.rst).
// Threads that have exited are not included.
func (p *Proc) Sched() (Sched, error) {
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.PID))
	if err != nil || len(paths) == 0 {
		return Sched{}, errors.Join(fmt.Errorf("read schedstat: process %d has ended", p.PID), err)
	}
	var sum Sched
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return Sched{}, fmt.Errorf("read schedstat: %w", err)
		}
		var s Sched
		if _, err := fmt.Sscan(string(text), (*int64)(&s.CPU), (*int64)(&s.Wait)); err != nil {
			return Sched{}, fmt.Errorf("read %s: %w", path, err)
		}
		sum.CPU += s.CPU
		sum.Wait += s.Wait
	}
	return sum, nil
}
