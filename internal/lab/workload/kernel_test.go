package workload

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// lines is a writer that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSuffix(l.text.String(), "\n"), "\n")
}

// smallWork keeps iterations short on any machine.
func smallWork(t *testing.T, name string) Kernel {
	t.Helper()
	args := map[string]string{"cpu-burn": "-work=1000", "primes": "-work=1", "triad": "-set=48KiB", "chase": "-work=1000 -set=64KiB",
		"syscall": "-work=101", "burst": "-work=1000 -pause=1ms", "read": "-work=10 -set=64KiB -dir=."}[name]
	k, err := ParseKernel(append([]string{name, "-threads=2"}, strings.Fields(args)...))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Nothing happens before the barrier. Then both threads do equal pieces; the lines are in
// the order of their ends, and all units are in the progress file. The end of the input
// ends it.
func TestKernels(t *testing.T) {
	units := map[string]float64{"cpu-burn": 1000, "primes": 1, "triad": 48 << 10, "chase": 1000, "syscall": 101, "burst": 1000, "read": 10}
	for _, name := range KernelNames() {
		t.Run(name, func(t *testing.T) {
			var st unix.Statfs_t
			if err := unix.Statfs(".", &st); name == "read" && err == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.OVERLAYFS_SUPER_MAGIC) {
				quelltest.Skip(t, "disk", errors.New("this folder is on no disk of its own"))
			}
			in, barrier := io.Pipe()
			out := &lines{}
			path := filepath.Join(t.TempDir(), "progress")
			ended := make(chan error, 1)
			go func() { ended <- runKernel(context.Background(), smallWork(t, name), in, out, path) }()
			quelltest.Until(t, "it to be ready", func() bool {
				b, err := os.ReadFile(path)
				return err == nil && len(b) == 8
			})
			if got := out.all(); got[0] != "" {
				t.Errorf("it worked before it was let go: %q", got[0])
			}
			go io.WriteString(barrier, "\n")
			if name != "idle" {
				quelltest.Until(t, "ten iterations", func() bool { return len(out.all()) > 10 })
			}
			barrier.Close()
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if name == "idle" {
				if got := out.all(); got[0] != "" {
					t.Errorf("it did something: %q", got)
				}
				return
			}
			sum, last := 0.0, int64(0)
			for _, l := range out.all() {
				var from, to int64
				var u float64
				if n, err := fmt.Sscanf(l, "quell-lab iteration %d %d %g", &from, &to, &u); n != 3 || err != nil {
					t.Fatalf("%q: %v", l, err)
				}
				if from <= 0 || to < from || to < last {
					t.Errorf("%q: from %d to %d after %d", l, from, to, last)
				}
				if u != units[name] {
					t.Errorf("%g units, want %g", u, units[name])
				}
				sum, last = sum+u, to
			}
			b, err := os.ReadFile(path)
			if err != nil || binary.LittleEndian.Uint64(b) != uint64(sum) {
				t.Errorf("progress %d, want %g (%v)", binary.LittleEndian.Uint64(b), sum, err)
			}
		})
	}
}

// An input that ends before its first line cancels the kernel.
func TestKernelIsCalledOff(t *testing.T) {
	out := &lines{}
	if err := runKernel(context.Background(), smallWork(t, "primes"), strings.NewReader(""), out, ""); err != nil {
		t.Fatal(err)
	}
	if got := out.all(); got[0] != "" {
		t.Errorf("it worked: %q", got)
	}
}

func TestPrimes(t *testing.T) {
	// There are 1,229 primes below 10,000; sysbench begins at 3 and counts 1,228. The
	// naive count divides by every number.
	for _, most := range []uint64{3, 4, 5, 10, 26, 122, 1000, 10_000} {
		want := 0
		for c := uint64(3); c < most; c++ {
			l := uint64(2)
			for c%l != 0 {
				l++
			}
			if l == c {
				want++
			}
		}
		if got := primes(most); got != want {
			t.Errorf("below %d: %d, want %d", most, got, want)
		}
	}
	if got := primes(mostPrime); got != 1228 {
		t.Errorf("%d, want 1228", got)
	}
}

func TestParseKernel(t *testing.T) {
	for _, c := range []struct {
		args string
		want Kernel
		bad  string
	}{
		{"primes", Kernel{Name: "primes", Work: 50}, ""},
		{"chase -set=2GiB -seed=7 -threads=3", Kernel{Name: "chase", Threads: 3, Work: 1_000_000, Set: 2 << 30, Seed: 7}, ""},
		{"triad -set=96KiB", Kernel{Name: "triad", Work: 1, Set: 96 << 10}, ""},
		{"", Kernel{}, "want one of cpu-burn"},
		{"hog", Kernel{}, "want one of cpu-burn"},
		{"primes -set=1MiB", Kernel{}, "-set"},
		{"primes -work=0", Kernel{}, "-work 0"},
		{"primes more", Kernel{}, `unexpected "more"`},
		{"chase -set=64", Kernel{}, "at least 128 bytes"},
		{"chase -set=9999GiB", Kernel{}, "at most 64GiB"},
		{"chase -set=-1", Kernel{}, "at most 64GiB"},
		{"read -block=1000", Kernel{}, "-block 1000"},
		{"read -set=64KiB -block=1MiB", Kernel{}, "-block 1048576"},
		{"idle -threads=-1", Kernel{}, "-threads -1"},
		{"idle -work=5", Kernel{}, "-work"},
	} {
		got, err := ParseKernel(strings.Fields(c.args))
		if c.bad != "" {
			if err == nil || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%q: %v, want an error with %q", c.args, err, c.bad)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%q: %+v, %v, want %+v", c.args, got, err, c.want)
		}
	}
	if !slices.Contains(KernelNames(), "idle") {
		t.Error("no idle")
	}
}
