package labcmd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const studyElsewhere = `version: 1
study: elsewhere
hosts: {local: {}, far: {address: "root@127.0.0.1"}}
environments: {ve: {driver: cgroup, cpus: 1}}
workloads: {work: {builtin: primes, options: -work=10}}
roles:
  fg: {workload: work, environment: ve, host: local, measure: true, load: {target: 20%, tolerance: 100%}}
  bg: {workload: work, environment: ve, host: "far*", measure: true, load: {target: 20%, tolerance: 100%}}
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1}
run: {for: 8s, retries: 0, max_foreign_cpu: 100%, max_steal: 100%, min_overlap: 0%}
observe: {sets: [cpu], placement: [poll]}
analysis: [{kind: score}]
`

// sshd starts a real sshd on a free port, and returns its process and an inventory with
// it as the host far.
func sshd(t *testing.T) (pid int, inventory string) {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, "sshd", "ssh-keygen")
	dir := t.TempDir()
	address := quelltest.FreeAddress(t)
	s := quelltest.NewSSHD(t, dir, "host", address, "XDG_CACHE_HOME="+dir+"/cache")
	p, err := child.Start(exec.Command(s.Argv[0], s.Argv[1:]...), child.Options{Name: "sshd", Log: filepath.Join(dir, "sshd.log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill()
		if t.Failed() {
			t.Logf("sshd: %s", p.Tail())
		}
	})
	quelltest.Until(t, "sshd", func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	inventory = filepath.Join(dir, "hosts.yaml")
	line := fmt.Sprintf("hosts:\n  far: {address: %q, key: %s, host_key: %q}\n", address, s.Login, s.HostKey)
	if err := os.WriteFile(inventory, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	return p.PID, inventory
}

// TestHostsRun: a command runs on the hosts that can be reached, and its failure is theirs.
func TestHostsRun(t *testing.T) {
	t.Parallel()
	_, inventory := sshd(t)
	text, err := os.ReadFile(inventory)
	if err == nil {
		err = os.WriteFile(inventory, append(text, "  gone: {address: \"127.0.0.1:1\"}\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	env := clitest.Env("")
	run := []string{"lab", "hosts", "run", inventory, "--"}
	r := quell(t, env, append(run, "echo", "hello")...)
	if r.Code != app.ExitNegative || !strings.Contains(r.Out, "far  hello\n") || !strings.Contains(r.Err, "1 of 2 hosts are not ok: gone (not reached)") {
		t.Errorf("%+v", r)
	}
	r = quell(t, env, append(run[:4:4], "--host", "far", "--", "false")...)
	if r.Code != app.ExitNegative || !strings.Contains(r.Err, "1 of 1 hosts are not ok: far (failed)") {
		t.Errorf("%+v", r)
	}
	if r = quell(t, env, "lab", "hosts", "check", inventory, "--host", "far"); r.Code != app.ExitOK {
		t.Errorf("%+v", r)
	}
}

// TestStudyElsewhere: a study with a role on another host runs. If that host's connection
// is lost during a run, the study reports it and can be resumed.
func TestStudyElsewhere(t *testing.T) {
	t.Parallel()
	pid, inventory := sshd(t)
	file, out := studyFile(t, studyElsewhere), filepath.Join(t.TempDir(), "out")
	env := clitest.Env("/nowhere")
	cut, over := make(chan error, 1), make(chan struct{})
	go func() {
		cut <- cutOff(pid, over, func() bool {
			outs, err := filepath.Glob(filepath.Join(out, "runs/*/*/bg.out"))
			if err != nil || len(outs) == 0 {
				outs, _ = filepath.Glob(filepath.Join(out, "*/*/*/bg.out"))
			}
			for _, name := range outs {
				if st, err := os.Stat(name); err == nil && st.Size() > 0 {
					return true
				}
			}
			return false
		})
	}()
	r := quell(t, env, "lab", "run", "--hosts", inventory, "--out", out, file)
	close(over)
	if err := <-cut; err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	if r.Code != app.ExitNegative || !strings.Contains(r.Out, "host-lost") || !strings.Contains(r.Err, "quell lab resume "+out) {
		t.Fatalf("cut off: %+v", r)
	}
	if r := quell(t, env, "lab", "resume", "--hosts", inventory, out); r.Code != app.ExitOK || !strings.Contains(r.Out, "valid    1") {
		t.Fatalf("resume: %+v", r)
	}
	f, err := result.Open(out)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := f.Runs()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if r.Verdict != result.Valid {
			continue
		}
		for _, p := range r.Parts {
			if len(p.Iterations) == 0 || p.CPUTime <= 0 {
				t.Errorf("%s: %d iterations, %s of CPU time", p.Name, len(p.Iterations), p.CPUTime)
			}
		}
	}
	if r := quell(t, env, "lab", "run", "--hosts", studyFile(t, "hosts: {other: {address: 127.0.0.1}}\n"), "--out", out+"2", file); r.Code != app.ExitUsage || !strings.Contains(r.Err, "host far: not in") {
		t.Errorf("a host that the inventory lacks: %+v", r)
	}
}

// cutOff kills the sessions of a server when now returns true, unless over closes first.
func cutOff(server int, over <-chan struct{}, now func() bool) error {
	for !now() {
		select {
		case <-over:
			return errors.New("the study was over before anything was seen to run on the other host")
		case <-time.After(20 * time.Millisecond):
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", server, server))
	if err != nil {
		return err
	}
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
