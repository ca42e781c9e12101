package counter

import (
	"bytes"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"golang.org/x/sys/unix"
)

// fakeProc is a procfs whose processes share one root directory.
type fakeProc struct {
	t    *testing.T
	dir  string
	root string
	pids []int
}

func newFakeProc(t *testing.T) *fakeProc {
	p := &fakeProc{t: t, dir: t.TempDir(), root: t.TempDir()}
	p.check(os.Mkdir(p.dir+"/self", 0o755))
	return p
}

func (p *fakeProc) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// process adds a process, or reuses a process id.
func (p *fakeProc) process(pid int, start, environ uint64, env ...string) {
	p.t.Helper()
	dir := filepath.Join(p.dir, strconv.Itoa(pid))
	if os.Mkdir(dir, 0o755) == nil {
		p.check(os.Symlink(p.root, dir+"/root"))
		p.pids = append(p.pids, pid)
	}
	p.check(os.WriteFile(dir+"/stat", []byte(statLine(pid, "a) (b c", start, environ)), 0o644))
	p.check(os.WriteFile(dir+"/environ", []byte(strings.Join(env, "\x00")+"\x00"), 0o644))
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	p.check(err)
	p.check(os.WriteFile(dir+"/mountinfo", mounts, 0o644))
}

// statLine is /proc/PID/stat with the fields that quell reads.
func statLine(pid int, comm string, start, environ uint64) string {
	fields := make([]string, 50)
	for i := range fields {
		fields[i] = "0"
	}
	fields[0] = "S"
	fields[22-3] = fmt.Sprint(start)
	fields[50-3] = fmt.Sprint(environ)
	return fmt.Sprintf("%d (%s) %s\n", pid, comm, strings.Join(fields, " "))
}

// set writes a progress file in place, as a writer does.
func (p *fakeProc) set(name string, value uint64) {
	p.t.Helper()
	f, err := os.OpenFile(p.root+name, os.O_CREATE|os.O_WRONLY, 0o644)
	p.check(err)
	defer f.Close()
	_, err = f.WriteAt(binary.LittleEndian.AppendUint64(nil, value), 0)
	p.check(err)
}

func (p *fakeProc) target(rule string) Target {
	return Target{Key: key(1), Progress: rule, Members: func() ([]int, error) { return p.pids, nil }}
}

// cpt follows one task of the fake. The test looks at it, and advances the clock.
func (p *fakeProc) cpt(rule string) *stillCPT {
	p.t.Helper()
	c := still(p.t, p.dir, nil)
	p.check(c.Add(p.target(rule)))
	return c
}

// still is a CPT whose reader does not run, and whose clock the test advances.
func still(t *testing.T, proc string, k Prober) *stillCPT {
	t.Helper()
	c, err := openCPT(proc, k)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	clock := &stillClock{}
	c.now, c.reader.now, c.probes.now = clock.now, clock.now, clock.now
	return &stillCPT{c, clock}
}

// stillCPT is a CPT whose clock the test advances.
type stillCPT struct {
	*CPT
	clock *stillClock
}

type stillClock struct{ at atomic.Int64 }

func (s *stillClock) now() time.Time { return time.Unix(0, s.at.Load()) }

// look looks at all tasks.
func (c *stillCPT) look() {
	for _, t := range c.order {
		if r, ok := t.transactions.(*reported); ok {
			c.reader.lookNow(r)
		}
	}
}

// lookNow looks at a task whenever that is due.
func (r *reader) lookNow(t *reported) {
	r.mu.Lock()
	if t.index >= 0 {
		heap.Remove(&r.waiting, t.index)
	}
	r.running++
	r.mu.Unlock()
	r.look(t)
}

// begin starts a window at a look.
func (c *stillCPT) begin(t *testing.T) {
	t.Helper()
	c.look()
	start(t, c)
}

