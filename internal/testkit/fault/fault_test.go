package fault

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) == "" {
		quelltest.Main(m)
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, "fault:", err)
		os.Exit(1)
	}
}

var (
	workers = flag.Int("workers", 3, "points in parallel")
	only    = flag.Int("only", -1, "play only this point")
	// How soon is asked by make fault: in make test other tests run at the same time.
	patience = flag.Duration("patience", hang, "how long after deadline and next start all limits must be back")
	lateness = flag.Duration("lateness", hang, "how late a living agent may undo a cap after a single fault, besides a delay")
)

func environment(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// program is the agent as it is shipped.
func program(t *testing.T) string {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1)
	return quelltest.Program(t, "quell-agent")
}

// run plays points and returns what it prints.
func run(t *testing.T, o options) (output string, err error) {
	t.Helper()
	// If it is interrupted it still removes what it made.
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if end, ok := t.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-time.Minute))
		defer cancel()
	}
	o.patience, o.lateness = *patience, *lateness
	o.name = fmt.Sprintf("quell-test-fault-%d-%x", os.Getpid(), rand.Uint32())
	var out bytes.Buffer
	err = inject(ctx, io.MultiWriter(&out, t.Output()), o)
	return out.String(), err
}

var summary = regexp.MustCompile(`(\d+) kills at (\d+) points in .*: (\d+) wrong restores, (\d+) left-over caps, (\d+) failures of programs`)

// counts reads the last line: kills, points, wrong, left over, failures.
func counts(t *testing.T, output string) (n [5]int) {
	t.Helper()
	m := summary.FindStringSubmatch(output)
	if m == nil {
		t.Fatalf("no summary in\n%s", output)
	}
	for i := range n {
		n[i], _ = strconv.Atoi(m[i+1])
	}
	return n
}

// QUELL_TEST_KILLS is the number of points, QUELL_TEST_SEED the random seed, which repeats a
// run as far as the kernel's timing allows. make fault kills at more points.
func TestKilledAtRandomPoints(t *testing.T) {
	out, err := run(t, options{agent: program(t), kills: int(environment("QUELL_TEST_KILLS", 24)), workers: *workers, only: *only,
		seed: environment("QUELL_TEST_SEED", uint64(time.Now().UnixNano()))})
	if n := counts(t, out); err != nil || *only < 0 && n[0] < n[1]*2/3 || n[2]+n[3]+n[4] > 0 {
		t.Error(err)
	}
	for s := range scenarios {
		if !strings.Contains(out, s.String()) {
			t.Errorf("nothing is said of %q", s)
		}
	}
}

// An agent that does the wrong thing is detected.
func TestFindsWhatIsWrong(t *testing.T) {
	agent := program(t)
	for name, c := range map[string]struct {
		restore string // in place of quell-agent restore
		which   int    // of counts
	}{
		"restores nothing": {"exit 0", 3},
		"restores whatever is there": {agent + ` "$@" && ` +
			`echo -1 > /sys/fs/cgroup/cpu$(sed -n 's/.*match: "\([^"]*-task\)".*/\1/p' "$3")/cpu.cfs_quota_us`, 2},
		"caps who may not be": {agent + ` "$@" && ` +
			`echo 5000 > /sys/fs/cgroup/cpu$(sed -n 's/.*match: "\([^"]*-web\)".*/\1/p' "$3")/cpu.cfs_quota_us`, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			script := filepath.Join(t.TempDir(), "agent")
			text := "#!/bin/sh\nif [ \"$1\" = restore ]; then " + c.restore + "; exit 0; fi\nexec " + agent + ` "$@"` + "\n"
			if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
			// A point of package enforce that restores by backRestore, with the
			// quota changed meanwhile where that matters.
			for n := range 2000 {
				p := newPoint(1, n)
				if p.life == lifeEnforce && p.back == backRestore && p.target == halfUndone && p.scenario == map[int]scenario{2: foreign, 3: plain}[c.which] {
					out, err := run(t, options{kills: 1, workers: 1, only: n, seed: 1, agent: script})
					if got := counts(t, out); err == nil || got[c.which] == 0 {
						t.Errorf("%v", err)
					}
					return
				}
			}
			t.Fatal("no such point")
		})
	}
}

