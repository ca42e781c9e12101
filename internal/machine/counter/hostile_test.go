package counter

import (
	"errors"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// A malicious task: what it controls is read, and never waited for.

// bystander is a task next to the malicious one; it does 100 units of work a second.
func bystander(p *fakeProc) Target {
	p.process(8, 1, 1, "QUELL_PROGRESS=/b")
	began := time.Now()
	return Target{Key: key(2), Members: func() ([]int, error) {
		p.set("/b", uint64(time.Since(began).Seconds()*100))
		return []int{8}, nil
	}}
}

// A task whose files, or whose environment, cannot be read to the end keeps neither the
// loop's calls nor the looks at other tasks waiting. It is quarantined, and its reading says
// so.
func TestALookThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakeProc(t)
		c, err := OpenCPT(p.dir, nil)
		p.check(err)
		var looks atomic.Int32
		release := make(chan struct{})
		hangs := Target{Key: key(1), Progress: "/a", Members: func() ([]int, error) {
			looks.Add(1)
			<-release
			return nil, nil
		}}
		p.check(c.Add(hangs))
		p.check(c.Add(bystander(p)))
		for range 5 {
			<-time.After(50 * time.Second)
			before := time.Now()
			start(t, c)
			<-time.After(10 * time.Second)
			all := stopped(t, c, twoSeconds)
			if waited := time.Since(before); waited != 10*time.Second {
				t.Errorf("the window lasted %s", waited)
			}
			if r := all[key(1)]; r.Err == nil || !strings.Contains(r.Err.Error(), "quarantined for 1m0s") || !math.IsNaN(r.Cost) {
				t.Errorf("the task that hangs: %+v", r)
			}
			if r := all[key(2)]; r.Err != nil || math.Abs(r.Cost/0.002-1) > 0.01 || r.Coverage < 0.5 {
				t.Errorf("the other task: %+v", r)
			}
		}
		if n := looks.Load(); n != 1 {
			t.Errorf("%d looks at the task that hangs, want 1", n)
		}
		before := time.Now()
		p.check(c.Close())
		if waited := time.Since(before); waited != 0 {
			t.Errorf("Close waited %s", waited)
		}
		close(release)
	})
}

// However many tasks hang, the number of threads that wait is bounded, and tasks that were
// counted before go on to be counted.
func TestManyLooksThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakeProc(t)
		c, err := OpenCPT(p.dir, nil)
		p.check(err)
		p.check(c.Add(bystander(p)))
		<-time.After(time.Minute)
		release, looks := make(chan struct{}), make(chan bool, 10000)
		for n := range 1000 {
			p.check(c.Add(Target{Key: key(uint64(10 + n)), Progress: "/a", Members: func() ([]int, error) {
				looks <- true
				<-release
				return nil, nil
			}}))
		}
		<-time.After(10 * time.Minute)
		start(t, c)
		<-time.After(10 * time.Second)
		if r := stopped(t, c, twoSeconds)[key(2)]; r.Err != nil || math.IsNaN(r.Cost) {
			t.Errorf("the other task: %+v", r)
		}
		if n := len(looks); n > 64 {
			t.Errorf("%d looks hang", n)
		}
		p.check(c.Close())
		close(release)
	})
}

// Tasks that answer just before they would be quarantined keep the looks at others not waiting either.
func TestManyLooksThatAreSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakeProc(t)
		c, err := OpenCPT(p.dir, nil)
		p.check(err)
		p.check(c.Add(bystander(p)))
		for n := range 60 {
			p.check(c.Add(Target{Key: key(uint64(10 + n)), Progress: "/a", Members: func() ([]int, error) {
				<-time.After(lookLimit - 100*time.Millisecond)
				return nil, nil
			}}))
		}
		<-time.After(2 * time.Minute)
		for range 5 {
			<-time.After(50 * time.Second)
			start(t, c)
			<-time.After(10 * time.Second)
			if r := stopped(t, c, twoSeconds)[key(2)]; r.Err != nil || math.IsNaN(r.Cost) {
				t.Errorf("the other task: %+v", r)
			}
		}
		p.check(c.Close())
		<-time.After(lookLimit) // looks that have begun return
	})
}

