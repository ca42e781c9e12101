package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/quell-dev/quell/internal/core/sample"
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

// TestAttackTallyOfManyProcesses: a task's processes take a bounded time of the loop where the kernel keeps no CPU time of
// its cgroup, and what they use counts again when they are fewer.
func TestAttackTallyOfManyProcesses(t *testing.T) {
	a := &txtar.Archive{}
	add := func(name, text string) { a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(text)}) }
	stat := func(pid, ticks int) string {
		return fmt.Sprintf("%d (c) S 1 1 1 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 5 0 0\n", pid, ticks)
	}
	add("proc/self/mountinfo", "26 23 0:23 / /cpu rw - cgroup cgroup rw,cpu\n")
	add("proc/7/stat", stat(7, 100))
	add("proc/8/stat", stat(8, 100))
	add("cpu/x/cpu.stat", "nr_periods 0\n")
	add("cpu/x/cgroup.procs", "7\n8\n")
	x := open(t, unpack(t, a), sample.V1CPU, "/x")
	step := func(what, procs string, want time.Duration, refused bool) {
		t.Helper()
		for name, text := range map[string]string{"cpu/x/cgroup.procs": procs, "proc/7/stat": stat(7, 100+int(want/(10*time.Millisecond)))} {
			if err := os.WriteFile(x.h.Path("/"+name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := x.tallyOf(2)
		if (err != nil) != refused || err == nil && got != want {
			t.Errorf("%s: %v, %v; want %v", what, got, err, want)
		}
	}
	step("at first", "7\n8\n", 0, false)
	step("too many", "7\n8\n9\n", time.Second, true)
	step("they are fewer", "7\n8\n", 2*time.Second, false)
}
