//go:build inguest

package v2

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/api"
	"github.com/quell-dev/quell/internal/quelltest"
	"github.com/quell-dev/quell/internal/sample"
)

// user is who the agent is where it is not root.
const user = 1000

// The scene: a victim in a pod on CPU 1, and a batch job beside the pod.
const (
	scene  = "/quell-test-find"
	pod    = scene + "/pod"
	victim = pod + "/web"
	loud   = scene + "/loud"
)

// configuration has times as short as a busy host allows, and suspects that
// share no CPU with the victim are not left out for that: they are meant to
// tempt.
const configuration = `
signals: [runq]
listen: 127.0.0.1:9399
tick: 500ms
sampling: {duration: 1s, period: 1s}
spec: {min_samples: 8}
detect: {outlier_window: 6s, window: 30s, pace: 0s, switches: {reach: off}}
enforce: {mode: on, for: 5m}
rules:
  - {match: "/quell-test-find/pod/web", job: web, class: latency-sensitive}
  - {match: "/quell-test-find/loud", job: loud, class: batch}
  - {match: "/quell-test-other", job: other, class: batch}
`

// stage makes the scene, as the user's if it is not root's.
func stage(t *testing.T, uid int) {
	t.Helper()
	cgroup(t, scene, inner)
	if uid == 0 {
		cgroup(t, pod, inner)
		cgroup(t, victim)
		cgroup(t, loud)
		return
	}
	// Delegated as cgroup-v2.rst says: the directory and the files that move
	// processes and enable controllers, but not the limits of this one.
	for _, f := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
		if err := os.Chown(filepath.Join(root, scene, f), uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{pod, loud, victim} {
		child(t, "mkdir", "", func(c *exec.Cmd) {
			c.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}
		}, filepath.Join(root, p))
		t.Cleanup(func() { remove(t, filepath.Join(root, p)) })
		if p == pod {
			put(t, filepath.Join(root, p, "cgroup.subtree_control"), "+cpu")
		}
	}
}

// agent is the shipped agent as it runs.
type agent struct {
	*api.Client
	t    *testing.T
	dir  string
	conf string
	uid  int
	cmd  *exec.Cmd
	log  bytes.Buffer
}

func startAgent(t *testing.T, uid int) *agent {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chown(dir, uid, uid), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	a := &agent{Client: api.NewClient(dir + "/agent.sock"), t: t, dir: dir, conf: dir + "/agent.yaml", uid: uid}
	text := fmt.Sprintf("state_dir: %s\nsocket: %s/agent.sock\n%s", dir, dir, configuration)
	if err := os.WriteFile(a.conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if a.cmd != nil && a.cmd.Process != nil && a.cmd.ProcessState == nil {
			a.cmd.Process.Signal(unix.SIGTERM)
			a.cmd.Wait()
		}
		if t.Failed() {
			t.Logf("the agent's log:\n%s", a.log.String())
		}
	})
	a.start()
	return a
}

func (a *agent) command(args ...string) *exec.Cmd {
	cmd := exec.Command("/bin/quell-agent", append(args, "--config", a.conf)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.uid)}}
	return cmd
}

// start runs it on CPU 0, which is not the victim's.
func (a *agent) start() {
	a.t.Helper()
	a.cmd = a.command()
	a.cmd.Stderr = &a.log
	if err := onCPU0(a.cmd.Start); err != nil {
		a.t.Fatal(err)
	}
	quelltest.Until(a.t, 60*time.Second, "the agent answers", func() bool {
		_, err := a.Status(a.t.Context())
		return err == nil
	})
}

// leaveCPU1 keeps this process to CPU 0: CPU 1 is the victim's.
func leaveCPU1(t *testing.T) {
	t.Helper()
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	set.Set(0)
	for _, thread := range threads {
		var tid int
		if _, err := fmt.Sscan(filepath.Base(thread), &tid); err != nil {
			t.Fatal(err)
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Fatal(err)
		}
	}
}

