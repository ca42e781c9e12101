package main

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var scaleCount = flag.Int("scale", 500, "cgroups of the hostile task of TestHostileScale")

const (
	// maxLatency is how long an iteration of the agent's loop may take, but for one of a hundred.
	maxLatency = time.Second
	// maxGrowth is by how much the attack may raise the agent's peak of resident memory, MB.
	maxGrowth = 16
)

// TestHostileScale attacks an agent from all sides at once: a task makes as many cgroups as
// -scale says, and keeps and removes them; another one has its progress file on a file
// system that does not answer; and clients take all connections and descriptors that they
// get. Other tasks have all their samples. The time of the loop's iterations and the agent's
// peak of resident memory are printed, and limited for the shipped agent.
func TestHostileScale(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.CgroupV1, quelltest.PerfSoftware)
	stalled := stalledMount(t)
	c := newChurn(t)
	stuck := newLimited(t, "stuck", "-1", "wait")
	dir := state(t)
	file := filepath.Join(dir, "agent.yaml")
	rules := fmt.Sprintf("rules:\n- {match: \"/%s/stay-*\", job: stay, class: batch}\n- {match: \"/%[1]s/hostile\", job: hostile, class: batch}\n"+
		"- {match: %q, job: stuck, class: batch, progress: %q}\n", c.name, stuck.path, stalled+"/progress")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startLimited(t, dir, 512, append(settings(dir, "signals=cpt,cps,runq", "sampling.max_tax=0", "sampling.phase=fixed", "tick="+churnTick.String(),
		"sampling.duration="+churnDuration.String(), "sampling.period="+churnPeriod.String(), "record="+dir+"/trace.csv"), "--config", file)...)
	address := regexp.MustCompile(`metrics=(127\.0\.0\.1:\d+)`).FindStringSubmatch(d.log.String())[1]
	c.metrics = "http://" + address + "/metrics"

	var calm []time.Duration
	if *shipped != "" {
		measured, stayed := c.latencies(), c.stayers()
		stayed()
		calm = measured()
	}
	peakBefore := d.peak()
	measured, stayed := c.latencies(), c.stayers()
	for range 700 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "GET /metrics HTTP/1.1\r\nX-Slow: ")
	}
	began := time.Now()
	remove := c.hostile(*scaleCount)
	made := time.Since(began)
	before := d.intervals()
	quelltest.Until(t, "the agent samples while they exist", quelltest.Paced(func() bool { return d.intervals() > before+5 }))
	began = time.Now()
	remove()
	removed := time.Since(began)
	lives := stayed()
	attacked := measured()

	t.Logf("%d cgroups of one task, made in %s, removed in %s; 700 clients; a progress file that does not answer", *scaleCount, made.Round(time.Millisecond), removed.Round(time.Millisecond))
	t.Logf("%-34s %9s %9s %9s %9s", "iterations of the loop", "number", "p50", "p99", "longest")
	for _, row := range []struct {
		name string
		all  []time.Duration
	}{{"without an attack", calm}, {"under attack", attacked}} {
		if n := len(row.all); n > 0 {
			t.Logf("%-34s %9d %9s %9s %9s", row.name, n, percentile(row.all, 50), percentile(row.all, 99), percentile(row.all, 100))
		}
	}
	if p99 := percentile(attacked, 99); *shipped != "" && p99 > maxLatency {
		t.Errorf("99 of 100 iterations take up to %s, want %s", p99, maxLatency)
	}
	peak := d.peak()
	t.Logf("resident memory of the agent, peaks: %d MB before, %d MB under attack", peakBefore, peak)
	if *shipped != "" && peak > peakBefore+maxGrowth {
		t.Errorf("the attack takes %d MB of the agent's memory, want at most %d", peak-peakBefore, maxGrowth)
	}
	quelltest.Until(t, "the task with the progress file is told why it is not counted", quelltest.Paced(func() bool {
		tasks, err := d.Tasks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(tasks, func(v api.TaskView) bool { return string(v.Name) == stuck.path && strings.Contains(v.Note, "fuse") })
	}))
	if strings.Contains(d.log.String(), "too many open files") {
		t.Error("the agent had no descriptor left")
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	c.checkSamples(lives, dir+"/trace.csv")
}

// peak is the agent's peak of resident memory, MB.
func (d *running) peak() (mb int) {
	d.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nVmHWM:")
	if _, err := fmt.Sscan(rest, &mb); err != nil {
		d.t.Fatal(err)
	}
	return mb >> 10
}

// intervals is how many sampling intervals the agent has finished.
func (d *running) intervals() uint64 {
	d.t.Helper()
	s, err := d.Status(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return s.Intervals
}

// hostile makes n cgroups below that of a hostile task with a process, half of them in each
// hierarchy, and returns a function that removes them.
func (c *churn) hostile(n int) func() {
	c.t.Helper()
	var made []string
	mkdir := func(dir string) {
		c.t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil {
			c.t.Fatal(err)
		}
		made = append(made, dir)
	}
	remove := func() {
		for _, dir := range slices.Backward(made) {
			c.remove(dir)
		}
		made = nil
	}
	c.t.Cleanup(remove)
	for _, top := range c.tops {
		mkdir(top + "/hostile")
	}
	f, err := os.Open(c.tops[0] + "/hostile")
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{testMode + "=stay", "GOMAXPROCS=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd()), Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		remove()
	})
	const each = 1000 // in a directory
	for i := range n {
		dir := fmt.Sprintf("%s/hostile/%d", c.tops[i%2], i/each)
		if i%each < 2 {
			mkdir(dir)
		}
		mkdir(fmt.Sprintf("%s/%d", dir, i%each))
	}
	return func() {
		cmd.Process.Kill()
		cmd.Wait()
		remove()
	}
}

// latencies measures the iterations of the agent's loop until the returned function is called.
// Where several end between two readings, each counts as if it had taken the time of all. While
// clients take all connections, the agent may close that of a reading before it is answered.
func (c *churn) latencies() func() []time.Duration {
	var all []time.Duration
	lastTicks, lastSeconds, err := c.ticks()
	if err != nil {
		c.t.Fatal(err)
	}
	read := func() error {
		ticks, seconds, err := c.ticks()
		if err != nil {
			return err
		}
		for range int(ticks - lastTicks) {
			all = append(all, time.Duration((seconds-lastSeconds)*1e9).Round(10*time.Microsecond))
		}
		lastTicks, lastSeconds = ticks, seconds
		return nil
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(churnTick / 2)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				_ = read() // the next one covers its time
			}
		}
	}()
	return func() []time.Duration {
		c.t.Helper()
		close(stop)
		<-done
		if err := read(); err != nil {
			c.t.Fatal(err)
		}
		slices.Sort(all)
		return all
	}
}

// ticks reads how many iterations the agent's loop has made, and their time in seconds.
func (c *churn) ticks() (ticks, seconds float64, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 4 * time.Minute}
	resp, err := client.Get(c.metrics)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, 0, err
	}
	for _, v := range []struct {
		to   *float64
		name string
	}{{&ticks, "\nquell_ticks_total "}, {&seconds, "\nquell_tick_seconds_total "}} {
		_, rest, _ := strings.Cut(string(text), v.name)
		if _, err := fmt.Sscan(rest, v.to); err != nil {
			return 0, 0, fmt.Errorf("find %q: %w", v.name, err)
		}
	}
	return ticks, seconds, nil
}

// percentile of sorted times.
func percentile(all []time.Duration, p int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	return all[min(len(all)-1, len(all)*p/100)]
}
