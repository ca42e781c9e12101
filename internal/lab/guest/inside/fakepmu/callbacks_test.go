//go:build inguest

package fakepmu

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bperf"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// pass sends a byte to descriptor 4 and receives one from descriptor 3, as often as a line of
// the input says, and then prints how many nanoseconds that took; or returns each byte.
func pass(first bool) error {
	runtime.LockOSThread()
	var b [1]byte
	for lines := bufio.NewScanner(os.Stdin); ; {
		n, began := 1, time.Now()
		if first {
			if !lines.Scan() {
				return nil
			}
			var err error
			if n, err = strconv.Atoi(lines.Text()); err != nil {
				return err
			}
		}
		for range n {
			if first {
				if _, err := unix.Write(4, b[:]); err != nil {
					return err
				}
			}
			if k, err := unix.Read(3, b[:]); err != nil || k == 0 {
				return err
			}
			if !first {
				if _, err := unix.Write(4, b[:]); err != nil {
					return err
				}
			}
		}
		if first {
			fmt.Println(time.Since(began).Nanoseconds())
		}
	}
}

// calls is how often perf has called the PMU.
type calls struct{ add, del, start, stop, read float64 }

func callsNow(t *testing.T) (c calls) {
	t.Helper()
	_, line, _ := strings.Cut(read(t, table), "# calls: ")
	if _, err := fmt.Sscanf(line, "add %g, del %g, start %g, stop %g, read %g", &c.add, &c.del, &c.start, &c.stop, &c.read); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return c
}

func (c calls) since(o calls, switches float64) calls {
	return calls{(c.add - o.add) / switches, (c.del - o.del) / switches, (c.start - o.start) / switches, (c.stop - o.stop) / switches, (c.read - o.read) / switches}
}

func switchesNow(t *testing.T) float64 {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, "/proc/stat"), "\nctxt ")
	text, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCallbacks: two tasks on one CPU pass a byte back and forth. Some of the machine's switches
// are between threads of one task, where neither way does anything. In cgroup mode perf takes the
// events of one task off the PMU and puts those of the other on it at each switch; by eBPF it
// only reads each event once.
func TestCallbacks(t *testing.T) {
	dirs := [2]string{filepath.Join(cgroupRoot, "quell-test-ping"), filepath.Join(cgroupRoot, "quell-test-echo")}
	var keys [2]sample.TaskKey
	for i, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			quelltest.Until(t, dir+" can be removed", func() bool { return os.Remove(dir) == nil })
		})
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = sample.TaskKey{Inode: info.Sys().(*syscall.Stat_t).Ino}
	}
	model{CPI: 1.5, MPKI: 2}.set(t, dirs[0])
	model{CPI: 2.5, MPKI: 2}.set(t, dirs[1])

	aIn, bOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	bIn, aOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	begin := func(what, dir string, in, out *os.File) *quelltest.Child {
		cmd := exec.Command("/proc/self/exe", what)
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		cmd.ExtraFiles = []*os.File{in, out}
		c := quelltest.StartChild(t, cmd, dir)
		var set unix.CPUSet
		set.Set(1)
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", c.PID))
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			tid, _ := strconv.Atoi(filepath.Base(thread))
			if err := unix.SchedSetaffinity(tid, &set); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	begin("echo", dirs[1], bIn, bOut)
	ping := begin("ping", dirs[0], aIn, aOut)
	for _, f := range []*os.File{aIn, aOut, bIn, bOut} {
		f.Close()
	}
	ping.Ask(100) // their runtimes have all threads

	p, err := counter.OpenCPI(sample.SetOf(0, 1), cgroupRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b, err := bperf.Open(p.Events(), p.Info(), sample.SetOf(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	none := func() ([]uint64, error) { return nil, nil }
	events := float64(len(p.Events()))
	for _, c := range []struct {
		name string
		s    counter.Source
	}{{"in cgroup mode", p}, {"by eBPF", b}} {
		for i, dir := range dirs {
			if err := c.s.Add(counter.Target{Key: keys[i], Dir: dir, PerfDir: dir, Below: none}); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.s.Start(); err != nil {
			t.Fatal(err)
		}
		before, switches := callsNow(t), switchesNow(t)
		took, err := strconv.ParseFloat(ping.Ask(2000), 64)
		if err != nil {
			t.Fatal(err)
		}
		n := switchesNow(t) - switches
		each := callsNow(t).since(before, n)
		got := map[sample.TaskKey]counter.Reading{}
		if err := c.s.Stop(counter.WindowEnd{}, func(k sample.TaskKey, r counter.Reading) { got[k] = r }); err != nil {
			t.Fatal(err)
		}
		t.Logf("figure: %s, %.0f switches/s, calls of the PMU a switch of any kind: add %.2f, del %.2f, start %.2f, stop %.2f, read %.2f of %g events; CPI %.4f and %.4f, modelled 1.5 and 2.5",
			c.name, n/took*1e9, each.add, each.del, each.start, each.stop, each.read, events, got[keys[0]].Cost, got[keys[1]].Cost)
		// At so many switches the time of a switch itself, which the two models divide
		// differently, is seen in either way.
		for i, want := range []float64{1.5, 2.5} {
			if r := got[keys[i]]; !near(r.Cost, want, 0.02) || r.Coverage != 1 {
				t.Errorf("%s: CPI %v, want %v: %+v", c.name, r.Cost, want, r)
			}
		}
		switch {
		case n < 4000:
			t.Errorf("%s: %v switches", c.name, n)
		case c.s == counter.Source(b) && (each.add+each.del+each.start+each.stop > 0 || each.read > events):
			t.Errorf("by eBPF: %+v a switch", each)
		case c.s == counter.Source(p) && each.add+each.start == 0:
			t.Errorf("in cgroup mode: %+v a switch: this test does not see the calls", each)
		}
	}
}