// A task that takes a second to answer is counted all the same while no other waits for that.
func TestASlowLookIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakeProc(t)
		c, err := OpenCPT(p.dir, nil)
		p.check(err)
		slow := bystander(p)
		members := slow.Members
		slow.Members = func() ([]int, error) {
			<-time.After(time.Second)
			return members()
		}
		p.check(c.Add(slow))
		<-time.After(time.Minute)
		for range 10 {
			<-time.After(50 * time.Second)
			start(t, c)
			<-time.After(10 * time.Second)
			if r := stopped(t, c, twoSeconds)[slow.Key]; r.Err != nil || math.IsNaN(r.Cost) {
				t.Errorf("the slow task: %+v", r)
			}
		}
		p.check(c.Close())
		<-time.After(time.Second) // a look that has begun returns
	})
}

// The times at which a task sees that its file is read do not tell when a window begins or
// ends, nor whether one is open.
func TestLooksDoNotTellWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakeProc(t)
		p.process(8, 1, 1, "QUELL_PROGRESS=/b")
		c, err := OpenCPT(p.dir, nil)
		p.check(err)
		defer c.Close()
		began := time.Now()
		var mu sync.Mutex
		var looks []time.Duration
		p.check(c.Add(Target{Key: key(1), Members: func() ([]int, error) {
			mu.Lock()
			looks = append(looks, time.Since(began))
			mu.Unlock()
			p.set("/b", uint64(time.Since(began).Milliseconds()))
			return []int{8}, nil
		}}))
		<-time.After(50 * time.Second)
		start(t, c)
		<-time.After(10 * time.Second)
		stopped(t, c, twoSeconds) // from now on the length of a window is known
		mu.Lock()
		looks = nil
		mu.Unlock()
		const windows = 200
		counted := 0
		for range windows {
			<-time.After(50 * time.Second)
			start(t, c)
			<-time.After(10 * time.Second)
			if r := stopped(t, c, twoSeconds)[key(1)]; r.Err == nil && math.Abs(r.Cost/(2.0/10000)-1) < 0.01 {
				counted++
			}
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if counted != windows {
			t.Errorf("%d of %d windows were counted", counted, windows)
		}
		// A window is a sixth of the time, and so are its looks; 50 ms at its ends are 1 in 300.
		in, atEnds := 0, 0
		for _, at := range looks {
			into := at % time.Minute
			if into >= 50*time.Second {
				in++
			}
			if (into+25*time.Millisecond)%(10*time.Second) < 50*time.Millisecond && (into < 5*time.Second || into > 45*time.Second) {
				atEnds++
			}
		}
		n := float64(len(looks))
		if share := float64(in) / n; share < 0.12 || share > 0.22 || float64(atEnds) > 0.02*n {
			t.Errorf("of %.0f looks %d are in windows and %d at their ends", n, in, atEnds)
		}
	})
}

