package uprobe

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// Each input line of the programs under test says how often they call hit and in how
// many processes or threads. Then they write a line.
const (
	cSource = `#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) void hit(void) { __asm__ volatile("" ::: "memory"); }
int main(void) {
	long n, procs;
	while (scanf("%ld %ld", &n, &procs) == 2) {
		for (long p = 1; p < procs; p++)
			if (fork() == 0) {
				for (long i = 0; i < n; i++) hit();
				_exit(0);
			}
		for (long i = 0; i < n; i++) hit();
		while (wait(NULL) > 0);
		puts("done");
		fflush(stdout);
	}
}
`
	// Without os and fmt, so that other build modes build less of the library.
	goSource = `package main

import (
	"sync"
	"syscall"
)

//go:noinline
func hit() {}

func number() (n int, ok bool) {
	var b [1]byte
	for {
		if got, err := syscall.Read(0, b[:]); got != 1 || err != nil {
			return 0, false
		}
		if b[0] < '0' || b[0] > '9' {
			return n, true
		}
		n = 10*n + int(b[0]-'0')
	}
}

func main() {
	for {
		n, ok := number()
		threads, _ := number()
		if !ok {
			return
		}
		var wg sync.WaitGroup
		for range threads {
			wg.Add(1)
			go func() {
				for i := 0; i < n; i++ {
					hit()
				}
				wg.Done()
			}()
		}
		wg.Wait()
		syscall.Write(1, []byte("done\n"))
	}
}
`
)

// build makes a program of the source with a command line, in which SRC and
// OUT stand for the files.
func build(t testing.TB, source, name string, command ...string) string {
	t.Helper()
	dir := t.TempDir()
	src, out := filepath.Join(dir, name), filepath.Join(dir, "program")
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	args := strings.Fields(strings.NewReplacer("SRC", src, "OUT", out).Replace(strings.Join(command, " ")))
	if text, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, text)
	}
	return out
}

func buildC(t testing.TB, flags ...string) string {
	t.Helper()
	quelltest.Need(t, quelltest.Compiler)
	return build(t, cSource, "hit.c", append([]string{"cc -O1 -Wl,--build-id -o OUT SRC"}, flags...)...)
}

func buildGo(t testing.TB, flags ...string) string {
	t.Helper()
	quelltest.Need(t, "go")
	return build(t, goSource, "hit.go", append(append([]string{"go build"}, flags...), "-o OUT SRC")...)
}

// program runs in a cgroup and calls hit on command.
type program struct {
	t   testing.TB
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Scanner
}