// onCPU0 calls f on a thread whose children stay on CPU 0.
func onCPU0(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and the thread ends with the goroutine
		var set unix.CPUSet
		set.Set(0)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// incident is what is looked at of one.
type incident struct {
	ID          string
	Kind        string
	Victim      sample.Task
	Antagonists int
	Suspects    []struct{ Name string }
	Rounds      []struct{ Suspect struct{ Name string } }
	Reason      string
}

// incidents reads the agent's log of them: the newest line of each.
func (a *agent) incidents() map[string]incident {
	a.t.Helper()
	files, _ := filepath.Glob(a.dir + "/incidents*.jsonl")
	all := map[string]incident{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			a.t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var i incident
			if json.Unmarshal(line, &i) == nil && i.ID != "" {
				all[i.ID] = i
			}
		}
	}
	return all
}

// learnt waits until the victim's spec is ready.
func (a *agent) learnt() {
	a.t.Helper()
	quelltest.Until(a.t, 60*time.Second, "the victim's spec is ready", func() bool {
		tasks, err := a.Tasks(context.Background())
		if err != nil {
			return false
		}
		for _, v := range tasks {
			if v.Name == victim && len(v.Costs) > 0 && v.Costs[0].Spec.State.String() == "ready" {
				return true
			}
		}
		return false
	})
}