// end ends it at a look ten seconds later.
func (c *stillCPT) end(t *testing.T, cpu CPUTime) map[sample.TaskKey]Reading {
	t.Helper()
	c.clock.at.Add(int64(10 * time.Second))
	c.look()
	return stopped(t, c, cpu)
}

func twoSeconds(sample.TaskKey) (time.Duration, bool) { return 2 * time.Second, true }

func TestCPT(t *testing.T) {
	const env = "QUELL_PROGRESS=/run/a"
	nan := math.NaN()
	for _, tc := range []struct {
		name     string
		rule     string
		setup    func(*fakeProc)
		window   func(*fakeProc) // what happens in it
		cpu      CPUTime
		absent   bool
		cost, tx float64 // tx NaN: no extra
		cover    float64
		flags    sample.Flags
	}{
		{name: "CPU time by transactions",
			setup:  func(p *fakeProc) { p.process(7, 1, 1, "HOME=/", env, "X=1"); p.set("/run/a", 1000) },
			window: func(p *fakeProc) { p.set("/run/a", 1500) },
			cost:   2.0 / 500, tx: 500, cover: 1},
		{name: "the rule's path needs no environment", rule: "/run/b",
			setup:  func(p *fakeProc) { p.process(7, 1, 1, env); p.set("/run/a", 9); p.set("/run/b", 0) },
			window: func(p *fakeProc) { p.set("/run/a", 99); p.set("/run/b", 100) },
			cost:   0.02, tx: 100, cover: 1},
		{name: "files of a task add up",
			setup: func(p *fakeProc) {
				p.process(7, 1, 1, env)
				p.process(8, 1, 1, "QUELL_PROGRESS=/run/b")
				p.set("/run/a", 10)
				p.set("/run/b", 20)
			},
			window: func(p *fakeProc) { p.set("/run/a", 40); p.set("/run/b", 90) },
			cost:   0.02, tx: 100, cover: 1},
		{name: "one file of many processes and names counts once",
			setup: func(p *fakeProc) {
				p.set("/run/a", 10)
				p.check(os.Link(p.root+"/run/a", p.root+"/run/b"))
				p.process(7, 1, 1, env)
				p.process(8, 1, 1, env)
				p.process(9, 1, 1, "QUELL_PROGRESS=/run/b")
			},
			window: func(p *fakeProc) { p.set("/run/a", 110) },
			cost:   0.02, tx: 100, cover: 1},
		{name: "a file that is removed in the window ends the count",
			setup:  func(p *fakeProc) { p.process(7, 1, 1, env); p.set("/run/a", 1) },
			window: func(p *fakeProc) { p.set("/run/a", 101); p.check(os.Remove(p.root + "/run/a")) },
			cost:   nan, tx: nan},
		{name: "a smaller value is a restart",
			setup:  func(p *fakeProc) { p.process(7, 1, 1, env); p.set("/run/a", 1000) },
			window: func(p *fakeProc) { p.set("/run/a", 3) },
			cost:   nan, tx: nan, flags: sample.Restarted},
		{name: "no transactions have no cost",
			setup:  func(p *fakeProc) { p.process(7, 1, 1, env); p.set("/run/a", 1000) },
			window: func(p *fakeProc) {},
			cost:   nan, tx: 0, cover: 1},
		{name: "unknown CPU time has no cost",
			setup:  func(p *fakeProc) { p.process(7, 1, 1, env); p.set("/run/a", 1000) },
			window: func(p *fakeProc) { p.set("/run/a", 1100) },
			cpu:    func(sample.TaskKey) (time.Duration, bool) { return 0, false },
			cost:   nan, tx: 100, cover: 1},
		{name: "truncated in the window",
			setup:  func(p *fakeProc) { p.process(7, 1, 1, env); p.set("/run/a", 1000) },
			window: func(p *fakeProc) { p.check(os.Truncate(p.root+"/run/a", 7)) },
			cost:   nan, tx: nan},
		{name: "one of two truncated in the window",
			setup: func(p *fakeProc) {
				p.process(7, 1, 1, env)
				p.process(8, 1, 1, "QUELL_PROGRESS=/run/b")
				p.set("/run/a", 10)
				p.set("/run/b", 20)
			},
			window: func(p *fakeProc) { p.set("/run/a", 40); p.check(os.Truncate(p.root+"/run/b", 0)) },
			cost:   nan, tx: nan},
		{name: "empty at first",
			setup: func(p *fakeProc) {
				p.process(7, 1, 1, env)
				p.check(os.WriteFile(p.root+"/run/a", nil, 0o644))
			},
			window: func(p *fakeProc) { p.set("/run/a", 10) },
			cost:   nan, tx: nan},
		{name: "empty all the time",
			setup: func(p *fakeProc) {
				p.process(7, 1, 1, env)
				p.check(os.WriteFile(p.root+"/run/a", nil, 0o644))
			},
			window: func(*fakeProc) {},
			cost:   nan, tx: nan},
		{name: "an empty file next to a written one is ignored",
			setup: func(p *fakeProc) {
				p.process(7, 1, 1, env)
				p.process(8, 1, 1, "QUELL_PROGRESS=/run/b")
				p.set("/run/a", 10)
				p.check(os.WriteFile(p.root+"/run/b", nil, 0o644))
			},
			window: func(p *fakeProc) { p.set("/run/a", 110) },
			cost:   0.02, tx: 100, cover: 1},
		{name: "made in the window", absent: true,
			setup:  func(p *fakeProc) { p.process(7, 1, 1, env) },
			window: func(p *fakeProc) { p.set("/run/a", 10) }},
		{name: "no process names a file", absent: true,
			setup:  func(p *fakeProc) { p.process(7, 1, 1, "HOME=/"); p.set("/run/a", 10) },
			window: func(*fakeProc) {}},
		{name: "a relative path is none", absent: true,
			setup:  func(p *fakeProc) { p.process(7, 1, 1, "QUELL_PROGRESS=run/a"); p.set("/run/a", 10) },
			window: func(*fakeProc) {}},
		{name: "a symbolic link is no progress file", absent: true,
			setup: func(p *fakeProc) {
				p.process(7, 1, 1, env)
				p.set("/run/b", 10)
				p.check(os.Symlink("b", p.root+"/run/a"))
			},
			window: func(*fakeProc) {}},
		{name: "a FIFO is no progress file and is not waited for", absent: true,
			setup: func(p *fakeProc) {
				p.process(7, 1, 1, env)
				p.check(unix.Mkfifo(p.root+"/run/a", 0o644))
			},
			window: func(*fakeProc) {}},
		{name: "a directory is no progress file", absent: true,
			setup: func(p *fakeProc) {
				p.process(7, 1, 1, env)
				p.check(os.Mkdir(p.root+"/run/a", 0o755))
			},
			window: func(*fakeProc) {}},
		{name: "a link on the way stays below the root", absent: true,
			setup: func(p *fakeProc) {
				// It leads to a directory of the host, which has such a file.
				outside := p.t.TempDir()
				p.check(os.WriteFile(outside+"/a", make([]byte, 8), 0o644))
				p.check(os.Symlink(outside, p.root+"/link"))
				p.process(7, 1, 1, "QUELL_PROGRESS=/link/a")
			},
			window: func(*fakeProc) {}},
		{name: "nor do dots lead out",
			setup: func(p *fakeProc) {
				p.set("/run/a", 10)
				p.process(7, 1, 1, "QUELL_PROGRESS=/../../../run/../../run/a")
			},
			window: func(p *fakeProc) { p.set("/run/a", 110) },
			cost:   0.02, tx: 100, cover: 1},
		{name: "a link to a directory leads on",
			setup: func(p *fakeProc) {
				p.set("/run/a", 10)
				p.check(os.Symlink("/../run", p.root+"/link"))
				p.check(os.Symlink("link", p.root+"/other"))
				p.process(7, 1, 1, "QUELL_PROGRESS=/other/./a")
			},
			window: func(p *fakeProc) { p.set("/run/a", 110) },
			cost:   0.02, tx: 100, cover: 1},
		{name: "links that lead in a circle", absent: true,
			setup: func(p *fakeProc) {
				p.check(os.Symlink("link", p.root+"/link"))
				p.process(7, 1, 1, "QUELL_PROGRESS=/link/a")
			},
			window: func(*fakeProc) {}},
		{name: "a process that is gone", absent: true,
			setup:  func(p *fakeProc) { p.pids = append(p.pids, 99) },
			window: func(*fakeProc) {}},
		{name: "as many files as are allowed",
			setup: func(p *fakeProc) {
				for i := range maxProgressFiles {
					p.set(fmt.Sprintf("/run/f%d", i), 5)
					p.process(100+i, 1, 1, fmt.Sprintf("QUELL_PROGRESS=/run/f%d", i))
				}
			},
			window: func(p *fakeProc) {
				for i := range maxProgressFiles {
					p.set(fmt.Sprintf("/run/f%d", i), 6)
				}
			},
			cost: 2.0 / maxProgressFiles, tx: maxProgressFiles, cover: 1},
		{name: "a file too many",
			setup: func(p *fakeProc) {
				for i := range maxProgressFiles + 1 {
					p.set(fmt.Sprintf("/run/f%d", i), 5)
					p.process(100+i, 1, 1, fmt.Sprintf("QUELL_PROGRESS=/run/f%d", i))
				}
			},
			window: func(*fakeProc) {},
			cost:   nan, tx: nan},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newFakeProc(t)
			p.check(os.Mkdir(p.root+"/run", 0o755))
			tc.setup(p)
			c := p.cpt(tc.rule)
			c.begin(t)
			tc.window(p)
			cpu := tc.cpu
			if cpu == nil {
				cpu = twoSeconds
			}
			r, ok := c.end(t, cpu)[key(1)]
			if ok == tc.absent {
				t.Fatalf("reading %+v, present: %v", r, ok)
			}
			if !ok {
				return
			}
			tx, has := r.Extras.Get(sample.Transactions)
			if !has {
				tx = nan
			}
			if !same(r.Cost, tc.cost) || !same(tx, tc.tx) || r.Coverage != tc.cover || r.Flags != tc.flags {
				t.Errorf("cost %v, %v transactions, coverage %v, flags %q; want %v, %v, %v, %q",
					r.Cost, tx, r.Coverage, r.Flags, tc.cost, tc.tx, tc.cover, tc.flags)
			}
		})
	}
}