func run(t testing.TB, binary, cgroup string, change ...func(*syscall.SysProcAttr)) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(binary)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{}
	if len(change) > 0 {
		p.cmd.Path = "/" + filepath.Base(binary) // in its own root
		for _, fn := range change {
			fn(p.cmd.SysProcAttr)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.cmd.Stdin = w, r
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(stdout)
	err = p.cmd.Start()
	r.Close()
	if err != nil {
		w.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Close()
		p.cmd.Wait()
	})
	if cgroup != "" {
		if err := os.WriteFile(cgroup+"/cgroup.procs", []byte(strconv.Itoa(p.cmd.Process.Pid)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p.hit(0, 1) // it runs now
	return p
}

// hit makes the program call hit n times in each of the given processes or threads.
func (p *program) hit(n, times int) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, "%d %d\n", n, times); err != nil {
		p.t.Fatal(err)
	}
	if !p.out.Scan() {
		p.t.Fatal("the program ended")
	}
}

func open(t testing.TB, name string) *os.File {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// attach attaches a probe to a function of a program.
func attach(t testing.TB, binary, symbol string) counter.Probe {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.EBPF)
	f := open(t, binary)
	offset, err := Prober{}.Find(f, &counter.Uprobe{Symbol: symbol})
	if err != nil {
		t.Fatal(err)
	}
	p, err := Prober{}.Attach(f, offset)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// Hits are counted exactly for every way to link a program, by process and in total.
func TestHitsAreCounted(t *testing.T) {
	for _, c := range []struct {
		name, symbol string
		build        func() string
	}{
		{"C", "hit", func() string { return buildC(t) }},
		{"C, fixed address", "hit", func() string { return buildC(t, "-no-pie") }},
		{"C, static", "hit", func() string { return buildC(t, "-static") }},
		{"C, stripped, exported", "hit", func() string { return buildC(t, "-s", "-rdynamic") }},
		{"Go", "main.hit", func() string { return buildGo(t) }},
		{"Go, stripped", "main.hit", func() string { return buildGo(t, `-ldflags=-s`) }},
		{"Go, PIE, stripped", "main.hit", func() string { return buildGo(t, "-buildmode=pie", `-ldflags=-s`) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			binary := c.build()
			p := attach(t, binary, c.symbol)
			a, b := run(t, binary, ""), run(t, binary, "")
			a.hit(1000, 1)
			b.hit(50, 4)
			if n, err := p.Total(); err != nil || n != 1200 {
				t.Errorf("%d hits, %v; want 1200", n, err)
			}
			by := map[int]uint64{}
			if err := p.Each(func(_ uint64, process int, hits uint64) { by[process] += hits }); err != nil {
				t.Fatal(err)
			}
			want := uint64(200) // Go: threads
			if strings.HasPrefix(c.name, "C") {
				want = 50 // the rest are its children's
			}
			if by[a.cmd.Process.Pid] != 1000 || by[b.cmd.Process.Pid] != want {
				t.Errorf("by process %v, want %d: 1000, %d: %d", by, a.cmd.Process.Pid, b.cmd.Process.Pid, want)
			}
		})
	}
}

// No hit is lost if many CPUs count for new processes at the same time.
func TestHitsRace(t *testing.T) {
	binary := buildC(t)
	p := attach(t, binary, "hit")
	a := run(t, binary, "")
	const procs, rounds, hits = 8, 50, 3
	for range rounds {
		a.hit(hits, procs)
	}
	sum := uint64(0)
	if err := p.Each(func(_ uint64, _ int, hits uint64) { sum += hits }); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Total(); err != nil || n != procs*rounds*hits || sum != n {
		t.Errorf("total %d, by process %d, %v; want %d", n, sum, err, procs*rounds*hits)
	}
}

// After Close the program continues as before, uncounted.
func TestCloseTakesItOut(t *testing.T) {
	binary := buildC(t)
	p := attach(t, binary, "hit")
	a := run(t, binary, "")
	a.hit(10, 1)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	a.hit(10, 1)
	again := attach(t, binary, "hit")
	if n, err := again.Total(); err != nil || n != 0 {
		t.Errorf("%d hits of before, %v", n, err)
	}
}

// cpuTime returns the CPU time of the first thread of a process, in ns
// (sched-stats.rst).
func cpuTime(t testing.TB, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err != nil {
		quelltest.Skip(t, quelltest.Schedstat, err)
	}
	var ns int64
	if _, err := fmt.Sscan(string(text), &ns); err != nil {
		t.Fatal(err)
	}
	return ns
}

// BenchmarkHit measures the CPU time that a hit costs the program, and that of a call
// without a probe, in one run.
func BenchmarkHit(b *testing.B) {
	const hits, calls = 200_000, 20_000_000
	binary := buildC(b)
	p := run(b, binary, "")
	each := func(n int) float64 {
		before := cpuTime(b, p.cmd.Process.Pid)
		p.hit(n, 1)
		return float64(cpuTime(b, p.cmd.Process.Pid)-before) / float64(n)
	}
	var with, without float64
	for n := 1.0; b.Loop(); n++ {
		without += (each(calls) - without) / n
		probe := attach(b, binary, "hit")
		with += (each(hits) - with) / n
		if err := probe.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(with, "ns/hit")
	b.ReportMetric(without, "ns/call")
	b.ReportMetric(with/without, "ratio")
}

func TestCapability(t *testing.T) {
	c := Capability()
	if quelltest.Probe(quelltest.EBPF) == nil && quelltest.Probe(quelltest.Root) == nil && !c.OK || !c.OK && c.Reason == "" {
		t.Errorf("%+v", c)
	}
	if err := try("/etc/hostname"); err == nil {
		t.Error("a uprobe in a text")
	}
}
