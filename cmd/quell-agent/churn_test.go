package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var (
	shipped    = flag.String("agent", "", "the agent to test; empty: it is built")
	churnCount = flag.Int("churn", 2000, "cgroups that TestChurn makes and removes")
)

// The times of the churn: an interval each second, so that a run has many.
const (
	churnTick     = 50 * time.Millisecond
	churnDuration = 500 * time.Millisecond
	churnPeriod   = time.Second
)

// TestChurn makes and removes cgroups as fast as the machine can, some with a short-lived
// process, while the agent samples them; in parallel, other tasks stay for some intervals.
// The agent must not leak: no descriptor, no watch, no dying cgroup, no memory, no
// goroutine; and every task that stayed must have its samples, including the last one.
func TestChurn(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.CgroupV1, quelltest.PerfSoftware)
	c := newChurn(t)
	alone := c.play(min(*churnCount, 5000)) // without an agent
	dir := state(t)
	file := filepath.Join(dir, "agent.yaml")
	rules := fmt.Sprintf("rules: [{match: %q, job: churn, class: batch}]\n", "/"+c.name+"/**")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	d := start(t, dir, append(settings(dir, "signals=cpi,cps,runq", "sampling.max_tax=0", "tick="+churnTick.String(), "sampling.duration="+churnDuration.String(),
		"sampling.period="+churnPeriod.String(), "record="+dir+"/trace.csv"), "--config", file)...)
	c.metrics = "http://" + regexp.MustCompile(`metrics=(127\.0\.0\.1:\d+)`).FindStringSubmatch(d.log.String())[1] + "/metrics"

	warm := c.stayers()
	c.play(min(*churnCount/4, 5000)) // one-time allocations happen now, also those for tasks that stay
	warm()
	c.idle(d)
	before := c.look(d)
	watched := c.watch(d)
	stayed := c.stayers()
	result := c.play(*churnCount)
	lives := stayed()
	series := watched()
	c.idle(d)
	// While a window is open, programs are attached, with a descriptor each.
	// The goroutines of a client's connection end some time after the client has its answer.
	const slackFDs, slackGoroutines = 2, 2 // of a scrape's connection
	var after held
	quelltest.Until(t, fmt.Sprintf("the agent holds %d descriptors and %d goroutines again, as before", before.fds, before.goroutines), quelltest.Paced(func() bool {
		after = c.look(d)
		return after.fds <= before.fds+slackFDs && after.goroutines <= before.goroutines+slackGoroutines
	}))

	t.Logf("%d cgroups at %.0f/s (%.0f/s without the agent), %d of them with a process; %d tasks stayed", result.made, result.rate, alone.rate, result.withProcess, len(lives))
	t.Logf("%-34s %12s %12s", "", "before", "after")
	for _, row := range []struct {
		name          string
		before, after int
		slack         int
	}{
		{"file descriptors", before.fds, after.fds, slackFDs},
		{"inotify watches", before.watches, after.watches, 20},
		{"goroutines", before.goroutines, after.goroutines, slackGoroutines},
		{"threads", before.threads, after.threads, 8},
		{"resident memory, KB", before.rss, after.rss, slackRSS(before.rss, 10<<10)},
		{"heap, KB", before.heap, after.heap, 8 << 10},
	} {
		t.Logf("%-34s %12d %12d", row.name, row.before, row.after)
		if row.after-row.before > row.slack {
			t.Errorf("%s: %d after %d cgroups, %d before", row.name, row.after, result.made, row.before)
		}
	}
	t.Logf("%-34s %12s %12s", "", "no agent", "agent")
	t.Logf("%-34s %12v %12v", "until no cgroup was dying, longest", alone.dying.Round(time.Millisecond), result.dying.Round(time.Millisecond))
	t.Logf("while it churned: descriptors up to %d, goroutines up to %d; resident memory and heap by quarters of the time, KB: %v", series.fds, series.goroutines, series.quarters)
	if q := series.quarters; len(q) == 4 && (q[3][0]-q[1][0] > slackRSS(q[1][0], 8<<10) || q[3][1]-q[1][1] > 8<<10) {
		t.Errorf("memory grows: by quarters %v KB", q)
	}

	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	c.checkSamples(lives, dir+"/trace.csv")
}

// slackRSS is how much resident memory may grow.
func slackRSS(from, least int) int { return max(least, from/4) }

// churn is the cgroups that are made and removed: below one in cgroup2 and one in the
// v1 cpu hierarchy.
type churn struct {
	t       *testing.T
	name    string
	tops    [2]string // in cgroup2, in v1
	metrics string
	round   int // of stayers
}

func newChurn(t *testing.T) *churn {
	c := &churn{t: t, name: fmt.Sprintf("quell-test-churn-%d", os.Getpid())}
	c.tops = [2]string{quelltest.CgroupMount(t, "") + "/" + c.name, cpuMount + "/" + c.name}
	for _, top := range c.tops {
		if err := os.Mkdir(top, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			quelltest.Until(t, "rmdir "+top, func() bool {
				left, _ := filepath.Glob(top + "/*/")
				for _, dir := range left {
					os.Remove(dir)
				}
				err := os.Remove(top)
				return err == nil || errors.Is(err, fs.ErrNotExist)
			})
		})
	}
	return c
}