// TestCPTNextWindow replaces file, program and process from window to window.
func TestCPTNextWindow(t *testing.T) {
	p := newFakeProc(t)
	p.check(os.Mkdir(p.root+"/run", 0o755))
	p.process(7, 1, 1)
	c := p.cpt("")
	window := func(file string, want float64) {
		t.Helper()
		c.begin(t)
		if file != "" {
			p.set(file, 1000)
		}
		r, ok := c.end(t, twoSeconds)[key(1)]
		tx, _ := r.Extras.Get(sample.Transactions)
		if ok != (want > 0) || tx != want {
			t.Errorf("%v transactions %v, want %v", tx, ok, want)
		}
	}
	window("", 0)
	p.process(7, 1, 2, "QUELL_PROGRESS=/run/a") // the same process executes another program
	p.set("/run/a", 900)
	window("/run/a", 100)
	p.check(os.Rename(p.root+"/run/a", p.root+"/run/old")) // the file is replaced
	p.set("/run/a", 800)
	window("/run/a", 200)
	p.process(7, 2, 2, "QUELL_PROGRESS=/run/b") // the process id is reused
	p.set("/run/b", 700)
	window("/run/b", 300)
	// An environment does not change in place, so what was read once is not read again.
	p.process(7, 2, 2, "QUELL_PROGRESS=/run/c")
	p.set("/run/c", 1)
	p.set("/run/b", 600)
	window("/run/b", 400)
	p.process(8, 1, 1, "QUELL_PROGRESS=/run/d") // a second process
	p.set("/run/b", 500)
	p.set("/run/d", 5)
	window("/run/b", 500)
}

