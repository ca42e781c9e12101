package host

import (
	"errors"
	"io/fs"
	"testing"
	"time"
)

// What processes use while they are in the cgroup is summed; what they used before is not.
func TestTally(t *testing.T) {
	const s = time.Second
	all := map[int]ProcessStat{1: {Start: 10, Used: 100 * s}, 2: {Start: 20, Used: 5 * s}}
	var t0 tally
	read := func(pid int) (ProcessStat, error) {
		st, ok := all[pid]
		if !ok {
			return st, fs.ErrNotExist
		}
		return st, nil
	}
	step := func(what string, now uint64, want time.Duration, pids ...int) {
		t.Helper()
		if got, err := t0.add(now, pids, read); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", what, got, err, want)
		}
	}
	step("at first", 1000, 0, 1, 2)
	all[1], all[2] = ProcessStat{Start: 10, Used: 103 * s}, ProcessStat{Start: 20, Used: 6 * s}
	step("both ran", 2000, 4*s, 1, 2)
	all[3], all[4] = ProcessStat{Start: 2500, Used: 2 * s}, ProcessStat{Start: 15, Used: 50 * s}
	delete(all, 2)
	step("one has ended, one has started, one has come", 3000, 6*s, 1, 2, 3, 4)
	all[3] = ProcessStat{Start: 3500, Used: s} // another process with its number
	step("a number is used again", 4000, 7*s, 1, 3, 4)
	all[1] = ProcessStat{Start: 10, Used: 90 * s}
	step("a counter went back", 5000, 7*s, 1)
	step("none is left", 6000, 7*s)
	bad := errors.New("bad")
	if _, err := t0.add(7000, []int{1}, func(int) (ProcessStat, error) { return ProcessStat{}, bad }); !errors.Is(err, bad) {
		t.Errorf("error %v", err)
	}
}