// played is the result of play.
type played struct {
	made, withProcess int
	rate              float64       // cgroups a second
	dying             time.Duration // the longest that removed cgroups were kept
}

// live is how many cgroups exist at once.
const live = 64

// play makes and removes n cgroups, half in each hierarchy, one of 20 with a process.
// Five times it pauses and waits until no removed cgroup is left.
func (c *churn) play(n int) played {
	c.t.Helper()
	p := played{made: n}
	var ring [live]string
	var waited time.Duration
	began := time.Now()
	for i := range n {
		slot := &ring[i%live]
		if *slot != "" {
			c.remove(*slot)
		}
		*slot = filepath.Join(c.tops[i%2], fmt.Sprintf("c%d", i%(3*live))) // paths are reused
		if err := os.Mkdir(*slot, 0o755); err != nil {
			c.t.Fatal(err)
		}
		if i%40 < 2 {
			p.withProcess++
			c.shortProcess(*slot)
		}
		if i == n-1 {
			for _, dir := range ring {
				if dir != "" {
					c.remove(dir)
				}
			}
		}
		if (i+1)%max(1, n/5) == 0 {
			for j, dir := range ring {
				if dir != "" && i < n-1 {
					c.remove(dir)
					ring[j] = ""
				}
			}
			w := c.buried()
			waited += w
			p.dying = max(p.dying, w)
		}
	}
	p.rate = float64(n) / (time.Since(began) - waited).Seconds()
	return p
}

// buried waits until no removed cgroup is left in the kernel, and returns how long that
// took. One of the tasks that stay may be ending at that time.
func (c *churn) buried() time.Duration {
	c.t.Helper()
	began := time.Now()
	quelltest.Until(c.t, "no removed cgroup is left in "+c.tops[0], func() bool {
		text, err := os.ReadFile(c.tops[0] + "/cgroup.stat")
		if err != nil {
			c.t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "nr_dying_descendants ")
		n, _, _ := strings.Cut(rest, "\n")
		return n == "0"
	})
	return time.Since(began)
}

func (c *churn) remove(dir string) {
	c.t.Helper()
	quelltest.Until(c.t, "rmdir "+dir, func() bool {
		err := os.Remove(dir)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	})
}

// shortProcess runs a process in a cgroup; it exits at once.
func (c *churn) shortProcess(dir string) {
	c.t.Helper()
	cmd := exec.Command("/bin/true")
	if strings.HasPrefix(dir, c.tops[0]) {
		f, err := os.Open(dir)
		if err != nil {
			c.t.Fatal(err)
		}
		defer f.Close()
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
		if err := cmd.Run(); err != nil {
			c.t.Fatal(err)
		}
		return
	}
	cmd = exec.Command("/bin/cat") // it ends with its input
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	err = os.WriteFile(dir+"/cgroup.procs", []byte(strconv.Itoa(cmd.Process.Pid)), 0o644)
	in.Close()
	if err := errors.Join(err, cmd.Wait()); err != nil {
		c.t.Fatal(err)
	}
}

// life is the lifetime of a task that stays for some intervals. It starts just before
// from and is killed just after to.
type life struct {
	name     string
	from, to time.Time
}

// stay makes system calls periodically until it is killed.
func stay() {
	for {
		for range 200 {
			unix.Getppid()
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 2e6}, nil)
	}
}

// stayers runs four tasks at a time. Each stays for longer than three periods, so that it covers an
// interval and the end of the second one before it, wherever it begins. The returned function stops
// that, waits until each lane has had one task, and returns their lives.
func (c *churn) stayers() func() []life {
	c.round++
	round := c.round
	var mu sync.Mutex
	var lives []life
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for lane := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				l := life{name: fmt.Sprintf("/%s/stay-%d-%d-%d", c.name, round, lane, n)}
				dir := filepath.Join(filepath.Dir(c.tops[0]), l.name)
				if err := c.stayer(dir, 3*churnPeriod+churnDuration+time.Duration(lane*300+n%7*250)*time.Millisecond, &l); err != nil {
					c.t.Error(err)
					return
				}
				mu.Lock()
				lives = append(lives, l)
				mu.Unlock()
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	return func() []life {
		close(stop)
		wg.Wait()
		return lives
	}
}

func (c *churn) stayer(dir string, stays time.Duration, l *life) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{testMode + "=stay", "GOMAXPROCS=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd()), Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	l.from = time.Now()
	<-time.After(stays)
	l.to = time.Now()
	cmd.Process.Kill()
	cmd.Wait()
	c.remove(dir)
	return nil
}

