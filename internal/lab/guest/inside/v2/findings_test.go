//go:build inguest

package v2

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/people/report"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// suffering is a way to slow the victim down, with the expected finding.
type suffering struct {
	name    string
	variant string                      // of runq
	uid     int                         // user ID of the agent and the scene
	before  func(*testing.T)            // initial condition; may be nil
	suffer  func(t *testing.T, web int) // web is the victim's process
	kind    detect.Kind
	words   string // text of the incident for people
	note    string // part of the victim's note
}

// A victim suffers although no neighbour causes it, while another task is loud in the
// same intervals: each cause has its own text, in incidents and in metrics, and no task
// is blamed. The last case is the control with a real neighbour.
func TestFindings(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	// CPU 1 is reserved for the victim: anything else on it would be a neighbour.
	if err := keepTo(0); err != nil {
		t.Fatal(err)
	}
	quota := func(path string) func(*testing.T, int) {
		return func(t *testing.T, _ int) {
			burn(t, loud, 0)
			put(t, filepath.Join(root, path, "cpu.max"), "50000 100000")
		}
	}
	const own = "own-quota: the task ran into its own CPU quota; no neighbour is to blame"
	const above = "own-quota: the CPU quota of " + pod + ", a cgroup above the task, throttled it; no neighbour is to blame"
	for _, c := range []suffering{
		{name: "own quota", variant: "bpf", suffer: quota(victim), kind: detect.OwnQuota, words: own},
		{name: "quota above", variant: "bpf", suffer: quota(pod), kind: detect.OwnQuota, words: above, note: pod},
		{name: "quota above, by schedstat", variant: "schedstat", uid: user, suffer: quota(pod), kind: detect.OwnQuota, words: above, note: pod},
		{name: "waits for itself", variant: "bpf", suffer: func(t *testing.T, _ int) { burn(t, loud, 0); burn(t, victim, 1) },
			kind: detect.SelfWait, words: "self-wait: the task's threads waited for each other; no neighbour is to blame"},
		{name: "stolen time, by made-up counters", variant: "bpf", suffer: func(t *testing.T, _ int) { steal(t); burn(t, loud, 1) },
			kind: detect.Steal, words: "steal: the hypervisor took the CPU; the antagonist is another VM"},
		// A task that was loud before is still loud, with less CPU than before: the
		// correlation accuses it although it did nothing.
		{name: "goes where somebody is loud", variant: "bpf", before: func(t *testing.T) { burn(t, loud, 2) },
			suffer: func(t *testing.T, web int) { move(t, web, 2) }, kind: detect.PhaseChange,
			words: "phase-change (less-cpu): the task's own behaviour changed; no task is accused"},
		{name: "a neighbour", variant: "bpf", suffer: func(t *testing.T, _ int) { burn(t, loud, 1) }, kind: detect.Neighbour, words: "neighbour: 1 antagonist among"},
	} {
		t.Run(c.name, func(t *testing.T) { c.play(t) })
	}
}

func (c suffering) play(t *testing.T) {
	stage(t, c.uid)
	a := startAgent(t, c.uid)
	if c.before != nil {
		c.before(t)
	}
	web := burn(t, victim, 1) // not earlier: the agent needs seconds of CPU to start
	if s := a.status(); len(s.Signals) != 1 || s.Signals[0].Variant != c.variant {
		t.Fatalf("status %+v; want runq by %s", s, c.variant)
	}
	a.learnt()
	c.suffer(t, web)
	var got incident.Record
	until(t, 2*time.Minute, "there is an incident", func() bool {
		for _, i := range a.incidents() {
			if i.Kind == c.kind {
				got = i
			}
		}
		return got.ID != ""
	})
	blame := c.kind == detect.Neighbour
	for _, i := range a.incidents() {
		if (i.Kind == detect.Neighbour) != blame || !blame && (i.Antagonists > 0 || len(i.Rounds) > 0) || i.Victim.Name != victim {
			t.Errorf("incident %+v", i)
		}
	}
	var page bytes.Buffer
	if err := report.Incident(&page, got, report.Style{}); err != nil || !strings.Contains(strings.Join(strings.Fields(page.String()), " "), c.words) {
		t.Errorf("%v, the incident reads\n%s", err, page.String())
	}
	t.Logf("figure: %s: cost %.2f, over %.2f: %s (%s)", c.name, got.Cost, got.Threshold, got.Kind, got.Reason)
	limit := text(t, loud, "cpu.max")
	if was := "max 100000\n"; (limit != was) != blame {
		t.Errorf("the neighbour's limit is %q", limit)
	}
	until(t, 20*time.Second, "the finding is counted", func() bool {
		return a.metric(fmt.Sprintf(`quell_findings_total{kind="%s",signal="runq"}`, c.kind)) != ""
	})
	for _, m := range []string{"quell_incidents_total", "quell_findings_total"} {
		if n := a.metric(m + `{kind="neighbour",signal="runq"}`); n != "" && !blame {
			t.Errorf("%s neighbours in %s", n, m)
		}
	}
	until(t, 20*time.Second, "the victim's note names the cgroup with the quota", func() bool {
		tasks, err := a.Tasks(t.Context())
		return err == nil && slices.ContainsFunc(tasks, func(v api.TaskView) bool {
			return v.Name == victim && strings.Contains(v.Note, c.note)
		})
	})
	if blame {
		a.diesAndIsFollowed(limit)
	}
}

// diesAndIsFollowed kills the agent while it holds a cap: the cap stays until `restore`
// runs.
func (a *agent) diesAndIsFollowed(limit string) {
	t := a.t
	a.cmd.Process.Kill()
	a.cmd.Wait()
	if got := text(t, loud, "cpu.max"); got != limit {
		t.Errorf("with the agent dead the limit is %q, was %q", got, limit)
	}
	out, err := a.command("restore").CombinedOutput()
	if err != nil {
		t.Errorf("restore: %v: %s", err, out)
	}
	if got := text(t, loud, "cpu.max"); got != "max 100000\n" {
		t.Errorf("after `restore` the limit is %q: %s", got, out)
	}
}

// steal makes /proc/stat report from now on that the hypervisor takes 60 % of the time of
// each CPU: a TCG guest has no stolen time. Everything else is unchanged.
func steal(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stat")
	before, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	begin, all := time.Now(), int64(strings.Count(string(before), "\ncpu"))
	tell := func() error {
		// user nice system idle iowait irq softirq steal: in ticks of 10 ms.
		n := int64(time.Since(begin) / (10 * time.Millisecond))
		var b strings.Builder
		for line := range strings.Lines(string(before)) {
			f := strings.Fields(line)
			if strings.HasPrefix(f[0], "cpu") {
				cpus := int64(1)
				if f[0] == "cpu" {
					cpus = all
				}
				line = fmt.Sprintf("%s %d 0 0 0 0 0 0 %d 0 0\n", f[0], n*4/10*cpus, n*6/10*cpus)
			}
			b.WriteString(line)
		}
		next := file + ".next"
		if err := os.WriteFile(next, []byte(b.String()), 0o644); err != nil {
			return err
		}
		text, err := os.ReadFile(next)
		if err != nil {
			return err
		}
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt(append(text, bytes.Repeat([]byte("\n"), 64)...), 0)
		return err
	}
	if err := tell(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(file, "/proc/stat", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				if err := tell(); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
		if err := unix.Unmount("/proc/stat", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}
