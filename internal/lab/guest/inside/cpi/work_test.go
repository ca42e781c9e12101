//go:build inguest

package cpi

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"golang.org/x/sys/unix"
)

const (
	root      = "/sys/fs/cgroup"
	workerEnv = "QUELL_TEST_SPIN"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerEnv) != "" {
		serve()
		os.Exit(0)
	}
	quelltest.Main(m)
}

// serve is the worker: for each number on its standard input it has that many
// instructions executed, and prints how many nanoseconds of CPU time that took. The clock
// of the machine would count what else ran on its CPU.
func serve() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		n, err := strconv.ParseUint(in.Text(), 10, 64)
		if err != nil {
			panic(err)
		}
		pid := spawn(n / perTurn)
		if pid < 0 {
			panic(unix.Errno(-pid))
		}
		var used unix.Rusage
		if _, err := unix.Wait4(pid, nil, 0, &used); err != nil {
			panic(err)
		}
		fmt.Println(used.Utime.Nano() + used.Stime.Nano())
	}
}

func now() int64 {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return t.Nano()
}

// worker is a process in its own cgroup.
type worker struct {
	t   *testing.T
	dir string
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Scanner
}

func work(t *testing.T) *worker {
	t.Helper()
	dir, err := os.MkdirTemp(root, "quell-test-")
	if err != nil {
		t.Fatal(err)
	}
	cgroup, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cgroup.Close()
	w := &worker{t: t, dir: dir, cmd: exec.Command("/proc/self/exe")}
	w.cmd.Env = append(os.Environ(), workerEnv+"=1", "GOMAXPROCS=1")
	w.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd())}
	in, err := w.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.in, w.out = in.(*os.File), bufio.NewScanner(out)
	t.Cleanup(func() {
		if err := os.WriteFile(dir+"/cgroup.kill", []byte("1"), 0); err != nil {
			t.Error(err)
		}
		w.cmd.Wait()
		quelltest.Until(t, dir+" can be removed", func() bool {
			err := unix.Rmdir(dir)
			return err == nil || errors.Is(err, unix.ENOENT)
		})
	})
	w.spin(perTurn) // completes its start
	return w
}

// endless is more instructions than any test waits for.
const endless = 1 << 62

// tell makes the worker execute n instructions and does not wait.
func (w *worker) tell(n uint64) {
	w.t.Helper()
	if _, err := fmt.Fprintln(w.in, n); err != nil {
		w.t.Fatal(err)
	}
}

// spin makes the worker execute n instructions and returns the CPU time of that.
func (w *worker) spin(n uint64) time.Duration {
	w.t.Helper()
	w.tell(n)
	if !w.out.Scan() {
		w.t.Fatalf("the worker ended: %v", w.out.Err())
	}
	ns, err := strconv.ParseInt(w.out.Text(), 10, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return time.Duration(ns)
}

// follow opens the product's CPI source for some workers.
func follow(t *testing.T, workers ...*worker) *counter.Perf {
	t.Helper()
	p, err := counter.OpenCPI(sample.SetOf(0), root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	for i, w := range workers {
		if err := p.Add(counter.Target{Key: key(i), PerfDir: w.dir}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func key(i int) sample.TaskKey { return sample.TaskKey{Inode: uint64(i + 1), FirstSeen: 1} }

func start(t *testing.T, p *counter.Perf) {
	t.Helper()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
}

// stop ends the window and returns its readings by the worker's index.
func stop(t *testing.T, p *counter.Perf) map[int]counter.Reading {
	t.Helper()
	got := map[int]counter.Reading{}
	if err := p.Stop(counter.WindowEnd{}, func(k sample.TaskKey, r counter.Reading) { got[int(k.Inode)-1] = r }); err != nil {
		t.Fatal(err)
	}
	return got
}

func extra(t *testing.T, r counter.Reading, e sample.Extra) float64 {
	t.Helper()
	v, ok := r.Extras.Get(e)
	if !ok {
		t.Fatalf("reading %+v lacks %v", r, e)
	}
	return v
}

// setting is a number that the host passes to this test, as NAME=n in its environment.
func setting(t *testing.T, name string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(strings.TrimSpace(os.Getenv(name)), 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// kernelPart counts the instructions that the kernel executes on behalf of a worker, with
// a separate event. Only the loop's instructions are known in advance, not those of timer
// ticks and system calls.
func kernelPart(t *testing.T, w *worker) (read func() float64) {
	t.Helper()
	cgroup, err := os.Open(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cgroup.Close()
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_HARDWARE, Config: unix.PERF_COUNT_HW_INSTRUCTIONS,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})), Bits: unix.PerfBitExcludeUser}
	fd, err := unix.PerfEventOpen(&attr, int(cgroup.Fd()), 0, -1, unix.PERF_FLAG_PID_CGROUP|unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	event := os.NewFile(uintptr(fd), "instructions:k")
	t.Cleanup(func() { event.Close() })
	now := func() float64 {
		buf := make([]byte, 8)
		if _, err := event.Read(buf); err != nil {
			t.Fatal(err)
		}
		return float64(binary.NativeEndian.Uint64(buf))
	}
	before := now()
	return func() float64 { return now() - before }
}
