package agent

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/machine/origin"
)

const containerID = "4b1c0e6f2a7d3958e1f0a9b8c7d6e5f40123456789abcdef0123456789abcdef"

// namer answers as a test wants.
type namer struct {
	facts   map[string]origin.Facts // by path
	settled map[string]bool
	changed bool
	forgot  []string
}

func (n *namer) Facts(at host.Place, _ uint64) (origin.Facts, bool) {
	return n.facts[at.Path], n.settled[at.Path]
}

func (n *namer) Changed() bool {
	was := n.changed
	n.changed = false
	return was
}

func (n *namer) Forget(at host.Place, _ uint64) { n.forgot = append(n.forgot, at.Path) }
func (n *namer) Err() error                     { return nil }

// A container is no task before its name is known, or for too long; a name that becomes known later
// is found then. Of two with one name, the second keeps its path.
func TestFinderWaitsForNames(t *testing.T) {
	const rules = "rules: [{match: /docker/*, class: batch, propose: true}, {match: \"vm/*\", class: batch}]"
	f, root := onHost(t, "hybrid", rules)
	n := &namer{facts: map[string]origin.Facts{}, settled: map[string]bool{}}
	f.names = n
	one, two, vm := "/docker/"+containerID, "/docker/"+strings.Repeat("5", 64), "/qemu.slice/101.scope"
	for _, p := range []string{one, two, vm} {
		lay(t, root, filepath.Join("sys/fs/cgroup/unified", p, "cpu.stat"), "usage_usec 1\n")
		lay(t, root, filepath.Join("sys/fs/cgroup/unified", p, "cgroup.procs"), "")
	}
	n.facts[one], n.settled[one] = origin.Facts{Name: "docker/web", Job: "docker/web"}, true
	n.facts[vm] = origin.Facts{Name: "vm/db", Job: "vm/db"}
	names := func(now time.Time) (text string) {
		found, fresh, err := f.Find(now)
		if err != nil {
			t.Fatal(err)
		}
		if !fresh {
			return "same"
		}
		for _, x := range found {
			text += string(x.Name) + " " + string(x.Job) + "; "
		}
		return text
	}
	now := time.Now()
	if got := names(now); got != "docker/web docker/web; " || f.Wait() != nil {
		t.Errorf("while two names are looked for: %s", got)
	}
	n.settled[vm] = true
	if got := names(now.Add(time.Second)); got != "docker/web docker/web; vm/db vm/db; " || f.Wait() != nil {
		t.Errorf("one is known: %s", got)
	}
	n.facts[two] = origin.Facts{Job: "docker/555555555555"}
	if got := names(now.Add(nameWait)); got != "docker/web docker/web;  docker/555555555555; vm/db vm/db; " || f.Wait() == nil {
		t.Errorf("the other is not known in time: %s", got)
	}
	if got := names(now.Add(nameWait)); got != "same" {
		t.Errorf("nothing has changed: %s", got)
	}
	n.facts[two], n.changed = origin.Facts{Name: "docker/web", Job: "docker/web"}, true
	if got := names(now.Add(nameWait)); got != "docker/web docker/web;  docker/web; vm/db vm/db; " {
		t.Errorf("it has the first one's name: %s", got)
	}
	n.facts[vm], n.changed = origin.Facts{Name: "vm/db", Job: "vm/db", Labels: map[string]string{"vcpus": "2"}}, true
	if got := names(now.Add(nameWait)); got == "same" {
		t.Error("a new label is not told")
	}
	n.facts[two], n.changed = origin.Facts{Origin: origin.Origin{Runtime: origin.Docker}, Sandbox: true}, true
	if got := names(now.Add(nameWait)); got != "docker/web docker/web; vm/db vm/db; " {
		t.Errorf("it is a sandbox: %s", got)
	}
	if err := os.RemoveAll(filepath.Join(root, "sys/fs/cgroup/unified", one)); err != nil {
		t.Fatal(err)
	}
	if got := names(now.Add(walkWatched + nameWait)); got != "vm/db vm/db; " || len(n.forgot) != 1 || n.forgot[0] != one {
		t.Errorf("the first is gone: %s, forgot %v", got, n.forgot)
	}
}

// The name is in the first sample, commands take it in any form, and a name that comes late ends the
// task's samples under the old one.
func TestTasksAreNamed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/left/"+containerID, 0.5)
		g.facts = &origin.Facts{Name: "shop/web-0/app", Job: "shop/web/app", Labels: map[string]string{"namespace": "shop"}}
		r.start()
		defer r.stop()
		r.pass(12 * time.Second)
		v := r.task("shop/web-0/app")
		if v.Job != "shop/web/app" || v.Path() != g.path || v.ClassWhy != "rule /left/*" || v.Proposed || v.Labels["namespace"] != "shop" {
			t.Errorf("%+v", v)
		}
		for _, s := range r.samples {
			if s.Task != "shop/web-0/app" && s.CPU > 0 {
				t.Errorf("a sample of %s", s.Task)
			}
		}
		for name, want := range map[string]bool{
			"shop/web-0/app": true, "app": true, "web-0/app": true, g.path: true, containerID[:12]: true, containerID: true,
			"web": false, containerID[:11]: false, "": false,
		} {
			ask(t, r, func() {
				if _, err := r.agent.tasks.find(name); (err == nil) != want {
					t.Errorf("%q: %v", name, err)
				}
			})
		}
		n := len(r.samples)
		g.facts = &origin.Facts{Name: "shop/db-0/app", Job: "shop/db/app"}
		r.fresh = true
		r.pass(2 * time.Minute)
		if v := r.task("shop/db-0/app"); v.Job != "shop/db/app" || r.status().Tasks != 1 {
			t.Errorf("under another name: %+v of %d tasks", v, r.status().Tasks)
		}
		for _, s := range r.samples[n+1:] {
			if s.Task == "shop/web-0/app" {
				t.Errorf("a sample of the old name at %v", s.TS.Time())
			}
		}
		if g.files != 1 {
			t.Errorf("%d open cgroups", g.files)
		}
	})
}

