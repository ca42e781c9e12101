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

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// user is the agent's user ID where it is not root.
const user = 1000

// The scene: a victim in a pod on CPU 1, and a batch job next to the pod. CPU 0 is for
// the agent and the test; CPU 2, if there is one, is free.
const (
	scene  = "/quell-test-find"
	pod    = scene + "/pod"
	victim = pod + "/web"
	loud   = scene + "/loud"
)

// configuration has short times, although an emulated agent may need three seconds for a
// window of one. Suspects that share no CPU with the victim are not excluded for that:
// they must be able to mislead the rule. Usage outside any task is no suspect: the kernel of an
// emulated machine on a busy host works on CPU 0 while victims suffer (0.04 to 0.56 CPU-s/s),
// which would be named, correctly, in place of each cause. loud is a suspect only, never a victim. The rule
// accuses at the third outlier: the tests distinguish causes, and evidence needs twelve
// intervals, which take too long on an emulated CPU.
const configuration = `
signals: [runq]
listen: 127.0.0.1:9399
tick: 500ms
sampling: {duration: 1s, period: 1s}
spec: {min_samples: 6}
detect: {rule: quell, outlier_window: 1m, window: 60s, pace: 0s, switches: {reach: off, outside: off}}
enforce: {mode: on, for: 5m}
rules:
  - {match: "/quell-test-find/pod/web", job: web, class: latency-sensitive}
  - {match: "/quell-test-find/loud", job: loud, class: batch, signals: [cpi]}
  - {match: "/quell-test-other", job: other, class: batch}
`

// stage creates the scene, owned by the user if that is not root.
func stage(t *testing.T, uid int) {
	t.Helper()
	cgroup(t, scene, inner)
	if uid == 0 {
		cgroup(t, pod, inner)
		cgroup(t, victim)
		cgroup(t, loud)
		return
	}
	// Delegated as in cgroup-v2.rst: the directory and the files that move processes and
	// enable controllers, but not the limits of this cgroup.
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

// agent is a running shipped agent.
type agent struct {
	*api.Client
	t    *testing.T
	dir  string
	conf string
	uid  int
	cmd  *exec.Cmd
	log  quelltest.Output
}

func startAgent(t *testing.T, uid int) *agent {
	t.Helper()
	return startAgentWith(t, uid, configuration)
}

func startAgentWith(t *testing.T, uid int, configuration string) *agent {
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
	text := fmt.Sprintf("state_dir: %[1]s\nsocket: %[1]s/agent.sock\nrecord: %[1]s/samples.csv\n%[2]s", dir, configuration)
	if err := os.WriteFile(a.conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if a.cmd != nil && a.cmd.Process != nil && a.cmd.ProcessState == nil {
			a.cmd.Process.Signal(unix.SIGTERM)
			a.cmd.Wait()
		}
		if t.Failed() {
			samples, _ := os.ReadFile(dir + "/samples.csv")
			t.Logf("the agent's log:\n%s\nand samples:\n%s", a.log.String(), samples)
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

// until is quelltest.Until with a longer poll interval, which leaves an emulated CPU
// time.
func until(t *testing.T, deadline time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !cond(); <-time.After(500 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain until %s", deadline, what)
		}
	}
}

// start runs it on CPU 0, which is not the victim's, with priority over other tasks
// there.
func (a *agent) start() {
	a.t.Helper()
	a.cmd = a.command()
	a.cmd.Stderr = &a.log
	if err := onCPU0(a.cmd.Start); err != nil {
		a.t.Fatal(err)
	}
	a.status()
}

// status polls until there is an answer: an emulated CPU with busy tasks may have no time
// for the agent for half a minute.
func (a *agent) status() (s api.Status) {
	a.t.Helper()
	until(a.t, 90*time.Second, "the agent answers", func() bool {
		var err error
		s, err = a.Status(a.t.Context())
		return err == nil
	})
	return s
}

// keepTo binds this process to a CPU, with priority over other tasks.
func keepTo(cpu int) error {
	threads, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		return err
	}
	var set unix.CPUSet
	set.Set(cpu)
	for _, thread := range threads {
		var tid int
		if _, err := fmt.Sscan(filepath.Base(thread), &tid); err != nil {
			return err
		}
		err := errors.Join(unix.SchedSetaffinity(tid, &set), unix.Setpriority(unix.PRIO_PROCESS, tid, -15))
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}

// onCPU0 calls f on a thread whose children stay on CPU 0 with a higher priority.
func onCPU0(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // so the thread ends with the goroutine
		var set unix.CPUSet
		set.Set(0)
		if err := errors.Join(unix.SchedSetaffinity(0, &set), unix.Setpriority(unix.PRIO_PROCESS, 0, -10)); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// incidents reads the agent's incident log: the newest line of each.
func (a *agent) incidents() map[string]incident.Record {
	a.t.Helper()
	files, _ := filepath.Glob(a.dir + "/incidents*.jsonl")
	all := map[string]incident.Record{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			a.t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var i incident.Record
			if json.Unmarshal(line, &i) == nil && i.ID != "" {
				all[i.ID] = i
			}
		}
	}
	return all
}

// learnt waits until the victim's spec is ready.
func (a *agent) learnt() { a.t.Helper(); a.learntOf(victim) }

func (a *agent) learntOf(victim sample.TaskName) {
	a.t.Helper()
	until(a.t, 120*time.Second, "the victim's spec is ready", func() bool { return a.hasLearnt(victim) })
}

func (a *agent) hasLearnt(victim sample.TaskName) bool {
	tasks, err := a.Tasks(context.Background())
	return err == nil && slices.ContainsFunc(tasks, func(v api.TaskView) bool {
		return v.Name == victim && len(v.Costs) > 0 && v.Costs[0].Spec.State.String() == "ready"
	})
}

// metric returns a value of /metrics, "" if it does not exist.
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

// An agent that is not root limits delegated tasks. For all others the error says what is
// missing.
func TestDelegation(t *testing.T) {
	stage(t, user)
	cgroup(t, "/quell-test-other")
	burn(t, loud, 0)
	burn(t, "/quell-test-other", 0)
	a := startAgent(t, user)
	capped := func(task string) error {
		_, err := a.Command(t.Context(), command.CapTask(task, 0.1, time.Minute, "test"))
		return err
	}
	var err error
	quelltest.Until(t, "the task is known", func() bool {
		err = capped(loud)
		return err == nil || !strings.Contains(err.Error(), "unknown task")
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

// A cgroup that is removed and created again at the same path, by chance with the same
// limit that quell had set, is a different one and is not changed.
func TestAnotherCgroupAtTheSamePath(t *testing.T) {
	stage(t, 0)
	a := startAgent(t, 0)
	quelltest.Until(t, "the task is capped", func() bool {
		_, err := a.Command(t.Context(), command.CapTask(loud, 0.1, 5*time.Minute, "test"))
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
	if got, caps := text(t, loud, "cpu.max"), a.status().Caps; got != limit || len(caps) != 0 {
		t.Errorf("the other cgroup's limit is %q, was %q; caps %v", got, limit, caps)
	}
	if !strings.Contains(a.log.String(), "made again") {
		t.Error("the log does not say what became of the cap")
	}
}
