package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The test binary is also its children: a busy loop, a guard, and a lab that holds a
// load until it is killed.
const childEnv = "QUELL_LOAD_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "":
		quelltest.Main(m)
	case "burn":
		for x := 0; ; x++ {
		}
	case "guard":
		if err := GuardMain(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "lab":
		fmt.Fprintln(os.Stderr, labThatHolds(os.Args[1], os.Args[2]))
		os.Exit(1)
	}
}

func self(kind string) []string {
	return []string{"/usr/bin/env", childEnv + "=" + kind, os.Args[0]}
}

func labThatHolds(how, dir string) error {
	guard, err := StartGuard(self("guard")...)
	if err != nil {
		return err
	}
	a, err := actuator(how, dir, guard)
	if err != nil {
		return err
	}
	fmt.Println("holding")
	begin := time.Now()
	half := func() (time.Duration, error) { return time.Since(begin) / 2, nil } // so that it is stopped half of the time
	return Hold(context.Background(), a, half, []Level{{0.5, time.Now().Add(time.Hour)}}, Options{CPUs: 1, Period: 3 * time.Millisecond}, nil)
}

func actuator(how, dir string, g *Guard) (Actuator, error) {
	if how == "signals" {
		return NewSignals(filepath.Join(dir, "cgroup.procs"), g), nil
	}
	return OpenFreezer(dir, g)
}

// freezers returns the hierarchies of this machine that have a freezer.
func freezers(t *testing.T) map[string]string {
	t.Helper()
	quelltest.Need(t, quelltest.Root)
	all := map[string]string{}
	for name, root := range map[string]string{"cgroup2": "/sys/fs/cgroup", "unified": "/sys/fs/cgroup/unified", "v1": "/sys/fs/cgroup/freezer"} {
		dir := filepath.Join(root, fmt.Sprintf("quell-test-load-%d", os.Getpid()))
		if !isCgroup(root) || os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { quelltest.Until(t, "the cgroup is gone", func() bool { return removed(dir) }) })
		all[name] = dir
	}
	if len(all) == 0 {
		quelltest.Skip(t, "cgroup-freezer", ErrNoFreezer)
	}
	return all
}

func isCgroup(root string) bool {
	_, err := os.Stat(filepath.Join(root, "cgroup.procs"))
	return err == nil
}

func removed(dir string) bool {
	err := unix.Rmdir(dir)
	return err == nil || errors.Is(err, unix.ENOENT)
}

// burner is a busy process in a cgroup, on the last CPU.
func burner(t *testing.T, dir string) int {
	t.Helper()
	argv := self("burn")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	t.Cleanup(func() {
		_ = unix.Kill(pid, unix.SIGCONT)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if err := host.WriteFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
		t.Fatal(err)
	}
	return pid
}

// cpuTime is the CPU time of a process: clock_gettime(2) of its CPU clock.
func cpuTime(pid int) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		var ts unix.Timespec
		err := unix.ClockGettime(int32(^pid<<3|2), &ts)
		return time.Duration(ts.Nano()), err
	}
}

// With each actuator the achieved load is the law's, and the role runs on afterwards.
// docs/lab.md has the accuracy on a quiet machine.
func TestHoldARealProcess(t *testing.T) {
	for name, dir := range freezers(t) {
		for _, how := range []string{"freezer", "signals"} {
			if how == "signals" && name == "v1" {
				continue
			}
			t.Run(name+" "+how, func(t *testing.T) {
				pid := burner(t, dir)
				a, err := actuator(how, dir, nil)
				if err != nil {
					t.Fatal(err)
				}
				used := cpuTime(pid)
				begin := time.Now()
				before, err := used()
				if err != nil {
					t.Fatal(err)
				}
				const share = 0.2
				var sum, most, covered time.Duration // most is the maximum of one period
				last := Period{}
				err = Hold(t.Context(), a, used, []Level{{share, begin.Add(2 * time.Second)}}, Options{CPUs: 1, Tolerance: 0.01}, func(p Period) {
					sum, covered, most = sum+p.Used, covered+p.Length, max(most, p.Used)
					last = p
				})
				if err != nil {
					t.Fatal(err)
				}
				after, err := used()
				if err != nil {
					t.Fatal(err)
				}
				outside := time.Since(begin) - covered
				// Other processes may use the CPU here, so less is possible. If the lab
				// itself is late a period has more; the next ones compensate.
				if got, bound := sum.Seconds(), (share+0.03)*last.At.Sub(begin).Seconds()+2*most.Seconds(); got > bound || got <= 0 {
					t.Errorf("used %.3f s of a CPU at a share of %.2f, want at most %.3f; the most in a period was %s", got, share, bound, most)
				}
				if d := after - before - sum; d < 0 || d > outside+10*time.Millisecond {
					t.Errorf("the periods add up to %s, used %s, %s passed outside of them", sum, after-before, outside)
				}
				quelltest.Until(t, "it runs on", func() bool { now, _ := used(); return now > after+20*time.Millisecond })
			})
		}
	}
}

