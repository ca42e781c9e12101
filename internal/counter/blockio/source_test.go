package blockio

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/counter"
	"github.com/quell-dev/quell/internal/host"
	"github.com/quell-dev/quell/internal/quelltest"
	"github.com/quell-dev/quell/internal/sample"
)

const childEnv = "QUELL_BLOCKIO_CHILD"

func TestMain(m *testing.M) {
	if file := os.Getenv(childEnv); file != "" {
		if err := child(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	quelltest.Main(m)
}

const block = 4096

// child reads and writes blocks of a file, past the page cache, as many as each
// line of its input says: "r 10" or "w 10".
func child(file string) error {
	f, err := os.OpenFile(file, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	raw := make([]byte, 2*block)
	buf := raw[block-int(uintptr(unsafe.Pointer(&raw[0]))%block):][:block]
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		what, count, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.Atoi(count)
		for i := 0; i < n && err == nil; i++ {
			if what == "w" {
				_, err = f.WriteAt(buf, int64(i)*block)
			} else {
				_, err = f.ReadAt(buf, int64(i)*block)
			}
		}
		if err != nil {
			return err
		}
		fmt.Println("done")
	}
	return nil
}

const blocks = 512

// worker is a child in a cgroup.
type worker struct {
	t    testing.TB
	in   io.Writer
	done *bufio.Scanner
}

func (w worker) do(what string, n int) {
	w.t.Helper()
	fmt.Fprintln(w.in, what, n)
	if !w.done.Scan() {
		w.t.Fatal("the child has ended")
	}
}

// start runs a child in the cgroup of a directory.
func start(t testing.TB, dir string) worker {
	t.Helper()
	// Not in memory, as /tmp may be.
	tmp, err := os.MkdirTemp(".", "blockio-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })
	var st unix.Statfs_t
	if err := unix.Statfs(tmp, &st); err == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.OVERLAYFS_SUPER_MAGIC) {
		quelltest.Skip(t, "disk", fmt.Errorf("%s is on no disk of its own", tmp))
	}
	file := filepath.Join(tmp, "data")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range blocks {
		if _, err := f.WriteAt([]byte(strings.Repeat(strconv.Itoa(i%10), block)), int64(i)*block); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+file)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	if dir != "" {
		if err := os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	return worker{t, in, bufio.NewScanner(out)}
}

// target makes a cgroup; it is removed at the test's end.
func target(t testing.TB, h *host.Host, hier sample.Hierarchy, name string) counter.Target {
	t.Helper()
	root := h.Layout().Unified
	if hier == sample.V1CPU {
		root = h.Layout().V1["cpu"]
	}
	path := fmt.Sprintf("/quell-test-blockio-%d-%s", os.Getpid(), name)
	dir := filepath.Join(root, path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		quelltest.Until(t, 10*time.Second, "rmdir "+dir, func() bool { return os.Remove(dir) == nil })
	})
	cg, err := h.OpenCgroup(hier, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cg.Close() })
	return counter.Target{Key: sample.TaskKey{Hierarchy: hier, Inode: cg.Inode(), FirstSeen: 1}, Dir: dir, Members: cg.Members, Below: cg.Below}
}

func open(t testing.TB, targets ...counter.Target) *Source {
	t.Helper()
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, target := range targets {
		if err := s.Add(target); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func stop(t testing.TB, s *Source) map[sample.TaskKey]counter.Reading {
	t.Helper()
	all := map[sample.TaskKey]counter.Reading{}
	if err := s.Stop(nil, func(k sample.TaskKey, r counter.Reading) { all[k] = r }); err != nil {
		t.Fatal(err)
	}
	return all
}

// Requests are their tasks', by either hierarchy, by cgroups below, and not
// another window's; what others do is nobody's.
func TestRequestsByTask(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	reader, idle := target(t, h, sample.Unified, "reader"), target(t, h, sample.Unified, "idle")
	inner := target(t, h, sample.Unified, "reader/inner") // not followed by itself
	targets := []counter.Target{reader, idle}
	writer := reader
	if h.Layout().V1["cpu"] != "" {
		writer = target(t, h, sample.V1CPU, "writer")
		targets = append(targets, writer)
	}
	s := open(t, targets...)
	a, b, c, outside := start(t, reader.Dir), start(t, writer.Dir), start(t, inner.Dir), start(t, "")
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	a.do("r", 200)
	if writer.Key != reader.Key {
		b.do("w", 100)
	}
	c.do("r", 50)
	outside.do("r", 300)
	all := stop(t, s)
	check := func(name string, k sample.TaskKey, ops float64) {
		t.Helper()
		r, ok := all[k]
		n, _ := r.Extras.Get(sample.IOOps)
		bytes, _ := r.Extras.Get(sample.IOBytes)
		took, _ := r.Extras.Get(sample.IOTime)
		// A file system writes a little of its own for a writer.
		if !ok || n < ops || n > 1.1*ops || bytes < ops*block || bytes > 1.2*ops*block {
			t.Errorf("%s: %v, %v requests of %v bytes, want %v", name, ok, n, bytes, ops)
		}
		if r.Cost <= 0 || r.Cost > 10 || math.Abs(r.Cost*n-took) > 1e-9*took || r.Rate <= 0 || r.Reach.Len() != 1 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	check("reader", reader.Key, 250)
	if writer.Key != reader.Key {
		check("writer", writer.Key, 100)
		if !all[reader.Key].Reach.Meets(all[writer.Key].Reach) {
			t.Errorf("the tasks' files are on one disk, but they reach %v and %v", all[reader.Key].Reach, all[writer.Key].Reach)
		}
	}
	if r, ok := all[idle.Key]; !ok || !math.IsNaN(r.Cost) || r.Pressure != 0 || r.Reach == nil || r.Reach.Len() != 0 {
		t.Errorf("idle: %v, %+v", ok, r)
	}
	others := s.Others()
	if n, _ := others.Extras.Get(sample.IOOps); n < 300 {
		t.Errorf("others made %v requests, want at least 300", n)
	}

	a.do("r", 100) // in no window
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	a.do("r", 30)
	r, ok := s.Remove(reader.Key, 0)
	if n, _ := r.Extras.Get(sample.IOOps); !ok || n != 30 {
		t.Errorf("removed in an open window: %v, %+v", ok, r)
	}
	if all := stop(t, s); len(all) != len(targets)-1 {
		t.Errorf("%v", all)
	}
	if s.Lost() > 0 {
		t.Errorf("%d requests were lost", s.Lost())
	}
}

func TestWindows(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF)
	s := open(t)
	if err := s.Stop(nil, nil); err != errNotOpen {
		t.Error(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != errOpen {
		t.Error(err)
	}
	stop(t, s)
}

// More disks than are told apart reach everything, none reaches nobody.
func TestReach(t *testing.T) {
	s := &Source{number: map[uint64]int{}}
	var sum done
	var used disks
	if r := sum.reading(time.Second, used); r.Reach == nil || r.Reach.Len() != 0 {
		t.Errorf("no disk: %v", r.Reach)
	}
	s.add(&sum, &used, &blockioDone{Ops: 3, Bytes: 2 * perOp, Ns: 6e6, Disks: [4]uint64{8 << 32, 8<<32 | 16}})
	r := sum.reading(2*time.Second, used)
	if r.Reach.Len() != 2 || r.Cost != 0.002 || r.Rate != 1.5 || r.Pressure != 2.5 {
		t.Errorf("%+v", r)
	}
	s.add(&sum, &used, &blockioDone{Disks: [4]uint64{8 << 32, 254 << 32}})
	if got := sum.reading(time.Second, used).Reach.Len(); got != 3 {
		t.Errorf("%d disks, want 3", got)
	}
	s.add(&sum, &used, &blockioDone{More: 1})
	if r := sum.reading(time.Second, used); r.Reach != nil {
		t.Errorf("more disks: %v", r.Reach)
	}
}