// The same seed gives the same points.
func TestPointsFollowFromTheSeed(t *testing.T) {
	seen := map[string]bool{}
	for n := range 1000 {
		p, q := newPoint(7, n), newPoint(7, n)
		if p.rng.Uint64() != q.rng.Uint64() {
			t.Fatalf("point %d is not reproducible", n)
		}
		p.rng, q.rng = nil, nil
		if p != q {
			t.Fatalf("point %d is %+v and %+v", n, p, q)
		}
		seen[fmt.Sprint(p.scenario, p.life)] = true
		seen[fmt.Sprint(p.target, p.life)] = true
		seen[p.back] = true
	}
	// Each scenario but one with either life, each phase with either, 4 ways back.
	if want := 2*int(scenarios) - 1 + 2*int(phases) + 4; len(seen) != want {
		t.Errorf("1000 points have %d combinations, want %d", len(seen), want)
	}
}

// The phases of a life follow from its effects alone.
func TestCourse(t *testing.T) {
	life := []effect{writeNew, syncNew, renameNew, syncDirectory, // opens
		writeIntent, syncJournal, writeLimit, writeLimit, writeApplied, syncJournal, // caps
		writeLimit, writeLimit, writeUndone, syncJournal, // its time is over
		writeIntent, syncJournal, writeLimit, writeApplied, syncJournal, writeUndone, syncJournal} // taken over
	want := []phase{rewriting, rewriteNotSynced, rewriteNotNamed, nameNotSynced,
		notIntended, intentNotSynced, intended, halfApplied, notAcknowledged, acknowledgeNotSynced,
		expired, halfUndone, notRecorded, recordNotSynced,
		notIntended, intentNotSynced, intended, notAcknowledged, acknowledgeNotSynced, notRecorded, recordNotSynced}
	var c phaseTracker
	var got []phase
	for _, e := range life {
		got = append(got, c.next(e))
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	restore := phaseTracker{}
	if p := restore.next(writeLimit); p != expired {
		t.Errorf("a restore begins with %v", p)
	}
	if p := restore.next(writeLimit); p != halfUndone {
		t.Errorf("and goes on with %v", p)
	}
}

// A program is killed before the call is made, not after.
func TestTraceKillsBeforeTheCall(t *testing.T) {
	quelltest.Need(t, quelltest.Root, "dd")
	dir := t.TempDir()
	for stop := range 3 {
		name := filepath.Join(dir, fmt.Sprint(stop))
		// dd opens, then writes three times.
		cmd := exec.Command("dd", "if=/dev/zero", "of="+name, "bs=1", "count=3", "status=none")
		writes := 0
		done := make(chan error, 1)
		var end ended
		go func() {
			var err error
			end, err = trace(cmd, func(int) {}, func(c call) action {
				to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.pid, int32(c.args[0])))
				if to != name || c.nr != unix.SYS_WRITE {
					return action{}
				}
				writes++
				return action{kill: writes > stop}
			})
			done <- err
		}()
		if err := <-done; err != nil || !end.killed {
			t.Fatalf("%+v, %v", end, err)
		}
		if info, err := os.Stat(name); err != nil || info.Size() != int64(stop) {
			t.Errorf("killed before write %d: %v, %v", stop+1, info, err)
		}
	}
}