// A task without a progress file is looked at less and less often; once it has one, some
// times in every window.
func TestCPTLooksRarelyWhereThereIsNone(t *testing.T) {
	p := newFakeProc(t)
	p.check(os.Mkdir(p.root+"/run", 0o755))
	p.process(7, 1, 1)
	c := p.cpt("")
	c.reader.random = func() float64 { return 0.5 }
	task := c.order[0].transactions.(*reported)
	c.reader.windowed(8 * time.Second)
	var pauses []time.Duration
	for range 7 {
		c.look()
		pauses = append(pauses, task.next.Sub(c.now())/time.Second)
	}
	if want := []time.Duration{16, 32, 64, 128, 256, 384, 384}; !slices.Equal(pauses, want) {
		t.Errorf("pauses of %d s, want %d", pauses, want)
	}
	p.process(7, 1, 2, "QUELL_PROGRESS=/run/a")
	p.set("/run/a", 1)
	c.look()
	if got := task.next.Sub(c.now()); got != 2*time.Second {
		t.Errorf("a pause of %s once it has a file, want a quarter of a window", got)
	}
}

func TestCPTEnvironBudget(t *testing.T) {
	p := newFakeProc(t)
	p.check(os.Mkdir(p.root+"/run", 0o755))
	for i := range maxEnvirons + 1 {
		p.process(1000+i, 1, 1, "QUELL_PROGRESS=/run/a")
	}
	p.set("/run/a", 1)
	c := p.cpt("")
	c.begin(t)
	p.set("/run/a", 2)
	if r := c.end(t, twoSeconds)[key(1)]; !math.IsNaN(r.Cost) || r.Coverage != 0 {
		t.Errorf("reading %+v with a process unknown", r)
	}
	c.begin(t)
	p.set("/run/a", 4)
	if r := c.end(t, twoSeconds)[key(1)]; r.Cost != 1 {
		t.Errorf("cost %v once all are known, want 1", r.Cost)
	}
}

