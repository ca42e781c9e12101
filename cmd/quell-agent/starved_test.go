package main

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var (
	starve  = flag.Duration("starve", 0, "for how long TestStarved measures each agent; 0: not at all")
	starver = flag.String("starver", "stress-ng --cpu 8", "what takes the CPU time meanwhile")
)

// The times of the agents that TestStarved measures: a window of half a second each second.
const (
	starvedPeriod = time.Second
	starvedLease  = 3 * time.Second // longer than an answer takes
)

// untilWhen finds in the log when a lease ends.
var untilWhen = regexp.MustCompile(`msg=capped .*until=(\S+)`)

// TestStarved measures how late the agent is while other processes want all CPU time: the share
// of its windows that are complete, and how long after its lease a cap is undone. With default
// settings, and without a preference for itself, in alternation (make bench-starved). The hogs
// are in the agent's own cgroup: there its nice value counts, and nothing else protects it.
func TestStarved(t *testing.T) {
	if *starve == 0 {
		return // a measurement, on a machine that does nothing else
	}
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1)
	// The observer must not be late itself.
	runtime.LockOSThread()
	if err := unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), -20); err != nil {
		t.Fatal(err)
	}
	c := newLimited(t, "starved", "-1", "burn")
	args := strings.Fields(*starver)
	hogs := exec.Command(args[0], args[1:]...)
	hogs.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	if err := hogs.Start(); err != nil {
		t.Fatal(err)
	}
	defer hogs.Wait()
	defer hogs.Process.Signal(unix.SIGTERM)
	var kept []float64
	for range 2 {
		for _, nice := range []string{"0", "-5"} {
			share, late := measureStarved(t, c, nice)
			slices.Sort(late)
			t.Logf("nice %s: %.2f %% of windows complete; %d caps undone, late by %v (median), %v (longest)", nice, 100*share, len(late), late[len(late)/2], late[len(late)-1])
			if nice != "0" {
				kept = append(kept, share)
				if late[len(late)-1] > time.Second {
					t.Errorf("a cap was undone %v late", late[len(late)-1])
				}
			}
		}
	}
	if slices.Min(kept) < 0.99 {
		t.Errorf("%v of the windows were complete", kept)
	}
}

// measureStarved runs an agent that gives itself a nice value.
func measureStarved(t *testing.T, c *limited, nice string) (share float64, late []time.Duration) {
	dir := state(t)
	d := start(t, dir, append(settings(dir, "signals=cpt,runq", "sampling.period="+starvedPeriod.String(), "sampling.duration=500ms", "tick=500ms", "sampling.phase=fixed",
		"enforce.mode=on", "nice="+nice), "--config", configFile(t, dir, c.path))...)
	windows := func() float64 {
		s, err := d.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return float64(s.Intervals)
	}
	begin, before := time.Now(), windows()
	for time.Since(begin) < *starve {
		d.capFor(c, starvedLease)
		quelltest.Until(t, "the cap is undone", func() bool { return c.quota() == "-1 100000" })
		undone := time.Now()
		all := untilWhen.FindAllStringSubmatch(d.log.String(), -1)
		until, err := time.Parse(time.RFC3339Nano, all[len(all)-1][1])
		if err != nil {
			t.Fatal(err)
		}
		late = append(late, max(0, undone.Sub(until)).Round(time.Millisecond))
	}
	share = (windows() - before) / (float64(time.Since(begin)) / float64(starvedPeriod))
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	<-d.ended
	return share, late
}