// A call of a program fails, is made and fails, writes less or takes long, and the program sees
// just that.
func TestTraceChangesTheCall(t *testing.T) {
	quelltest.Need(t, quelltest.Root, "dd")
	if runtime.GOARCH != "amd64" {
		quelltest.Skip(t, "amd64", fmt.Errorf("this is %s", runtime.GOARCH))
	}
	dir := t.TempDir()
	for i, c := range []struct {
		do   action
		size int64
		code int
		says string
	}{
		{action{}, 8, 0, ""},
		{action{errno: unix.ENOSPC}, 0, 1, "No space left on device"},
		{action{errno: unix.EIO, after: true}, 4, 1, "Input/output error"},
		{action{short: true}, 8, 0, ""}, // dd writes the rest
		{action{delay: 50 * time.Millisecond}, 8, 0, ""},
	} {
		name, log := filepath.Join(dir, fmt.Sprint(i)), filepath.Join(dir, fmt.Sprint("log", i))
		stderr, err := os.Create(log)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("dd", "if=/dev/zero", "of="+name, "bs=4", "count=2", "status=none")
		cmd.Env, cmd.Stderr = []string{"LC_ALL=C"}, stderr
		calls, do := 0, c.do
		done := make(chan error, 1)
		var end ended
		go func() {
			var err error
			end, err = trace(cmd, func(int) {}, func(c call) action {
				to, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.pid, int32(c.args[0])))
				if to != name || c.nr != unix.SYS_WRITE {
					return action{}
				}
				if calls++; calls == 1 {
					return do
				}
				return action{}
			})
			done <- err
		}()
		err = <-done
		stderr.Close()
		text, _ := os.ReadFile(log)
		info, bad := os.Stat(name)
		if err != nil || bad != nil || end.killed || end.code != c.code || info.Size() != c.size || !strings.Contains(string(text), c.says) {
			t.Errorf("%+v: %+v, %v, %v, %q; want size %d", c.do, end, err, bad, text, c.size)
		}
	}
}

// QUELL_TEST_FAULTS is the number of faults; make fault injects more.
func TestSingleFaults(t *testing.T) {
	agent := program(t)
	if runtime.GOARCH != "amd64" {
		quelltest.Skip(t, "amd64", fmt.Errorf("this is %s", runtime.GOARCH))
	}
	_, err := run(t, options{agent: agent, kills: int(environment("QUELL_TEST_FAULTS", 16)), workers: *workers, only: *only, faults: true,
		seed: environment("QUELL_TEST_SEED", uint64(time.Now().UnixNano()))})
	if err != nil {
		t.Error(err)
	}
}

// Each kind of fault is drawn, none that the site cannot have.
func TestRandomAction(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	seen := map[string]bool{}
	for range 2000 {
		for _, site := range []string{"open journal.new", "write journal intend", "write cpu.cfs_quota_us", "fsync journal", "rename journal.new", "stat cgroup"} {
			do, text := randomAction(rng, site)
			switch {
			case do == (action{}) || text == "":
				t.Fatalf("%s: no fault", site)
			case do.short && !strings.HasPrefix(site, "write journal"):
				t.Fatalf("%s: %s", site, text)
			case do.after && strings.HasPrefix(site, "open"):
				t.Fatalf("%s: %s", site, text)
			}
			seen[fmt.Sprint(do.kill, do.errno != 0, do.after, do.short, do.delay > 0)] = true
		}
	}
	if len(seen) != 5 {
		t.Errorf("kinds %v", seen)
	}
}

// Only what is on the way of a cap is a site.
func TestSites(t *testing.T) {
	w := watched{journal: "/state/journal", cgroup: "/sys/fs/cgroup/cpu/task"}
	for file, want := range map[string]string{
		"/state/journal":                                 "fsync journal's directory",
		"/state/journal/journal.new":                     "fsync journal.new",
		"/sys/fs/cgroup/cpu/task":                        "fsync cgroup",
		"/sys/fs/cgroup/cpu/task/cpu.cfs_quota_us":       "fsync cpu.cfs_quota_us",
		"/sys/fs/cgroup/cpu/task/cpu.stat":               "",
		"/sys/fs/cgroup/cpu/task/below/cpu.cfs_quota_us": "",
		"/state/audit.jsonl":                             "",
		"socket:[4711]":                                  "",
		"":                                               "",
	} {
		if got := w.name("fsync", file); got != want {
			t.Errorf("%s: %q, want %q", file, got, want)
		}
	}
}