// notWaitedFor counts two tasks by uprobes, of which one has a program and a symbol for which the
// kernel k waits until release is closed. Neither the other task nor the end wait for it.
func notWaitedFor(t *testing.T, program, symbol string, k Prober, found *fakeProber, release chan struct{}) {
	p := newFakeProc(t)
	p.check(os.Mkdir(p.root+"/run", 0o755))
	p.check(os.WriteFile(p.root+"/run/a", []byte("program"), 0o755))
	p.check(os.WriteFile(p.root+"/run/b", []byte(program), 0o755))
	p.process(7, 1, 1)
	c, err := OpenCPT(p.dir, k)
	p.check(err)
	hangs, fine := uprobe(1, sample.Unified), uprobe(2, sample.Unified)
	hangs.Uprobe = &Uprobe{Binary: "/run/b", Symbol: symbol, MaxRate: 1000}
	p.check(c.Add(hangs))
	p.check(c.Add(fine))
	for i := range 3 {
		start(t, c)
		<-time.After(5 * time.Second)
		found.hit(2, 1, 50)
		<-time.After(5 * time.Second)
		all := stopped(t, c, twoSeconds)
		if r := all[fine.Key]; r.Err != nil || math.IsNaN(r.Cost) {
			t.Errorf("window %d: the other task: %+v", i, r)
		}
		if r := all[hangs.Key]; r.Err == nil || !strings.Contains(r.Err.Error(), "quarantined") {
			t.Errorf("window %d: the task that hangs: %+v", i, r)
		}
		<-time.After(time.Second)
	}
	before := time.Now()
	p.check(c.Close())
	if waited := time.Since(before); waited != 0 {
		t.Errorf("Close waited %s", waited)
	}
	close(release)
}

// A program whose symbol table cannot be read to the end costs other tasks neither their
// uprobes nor the agent its end.
func TestASearchThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, release := &fakeProber{}, make(chan struct{})
		notWaitedFor(t, "endless", "endless", hangingProber{k, release}, k, release)
	})
}

// attachingProber is a kernel that waits for a file's content before it attaches, until it is released.
type attachingProber struct {
	*fakeProber
	release chan struct{}
}

func (p attachingProber) Attach(file *os.File, offset uint64) (Probe, error) {
	if strings.HasSuffix(file.Name(), "b") {
		<-p.release
	}
	if _, err := file.Stat(); err != nil {
		return nil, err
	}
	return p.fakeProber.Attach(file, offset)
}

// To attach a probe the kernel reads the file, and that may hang although the search did not: neither
// the other tasks nor the end wait for it, and a probe that comes late is removed.
func TestAnAttachThatHangsIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, release := &fakeProber{}, make(chan struct{})
		notWaitedFor(t, "program", "work", attachingProber{k, release}, k, release)
		synctest.Wait()
		for i, probe := range k.probes {
			if !probe.closed {
				t.Errorf("probe %d is left", i)
			}
		}
	})
}

// A search that the end of a window interrupts does not hang: the next windows wait for it
// until its limit, and the task is quarantined only then.
func TestASearchLongerThanAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFakeProc(t)
		p.check(os.Mkdir(p.root+"/run", 0o755))
		p.check(os.WriteFile(p.root+"/run/a", []byte("endless"), 0o755))
		p.process(7, 1, 1)
		release := make(chan struct{})
		c, err := OpenCPT(p.dir, hangingProber{&fakeProber{}, release})
		p.check(err)
		task := uprobe(1, sample.Unified)
		task.Uprobe = &Uprobe{Binary: "/run/a", Symbol: "endless", MaxRate: 1000}
		p.check(c.Add(task))
		for i := range 8 {
			start(t, c)
			<-time.After(500 * time.Millisecond)
			r, want := stopped(t, c, twoSeconds)[task.Key], error(errAttaching)
			if i >= 6 { // the search began three seconds ago
				want = errHangs
			}
			if !errors.Is(r.Err, want) {
				t.Errorf("window %d: %v, want %v", i, r.Err, want)
			}
			synctest.Wait()
		}
		close(release)
		synctest.Wait()
		start(t, c)
		<-time.After(500 * time.Millisecond)
		if r := stopped(t, c, twoSeconds)[task.Key]; errors.Is(r.Err, errHangs) || errors.Is(r.Err, errAttaching) {
			t.Errorf("after the search: %v", r.Err)
		}
		p.check(c.Close())
	})
}

// hangingProber finds one function only when it is released.
type hangingProber struct {
	*fakeProber
	release chan struct{}
}

func (p hangingProber) Find(file io.ReaderAt, at *Uprobe) (uint64, error) {
	if at.Symbol == "endless" {
		<-p.release
	}
	return p.fakeProber.Find(file, at)
}