// A kill -9 of the lab at any moment leaves no process stopped.
func TestGuardLetsGo(t *testing.T) {
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for name, dir := range freezers(t) {
		for _, how := range []string{"freezer", "signals"} {
			if how == "signals" && name == "v1" {
				continue
			}
			t.Run(name+" "+how, func(t *testing.T) {
				used := cpuTime(burner(t, dir))
				for range 8 {
					argv := append(self("lab"), how, dir)
					lab := exec.Command(argv[0], argv[1:]...)
					out, err := lab.StdoutPipe()
					if err != nil {
						t.Fatal(err)
					}
					if err := lab.Start(); err != nil {
						t.Fatal(err)
					}
					if _, err := out.Read(make([]byte, 16)); err != nil {
						t.Fatal(err)
					}
					spin(time.Duration(r.Int64N(int64(12 * time.Millisecond))))
					if err := lab.Process.Kill(); err != nil {
						t.Fatal(err)
					}
					_ = lab.Wait()
					at, err := used()
					if err != nil {
						t.Fatal(err)
					}
					quelltest.Until(t, "the guard lets it go", func() bool { now, _ := used(); return now > at })
				}
			})
		}
	}
}

// spin passes a random time without a timer.
func spin(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
	}
}

func TestHoldEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := &fake{}
	n := 0
	err := Hold(ctx, a, func() (time.Duration, error) { return a.used, nil }, []Level{{0.5, time.Now().Add(time.Hour)}},
		Options{CPUs: 1, Period: time.Millisecond}, func(p Period) {
			if a.used += p.Length / 2; n == 20 {
				cancel()
			}
			n++
		})
	if !errors.Is(err, context.Canceled) || a.stopped {
		t.Errorf("%v; stopped: %t", err, a.stopped)
	}
}

// The levels are held one after another; 0 and 1 are loads like any other.
func TestHoldFollowsLevels(t *testing.T) {
	// A machine that stops for longer than a level skips that level. A period that begins late
	// makes up for that, by a duty of up to 1.
	for length := 10 * time.Millisecond; ; length *= 10 {
		a, duties := followLevels(t, length)
		half := slices.ContainsFunc(duties[0.5], func(d float64) bool { return d > 0 && d < 1 })
		if (len(duties) < 3 || !half) && length < 10*time.Second {
			continue
		}
		for _, d := range duties[0] {
			if d != 0 {
				t.Errorf("duty %g at a target of 0", d)
			}
		}
		if len(duties) != 3 || duties[1][0] != 1 || !half || duties[0.5][0] <= 0 {
			t.Errorf("duties %v", duties)
		}
		if a.goes == 0 || a.stopped {
			t.Errorf("%+v", a)
		}
		return
	}
}

// followLevels holds three levels of the given length and returns the duties of each
// target.
func followLevels(t *testing.T, length time.Duration) (*fake, map[float64][]float64) {
	t.Helper()
	a := &fake{}
	begin := time.Now()
	levels := []Level{{0, begin.Add(length)}, {1, begin.Add(2 * length)}, {0.5, begin.Add(3 * length)}}
	duties := map[float64][]float64{}
	err := Hold(t.Context(), a, func() (time.Duration, error) { return a.used, nil }, levels, Options{CPUs: 1, Period: time.Millisecond}, func(p Period) {
		a.used += time.Duration(p.Duty * float64(time.Millisecond))
		duties[p.Target] = append(duties[p.Target], p.Duty)
	})
	if err != nil {
		t.Fatal(err)
	}
	return a, duties
}

type fake struct {
	used    time.Duration
	stopped bool
	goes    int
}

func (f *fake) Stop() error     { f.stopped = true; return nil }
func (f *fake) Continue() error { f.stopped = false; f.goes++; return nil }

// The loads of several parts are held at the same time, and each registers with the one guard:
// each gets its own confirmation.
func TestGuardForSeveralParts(t *testing.T) {
	toGuard, pipe := io.Pipe()
	said, fromGuard := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(GuardMain(toGuard, fromGuard), fromGuard.Close()) }()
	g := &Guard{pipe: pipe, said: bufio.NewReader(said)}
	var wg sync.WaitGroup
	for part := range 4 {
		wg.Go(func() {
			for i := range 50 {
				if err := g.watch("nothing", fmt.Sprint(part, " ", i), ""); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(pipe.Close(), <-ended); err != nil {
		t.Error(err)
	}
	if _, err := g.said.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("a confirmation is left: %v", err)
	}
}

func TestGuardKnowsAProcessFromALaterOne(t *testing.T) {
	in := fmt.Sprintf("pid %q %q\nwrite \"/no/such/file\" \"0\"\npid \"7", strconv.Itoa(os.Getpid()), "not its start time")
	var out strings.Builder
	if err := GuardMain(strings.NewReader(in), &out); err != nil {
		t.Error(err)
	}
	if out.String() != "ok\nok\n" {
		t.Errorf("said %q", out.String())
	}
}