// A task with more processes than are looked at is not counted, and nothing of them is read or kept.
func TestAttackManyProcesses(t *testing.T) {
	p := newFakeProc(t)
	p.check(os.Mkdir(p.root+"/run", 0o755))
	p.process(7, 1, 1, "QUELL_PROGRESS=/run/a")
	p.set("/run/a", 1)
	c := p.cpt("")
	files := c.order[0].transactions.(*reported).looker.(*progressFiles)
	for _, more := range []int{0, maxProcesses - 1, maxProcesses, 0} {
		for p.pids = p.pids[:1]; len(p.pids) <= more; {
			p.pids = append(p.pids, 1000+len(p.pids)) // ended since
		}
		l := files.look(t.Context())
		crowded := more == maxProcesses
		if crowded != errors.Is(l.err, errTooMany) || crowded != (len(files.known) == 0) || crowded != (len(l.values) == 0) {
			t.Errorf("%d processes: %+v, %d are known", 1+more, l, len(files.known))
		}
	}
}

func TestCPTRemove(t *testing.T) {
	p := newFakeProc(t)
	p.process(7, 1, 1)
	c := p.cpt("/a")
	p.set("/a", 1)
	if err := c.Add(p.target("/a")); err == nil {
		t.Error("the same key twice gave no error")
	}
	if err := c.Stop(WindowEnd{CPU: twoSeconds}, nil); err == nil {
		t.Error("Stop without a window gave no error")
	}
	c.begin(t)
	if err := c.Start(); err == nil {
		t.Error("Start in a window gave no error")
	}
	p.set("/a", 101)
	c.clock.at.Add(int64(10 * time.Second))
	c.look()
	r, ok := c.Remove(key(1), time.Second)
	if done, _ := r.Extras.Get(sample.Transactions); !ok || r.Cost != 0.01 || done != 100 {
		t.Errorf("reading %+v %v, want the last difference", r, ok)
	}
	if _, ok := c.Remove(key(1), time.Second); ok {
		t.Error("a second reading")
	}
	if n := len(stopped(t, c, twoSeconds)); n != 0 {
		t.Errorf("%d readings after Remove", n)
	}
	// Added in a window, a task is counted from the next.
	start(t, c)
	p.check(c.Add(p.target("/a")))
	if n := len(c.end(t, twoSeconds)); n != 0 {
		t.Errorf("%d readings of a task added in the window", n)
	}
	c.begin(t)
	p.set("/a", 201)
	if r := c.end(t, twoSeconds)[key(1)]; r.Cost != 0.02 {
		t.Errorf("cost %v, want 0.02", r.Cost)
	}
	if _, ok := c.Remove(key(1), 0); ok {
		t.Error("a reading without a window")
	}
}