// checkSamples compares the trace with the tasks that stayed: each task that was
// present at the start of an interval was counted in it, even if it ended before the
// interval did. If it got no CPU time it has no cost.
func (c *churn) checkSamples(lives []life, file string) {
	c.t.Helper()
	f, err := os.Open(file)
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	r, err := trace.NewReader(f)
	if err != nil {
		c.t.Fatal(err)
	}
	ends := map[sample.Millis]bool{} // of intervals
	counted := map[string][]sample.Millis{}
	for {
		var s sample.Sample
		if err := r.Read(&s); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			c.t.Fatal(err)
		}
		if s.Signal != sample.CPS {
			continue
		}
		ends[s.TS] = true
		if s.Cost == s.Cost || s.Coverage > 0 {
			counted[string(s.Task)] = append(counted[string(s.Task)], s.TS)
		}
	}
	// The trace does not have the start of an interval. A late agent opens it late: after the end
	// of the previous one, and its length before its own end. It may do so in the iteration of its
	// loop that closes the previous one, of which the first step was to look for tasks: that was
	// after the end of the one before that.
	due, missed, last := 0, 0, 0
	at := slices.Sorted(maps.Keys(ends))
	for _, l := range lives {
		for i := 2; i < len(at); i++ {
			before, end := at[i-2].Time(), at[i].Time()
			if l.from.After(before) || l.to.Before(end.Add(-churnDuration/2)) {
				continue
			}
			due++
			if l.to.Before(end) {
				last++
			}
			if !slices.Contains(counted[l.name], at[i]) {
				missed++
				c.t.Logf("%s (%s to %s) has no sample of the interval that ended at %s", l.name, l.from.Format("05.000"), l.to.Format("05.000"), end.Format("05.000"))
			}
		}
	}
	c.t.Logf("%d samples were due of tasks that stayed, %d of them of an interval that the task did not see the end of; %d are missing", due, last, missed)
	if missed > 0 || due == 0 {
		c.t.Errorf("%d of %d samples are missing", missed, due)
	}
}

// held is the resources that the agent holds.
type held struct {
	fds, watches, goroutines, threads int
	rss, heap                         int // KB; the heap size of the next garbage collection, twice the live heap
}

// idle waits until the agent follows no task.
func (c *churn) idle(d *running) {
	c.t.Helper()
	quelltest.Until(c.t, "the agent monitors no task", quelltest.Paced(func() bool {
		s, err := d.Status(c.t.Context())
		return err == nil && s.Tasks == 0
	}))
}

// look measures what the agent holds.
func (c *churn) look(d *running) held {
	c.t.Helper()
	h, err := c.tryLook(d)
	if err != nil {
		c.t.Fatal(err)
	}
	return h
}

func (c *churn) tryLook(d *running) (h held, err error) {
	proc := fmt.Sprintf("/proc/%d/", d.cmd.Process.Pid)
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		return h, err
	}
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		return h, err
	}
	h.fds = len(fds)
	for _, fd := range fds {
		info, _ := os.ReadFile(proc + "fdinfo/" + fd.Name()) // it may be closed by now
		h.watches += strings.Count(string(info), "\ninotify wd:")
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 4 * time.Minute}
	resp, err := client.Get(c.metrics)
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	if err != nil {
		return h, err
	}
	for _, v := range []struct {
		to         *int
		text, name string
	}{{&h.rss, string(status), "VmRSS:"}, {&h.threads, string(status), "Threads:"}, {&h.goroutines, string(metrics), "go_goroutines "}, {&h.heap, string(metrics), "go_memstats_next_gc_bytes "}} {
		_, rest, _ := strings.Cut(v.text, "\n"+v.name)
		var n float64
		if _, err := fmt.Sscan(rest, &n); err != nil {
			return h, fmt.Errorf("find %s: %w", v.name, err)
		}
		*v.to = int(n)
	}
	h.heap /= 1024
	return h, nil
}

// watched is the agent's maximum use while cgroups were made and removed.
type watched struct {
	fds, goroutines int
	quarters        [][2]int // medians of each quarter of the time: resident memory, heap; KB
}

// watch measures the agent periodically until the returned function is called.
func (c *churn) watch(d *running) func() watched {
	var all []held
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if h, err := c.tryLook(d); err == nil { // else the test has failed and reports why
					all = append(all, h)
				}
			}
		}
	}()
	return func() watched {
		close(stop)
		<-done
		var w watched
		for _, h := range all {
			w.fds, w.goroutines = max(w.fds, h.fds), max(w.goroutines, h.goroutines)
		}
		for q := range 4 {
			part := all[q*len(all)/4 : (q+1)*len(all)/4]
			if len(part) == 0 {
				return w
			}
			var rss, heap []int
			for _, h := range part {
				rss, heap = append(rss, h.rss), append(heap, h.heap)
			}
			slices.Sort(rss)
			slices.Sort(heap)
			w.quarters = append(w.quarters, [2]int{rss[len(rss)/2], heap[len(heap)/2]})
		}
		return w
	}
}
