//go:build inguest

package v2

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// A cap has its effect, is read back as written, and is undone to the byte.
func TestCaps(t *testing.T) {
	h := machine(t)
	for _, c := range []struct {
		name   string
		before string // content of cpu.max
		rate   float64
		period time.Duration
	}{
		{"a tenth", "max 100000\n", 0.1, 0},
		{"half, in a period of its own", "max 100000\n", 0.5, 250 * time.Millisecond},
		{"below a quota that is there", "80000 50000\n", 0.25, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := cgroup(t, "/quell-test-cap", "cpu.max="+c.before)
			burn(t, p, 0)
			dir, inode, w, err := h.CapWrites(p, c.rate, c.period)
			if err != nil {
				t.Fatal(err)
			}
			apply(t, h, dir, inode, w, func() {
				if got := limit(t, p); math.Abs(got-c.rate) > 1e-9 {
					t.Errorf("the limit is %v", got)
				}
				const window = 3 * time.Second
				got := rate(t, h, p, window)
				t.Logf("figure: cap %.2f, used %.3f CPU-s/s", c.rate, got)
				// One period's quota more or less may fall into the window.
				if edge := c.rate * max(c.period, 100*time.Millisecond).Seconds() / window.Seconds(); math.Abs(got-c.rate) > 0.02+edge {
					t.Errorf("capped to %g it used %.3f CPU-s/s", c.rate, got)
				}
			})
			if got := text(t, p, "cpu.max"); got != c.before {
				t.Errorf("after the undo cpu.max is %q, was %q", got, c.before)
			}
		})
	}
}

// limit is the CPU-s/s of a cgroup's cpu.max.
func limit(t *testing.T, p string) float64 {
	t.Helper()
	var quota, period float64
	if _, err := fmt.Sscan(text(t, p, "cpu.max"), &quota, &period); err != nil {
		t.Fatal(err)
	}
	return quota / period
}

// Of nested limits the lowest applies, and the kernel reports throttling only there.
func TestNestedLimits(t *testing.T) {
	h := machine(t)
	top := cgroup(t, "/quell-test-nest", inner, "cpu.max=30000 100000")
	pod := cgroup(t, top+"/pod", inner, "cpu.max=60000 50000")
	app := cgroup(t, pod+"/app", "cpu.max=80000 100000")
	burn(t, app, 0)
	if _, _, _, err := h.CapWrites(app, 0.5, 0); !errors.Is(err, host.ErrNotLower) {
		t.Errorf("a cap above the limit of a cgroup above: %v", err)
	}
	before, err := h.Throttled(top)
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	got := rate(t, h, app, 2*time.Second)
	if math.Abs(got-0.3) > 0.03 {
		t.Errorf("it used %.3f CPU-s/s, want 0.3", got)
	}
	after, err := h.Throttled(top)
	if held := (after - before).Seconds() / time.Since(begin).Seconds(); err != nil || held < 0.55 || held > 0.8 {
		t.Errorf("%s was held back %.2f of the time, %v; want 0.7", top, held, err)
	}
	for _, p := range []string{pod, app} {
		if d, err := h.Throttled(p); err != nil || d != 0 {
			t.Errorf("%s says that it was held back for %v, %v", p, d, err)
		}
	}
	dir, inode, w, err := h.CapWrites(app, 0.1, 0)
	if err != nil {
		t.Fatal(err)
	}
	apply(t, h, dir, inode, w, func() {
		if got := limit(t, app); math.Abs(got-0.1) > 1e-9 {
			t.Errorf("capped, the limit is %v", got)
		}
	})
	if got := text(t, app, "cpu.max"); got != "80000 100000\n" {
		t.Errorf("after the undo cpu.max is %q", got)
	}
}

// disk is the guest's block device: null_blk.
const disk = "/dev/nullb0"

func device(t *testing.T) host.Device {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(disk, &st); err != nil {
		t.Fatal(err)
	}
	return host.Device{Major: unix.Major(st.Rdev), Minor: unix.Minor(st.Rdev)}
}