// metric returns a value of /metrics, "" if it is not there.
func (a *agent) metric(name string) string {
	a.t.Helper()
	r, err := http.Get("http://127.0.0.1:9399/metrics")
	if err != nil {
		a.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (.*)$`).FindSubmatch(text)
	if m == nil {
		return ""
	}
	return string(m[1])
}

// A victim that is made to suffer without a neighbour's doing, beside one that
// is loud in just those intervals: each cause has its own word, and nobody is
// blamed. The last is the counter-proof.
func TestFindings(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	leaveCPU1(t)
	quota := func(path string) func(*testing.T) {
		return func(t *testing.T) {
			burn(t, loud, 0)
			put(t, filepath.Join(root, path, "cpu.max"), "50000 100000")
		}
	}
	for _, c := range []struct {
		name, variant string
		uid           int
		suffer        func(*testing.T)
		kind          string
		note          string // of the victim
	}{
		{"own quota", "bpf", 0, quota(victim), "own-quota", ""},
		{"quota above", "bpf", 0, quota(pod), "own-quota", pod},
		{"quota above, by schedstat", "schedstat", user, quota(pod), "own-quota", pod},
		{"waits for itself", "bpf", 0, func(t *testing.T) { burn(t, loud, 0); burn(t, victim, 1) }, "self-wait", ""},
		{"stolen time", "bpf", 0, func(t *testing.T) { steal(t); burn(t, loud, 1) }, "steal", ""},
		{"a neighbour", "bpf", 0, func(t *testing.T) { burn(t, loud, 1) }, "neighbour", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			stage(t, c.uid)
			burn(t, victim, 1)
			a := startAgent(t, c.uid)
			s, err := a.Status(t.Context())
			if err != nil || len(s.Signals) != 1 || s.Signals[0].Variant != c.variant {
				t.Fatalf("status %+v, %v; want runq by %s", s, err, c.variant)
			}
			a.learnt()
			c.suffer(t)
			var got incident
			quelltest.Until(t, 40*time.Second, "there is an incident", func() bool {
				for _, i := range a.incidents() {
					if i.Kind == c.kind {
						got = i
					}
				}
				return got.ID != ""
			})
			blame := c.kind == "neighbour"
			for _, i := range a.incidents() {
				if i.Kind == "neighbour" != blame || !blame && (i.Antagonists > 0 || len(i.Rounds) > 0) || i.Victim.Name != victim {
					t.Errorf("incident %+v", i)
				}
			}
			t.Logf("figure: %s: %s (%s)", c.name, got.Kind, got.Reason)
			limit := text(t, loud, "cpu.max")
			if was := "max 100000\n"; (limit != was) != blame {
				t.Errorf("the neighbour's limit is %q", limit)
			}
			if n := a.metric(fmt.Sprintf(`quell_incidents_total{kind="%s",signal="runq"}`, c.kind)); n != "1" {
				t.Errorf("quell_incidents_total of %s is %q", c.kind, n)
			}
			if !blame && a.metric(`quell_incidents_total{kind="neighbour",signal="runq"}`) != "" {
				t.Error("a neighbour was counted")
			}
			quelltest.Until(t, 20*time.Second, "the victim's note names the cgroup with the quota", func() bool {
				tasks, err := a.Tasks(t.Context())
				return err == nil && slices.ContainsFunc(tasks, func(v api.TaskView) bool {
					return v.Name == victim && strings.Contains(v.Note, c.note)
				})
			})
			if blame {
				a.diesAndIsFollowed(limit)
			}
		})
	}
}

// diesAndIsFollowed kills the agent while it holds a cap: that stays until
// somebody restores.
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

// steal lets /proc/stat say from now on that the hypervisor takes 60 % of the
// time of each CPU: a TCG guest cannot be robbed, and everything else here is
// as it is.
func steal(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stat")
	before, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	tell := func() error {
		// user nice system idle iowait irq softirq steal: in ticks of 10 ms.
		n := int64(time.Since(begin) / (10 * time.Millisecond))
		var b strings.Builder
		for line := range strings.Lines(string(before)) {
			f := strings.Fields(line)
			if strings.HasPrefix(f[0], "cpu") {
				cpus := int64(1)
				if f[0] == "cpu" {
					cpus = 2
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

// An agent that is not root limits what is delegated to it, and says of the
// rest what is missing.
func TestDelegation(t *testing.T) {
	stage(t, user)
	cgroup(t, "/quell-test-other")
	burn(t, loud, 0)
	burn(t, "/quell-test-other", 0)
	a := startAgent(t, user)
	capped := func(task string) error {
		_, err := a.Cap(t.Context(), api.CapRequest{Task: task, Rate: 0.1, For: "1m", Reason: "test"})
		return err
	}
	var err error
	quelltest.Until(t, 20*time.Second, "the task is known", func() bool {
		err = capped(loud)
		return err == nil || !strings.Contains(err.Error(), "no task")
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, loud, "cpu.max"); got != "10000 100000\n" {
		t.Errorf("the delegated task's limit is %q", got)
	}
	err = capped("/quell-test-other")
	if err == nil || !strings.Contains(err.Error(), "permission denied") || !strings.Contains(err.Error(), "chown 1000 /sys/fs/cgroup/quell-test-other/cpu.max") {
		t.Errorf("a task that is not delegated: %v", err)
	}
	t.Logf("figure: not delegated: %v", err)
	if got := text(t, "/quell-test-other", "cpu.max"); got != "max 100000\n" {
		t.Errorf("the other's limit is %q", got)
	}
	a.cmd.Process.Signal(unix.SIGTERM)
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if got := text(t, loud, "cpu.max"); got != "max 100000\n" {
		t.Errorf("after the agent's end the limit is %q", got)
	}
}

// A cgroup that is removed and made again at the same path, with by chance just
// the limit that quell had set, is another one: it is left as it is.
func TestAnotherCgroupAtTheSamePath(t *testing.T) {
	stage(t, 0)
	a := startAgent(t, 0)
	quelltest.Until(t, 20*time.Second, "the task is capped", func() bool {
		_, err := a.Cap(t.Context(), api.CapRequest{Task: loud, Rate: 0.1, For: "5m", Reason: "test"})
		return err == nil
	})
	limit := text(t, loud, "cpu.max")
	if limit == "max 100000\n" {
		t.Fatalf("the limit is %q", limit)
	}
	a.cmd.Process.Kill()
	a.cmd.Wait()
	dir := filepath.Join(root, loud)
	if err := errors.Join(unix.Rmdir(dir), os.Mkdir(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	put(t, dir+"/cpu.max", limit)
	a.start()
	s, err := a.Status(t.Context())
	if got := text(t, loud, "cpu.max"); err != nil || got != limit || len(s.Caps) != 0 {
		t.Errorf("the other cgroup's limit is %q, was %q; caps %v, %v", got, limit, s.Caps, err)
	}
	if !strings.Contains(a.log.String(), "made again") {
		t.Error("the log does not say what became of the cap")
	}
}