// A task stays one when its process gets another command, which it may choose, whatever rules there are for others.
func TestACommandEndsNoTask(t *testing.T) {
	one := "/docker/" + containerID
	for _, rules := range []string{
		`{match: /docker/*, command: "encode*", class: batch}`,
		`{match: /docker/*, command: "encode*", class: batch}, {match: /docker/*, ignore: true}`,
		`{match: /docker/*, command: sh, ignore: true}, {match: /docker/*, class: batch}`,
	} {
		f, root := onHost(t, "hybrid", "rules: ["+rules+"]")
		n := &namer{facts: map[string]origin.Facts{}, settled: map[string]bool{one: true}}
		f.names = n
		lay(t, root, filepath.Join("sys/fs/cgroup/unified", one, "cpu.stat"), "usage_usec 1\n")
		now := time.Now()
		for _, command := range []string{"encode 1", "sh"} {
			n.facts[one], n.changed = origin.Facts{Process: origin.Process{Command: command}}, true
			now = now.Add(walkWatched)
			if found, _, err := f.Find(now); err != nil || len(found) != 1 {
				t.Errorf("by %s, as %s: found %+v, %v", rules, command, found, err)
			}
		}
	}
}

// A task that turns out to be none ends: the sandbox of a pod whose runtime answers late, or what a rule ignores by its
// name.
func TestATaskThatIsNoneEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/left/"+containerID, 0.5)
		r.start()
		defer r.stop()
		r.pass(12 * time.Second)
		if n := r.status().Tasks; n != 1 {
			t.Fatalf("%d tasks", n)
		}
		g.facts = &origin.Facts{Sandbox: true}
		r.fresh = true
		r.pass(2 * time.Minute)
		if n := r.status().Tasks; n != 0 || g.files != 0 {
			t.Errorf("%d tasks, %d open cgroups", n, g.files)
		}
	})
}

func ask(t *testing.T, r *rig, f func()) {
	t.Helper()
	if err := r.agent.ask(context.Background(), f); err != nil {
		t.Fatal(err)
	}
}

// While a spec is learnt the view says when it will be ready, and the log what to expect.
func TestReadyIn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/web/1", 0.5)
		g.cost = func() float64 { return 1 }
		r.start()
		defer r.stop()
		r.pass(11 * time.Second)
		if c := r.task("/web/1").Costs[0]; c.ReadyIn != 9*60 || c.Spec.State != spec.Learning {
			t.Errorf("after one of 10 samples: %+v", c)
		}
		r.pass(5 * time.Minute)
		if c := r.task("/web/1").Costs[0]; c.ReadyIn != 4*60 {
			t.Errorf("after six: %+v", c)
		}
		r.pass(5 * time.Minute)
		if c := r.task("/web/1").Costs[0]; c.ReadyIn != 0 || c.Spec.State != spec.Ready {
			t.Errorf("after eleven: %+v", c)
		}
		for _, want := range []string{"latency-sensitive=1 batch=0 best-effort=0 others_may_be_capped_for=1 learning_takes=10m0s", `"others may be capped for" task=/web/1 class=latency-sensitive proposed=false why="rule /web/*"`} {
			if strings.Count(r.log.String(), want) != 1 {
				t.Errorf("the log has not once %q:\n%s", want, r.log.String())
			}
		}
	})
}

// The log says that no rule matches, or that others are capped for no task.
func TestIntroductionOfNothing(t *testing.T) {
	for path, want := range map[string]string{"/other": "no tasks: no rule", "/batch/a-1": "others will be capped for none"} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, newMachine(t), t.TempDir())
			r.add(path, 0.5)
			r.start()
			defer r.stop()
			r.pass(3 * time.Minute)
			if strings.Count(r.log.String(), want) != 1 {
				t.Errorf("the log has not once %q:\n%s", want, r.log.String())
			}
		})
	}
}

// A cgroup of which the kernel keeps no CPU time has the sum of its processes'.
func TestUsageOfProcesses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		g := r.add("/web/1", 0.5)
		g.fails = host.ErrNoUsage
		begun := time.Now()
		g.tallied = func() time.Duration { return time.Since(begun) / 4 }
		r.start()
		defer r.stop()
		r.pass(11 * time.Second)
		if v := r.task("/web/1"); v.CPU < 0.24 || v.CPU > 0.26 || v.Note != "" {
			t.Errorf("usage %g, note %q", v.CPU, v.Note)
		}
		g.fails = nil // the kernel keeps it from now on: the two do not continue each other
		g.used = 1000 * time.Hour
		r.pass(2 * time.Minute)
		if v := r.task("/web/1"); v.CPU < 0.4 || v.CPU > 0.6 {
			t.Errorf("usage %g", v.CPU)
		}
	})
}