// write is a child that writes the number of bytes in its argument to the disk.
func write() {
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	f, err := os.OpenFile(disk, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		panic(err)
	}
	const block = 64 << 10
	// O_DIRECT requires memory in whole pages.
	buf, err := unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	for at := 0; at < n; at += block {
		if _, err := f.WriteAt(buf, int64(at)); err != nil {
			panic(err)
		}
	}
}

// I/O is limited per device, the pressure shows it, and the line is removed afterwards.
func TestIOLimit(t *testing.T) {
	h, dev := machine(t), device(t)
	for _, before := range []string{"", dev.String() + " rbps=9000000 wbps=max riops=max wiops=max\n"} {
		t.Run(fmt.Sprintf("before %q", before), func(t *testing.T) {
			p := cgroup(t, "/quell-test-io")
			if before != "" {
				put(t, filepath.Join(root, p, "io.max"), before)
			}
			dir, inode, w, err := h.IOWrites(p, dev, host.IOLimit{Wbps: 2 << 20})
			if err != nil {
				t.Fatal(err)
			}
			c, err := h.OpenCgroup(sample.Unified, p)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			stalled := func() time.Duration {
				d, err := c.Stalled("io")
				if err != nil {
					t.Fatal(err)
				}
				return d
			}
			apply(t, h, dir, inode, w, func() {
				if l, err := h.IOLimit(p, dev); err != nil || l.Wbps != 2<<20 {
					t.Errorf("the limit is %+v, %v", l, err)
				}
				begin, psi := time.Now(), stalled()
				const bytes = 4 << 20
				cmd := child(t, "write", p, nil, strconv.Itoa(bytes))
				if err := cmd.Wait(); err != nil {
					t.Fatal(err)
				}
				took, pressed := time.Since(begin), stalled()-psi
				t.Logf("figure: %d bytes at 2 MiB/s took %.2f s, %.2f s of it under pressure", bytes, took.Seconds(), pressed.Seconds())
				// The throttle passes the first slice immediately.
				if took < 1700*time.Millisecond || pressed < took/2 {
					t.Errorf("4 MiB at 2 MiB/s took %v, %v of it under pressure; want 2 s", took, pressed)
				}
			})
			if got := text(t, p, "io.max"); got != before {
				t.Errorf("after the undo io.max is %q, was %q", got, before)
			}
		})
	}
}

// touch is a child that touches more memory than its limit allows.
func touch() {
	buf, err := unix.Mmap(-1, 0, 24<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	for {
		for i := 0; i < len(buf); i += 4096 {
			buf[i]++
		}
	}
}

// The pressure of each resource is that of the cgroup alone.
func TestPressure(t *testing.T) {
	h := machine(t)
	busy, calm := cgroup(t, "/quell-test-busy"), cgroup(t, "/quell-test-calm")
	full := cgroup(t, "/quell-test-full", "memory.high=12582912")
	burn(t, busy, 0)
	burn(t, busy, 0)
	child(t, "touch", full, nil)
	t.Cleanup(func() {
		t.Log(text(t, full, "memory.current"), text(t, full, "memory.high"), text(t, full, "memory.events"), text(t, full, "memory.pressure"), text(t, full, "cgroup.procs"))
	})
	for _, c := range []struct{ path, resource string }{{busy, "cpu"}, {full, "memory"}} {
		t.Run(c.resource, func(t *testing.T) {
			cg, err := h.OpenCgroup(sample.Unified, c.path)
			if err != nil {
				t.Fatal(err)
			}
			defer cg.Close()
			quelltest.Until(t, "it is pressed for 300 ms", func() bool {
				d, err := cg.Stalled(c.resource)
				if err != nil {
					t.Fatal(err)
				}
				return d > 300*time.Millisecond
			})
			// The machine's pressure is weighted by the activity of each CPU.
			machine, err := h.PSI(c.resource)
			if err != nil || machine.Some.Total == 0 {
				t.Errorf("the machine's pressure is %+v, %v", machine, err)
			}
			other, err := h.OpenCgroup(sample.Unified, calm)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			if d, err := other.Stalled(c.resource); err != nil || d != 0 {
				t.Errorf("an empty cgroup: %v, %v", d, err)
			}
		})
	}
}