// TestCPTOutOfFDs cannot determine whether there is a progress file, which does not
// mean that there is none.
func TestCPTOutOfFDs(t *testing.T) {
	for _, rule := range []string{"", "/a"} {
		p := newFakeProc(t)
		p.process(7, 1, 1, "QUELL_PROGRESS=/a")
		p.set("/a", 1)
		c := p.cpt(rule)
		var limit unix.Rlimit
		p.check(unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
		p.check(unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}))
		c.look()
		p.check(unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		start(t, c)
		if r, ok := c.end(t, twoSeconds)[key(1)]; !ok || !math.IsNaN(r.Cost) || r.Coverage != 0 {
			t.Errorf("rule %q: reading %+v %v, want one that was not counted", rule, r, ok)
		}
	}
}

func TestCPTMembersFail(t *testing.T) {
	p := newFakeProc(t)
	c := still(t, p.dir, nil)
	target := p.target("/a")
	target.Members = func() ([]int, error) { return nil, unix.ENODEV }
	p.check(c.Add(target))
	c.begin(t)
	if r, ok := c.end(t, twoSeconds)[key(1)]; !ok || !math.IsNaN(r.Cost) || r.Coverage != 0 {
		t.Errorf("reading %+v %v, want one that was not counted", r, ok)
	}
	if r, ok := c.Remove(key(1), 0); ok {
		t.Errorf("reading %+v after the window", r)
	}
}

func TestOpenCPTWithoutProc(t *testing.T) {
	if _, err := OpenCPT(t.TempDir(), nil); !unsupported(err) {
		t.Errorf("no procfs: %v, want a NotSupportedError", err)
	}
}

func FuzzProgressPath(f *testing.F) {
	f.Add([]byte("A=b\x00QUELL_PROGRESS=/run/a\x00"))
	f.Add([]byte("QUELL_PROGRESS="))
	f.Fuzz(func(t *testing.T, environ []byte) {
		p := progressPath(environ)
		if p == "" {
			return
		}
		if p[0] != '/' || strings.Contains(p, "\x00") || !bytes.Contains(environ, []byte("QUELL_PROGRESS="+p)) {
			t.Errorf("path %q", p)
		}
	})
}

func FuzzReadProgress(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, text []byte) {
		name := t.TempDir() + "/a"
		if err := os.WriteFile(name, text, 0o644); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		v, err := readProgress(fd)
		if errors.Is(err, errShort) != (len(text) < 8) {
			t.Errorf("%d bytes: %v", len(text), err)
		}
		if err == nil && v != binary.LittleEndian.Uint64(text) {
			t.Errorf("value %d of %x", v, text)
		}
	})
}
