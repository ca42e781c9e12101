package host

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// tally is the CPU time of a cgroup's processes, summed one by one.
type tally struct {
	began bool
	total time.Duration
	at    uint64               // of the newest reading, ticks since boot
	used  map[int]processTally // by pid
}

type processTally struct {
	start uint64
	used  time.Duration
}

// Tally returns the CPU time that the cgroup's processes have used since the first call, for a cgroup
// of which the kernel keeps none (ErrNoUsage): it exists only in the v1 hierarchy of the cpu
// controller. What a process uses after the last call before its end is missing. It takes a file of
// each process, at a resolution of 10 ms: of one with more than mostPlaced processes it is an error. Others: ErrGone,
// ErrCrowded.
func (c *Cgroup) Tally() (time.Duration, error) { return c.tallyOf(mostPlaced) }

func (c *Cgroup) tallyOf(most int) (time.Duration, error) {
	pids, err := c.Members()
	if err != nil {
		return 0, err
	}
	if len(pids) > most {
		return 0, fmt.Errorf("sum the CPU time of %d processes: %d are read at most; mount the controllers cpu and cpuacct together, so that the kernel sums it", len(pids), most)
	}
	now := uint64(clock(unix.CLOCK_BOOTTIME)) / uint64(tick)
	return c.tally.add(now, pids, func(pid int) (ProcessStat, error) {
		return ReadProcessStat(c.h.Path("/proc/" + strconv.Itoa(pid) + "/stat"))
	})
}

// add reads the processes. What a process used before it came into the cgroup does not count; one
// that started after the last reading was in it from the start.
func (t *tally) add(now uint64, pids []int, read func(pid int) (ProcessStat, error)) (time.Duration, error) {
	next := make(map[int]processTally, len(pids))
	for _, pid := range pids {
		st, err := read(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
		}
		before, known := t.used[pid]
		switch {
		case known && before.start == st.Start:
			t.total += max(0, min(st.Used-before.used, math.MaxInt64-t.total))
		case t.began && st.Start >= t.at:
			t.total += min(st.Used, math.MaxInt64-t.total)
		}
		next[pid] = processTally{st.Start, st.Used}
	}
	t.used, t.at, t.began = next, now, true
	return t.total, nil
}
