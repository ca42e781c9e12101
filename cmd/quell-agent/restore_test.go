package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// After kill -9 the old quota is restored by the next start or by restore, whether
// there was one or none; a quota that another process set meanwhile is kept.
func TestCapOutlivesTheAgentThatIsKilled(t *testing.T) {
	for _, c := range []struct{ name, quota, meanwhile, want string }{
		{"none", "-1", "", "-1 100000"},
		{"some", "40000", "", "40000 100000"},
		{"theirs", "40000", "25000", "25000 100000"},
	} {
		for _, how := range []string{"start", "restore"} {
			t.Run(c.name+" "+how, func(t *testing.T) {
				t.Parallel()
				cg := newLimited(t, c.name+"-"+how, c.quota, "wait")
				dir := state(t)
				args := append(settings(dir), "--config", configFile(t, dir, cg.path))
				d := start(t, dir, args...)
				d.cap(cg)
				d.kill()
				if got := cg.quota(); got != "10000 100000" {
					t.Fatalf("after the kill the quota is %s", got)
				}
				if c.meanwhile != "" {
					cg.write("cpu.cfs_quota_us", c.meanwhile)
				}
				result := "restored"
				if c.meanwhile != "" {
					result = "taken-over"
				}
				if how == "start" {
					again := start(t, dir, args...)
					if s, err := again.Status(t.Context()); err != nil || len(s.Caps) != 0 {
						t.Errorf("status %+v, %v", s, err)
					}
					if log := again.log.String(); !strings.Contains(log, "task="+cg.path+" result="+result) {
						t.Errorf("the log does not tell:\n%s", log)
					}
				} else {
					r := runAgent(t, append([]string{"restore"}, args...)...)
					if r.code != 0 || !strings.HasPrefix(r.stdout, cg.path+": "+result) {
						t.Errorf("restore: %+v", r)
					}
					if r := runAgent(t, append([]string{"restore"}, args...)...); r.code != 0 || r.stdout != "nothing to undo\n" {
						t.Errorf("restore again: %+v", r)
					}
				}
				if got := cg.quota(); got != c.want {
					t.Errorf("the quota is %s, want %s", got, c.want)
				}
			})
		}
	}
}

// restore does not undo a running agent's caps.
func TestRestoreWhileAnAgentRuns(t *testing.T) {
	t.Parallel()
	cg := newLimited(t, "running", "-1", "wait")
	dir := state(t)
	args := append(settings(dir), "--config", configFile(t, dir, cg.path))
	d := start(t, dir, args...)
	d.cap(cg)
	r := runAgent(t, append([]string{"restore"}, args...)...)
	if r.code != daemon.ExitUsage || !strings.Contains(r.stderr, "journal is in use") || !strings.Contains(r.stderr, "what to do: ") || r.stdout != "" {
		t.Errorf("restore: %+v", r)
	}
	if got := cg.quota(); got != "10000 100000" {
		t.Errorf("the quota is %s", got)
	}
	if s, err := d.Status(t.Context()); err != nil || len(s.Caps) != 1 {
		t.Errorf("status %+v, %v", s, err)
	}
}

// The unit undoes a dead agent's caps also if its configuration has been broken since. systemd runs
// the next command only if the one before succeeded, or has "-" in front.
func TestUnitRestoresWithABrokenConfiguration(t *testing.T) {
	t.Parallel()
	cg := newLimited(t, "unit", "40000", "wait")
	dir := state(t)
	file := configFile(t, dir, cg.path)
	d := start(t, dir, append(settings(dir), "--config", file)...)
	d.cap(cg)
	if err := os.WriteFile(file, []byte("rulez: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.kill()
	unit, err := os.ReadFile("../../deploy/systemd/quell-agent.service")
	if err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer("/etc/quell/agent.yaml", file, "/var/lib/quell", dir+"/state")
	for line := range strings.Lines(string(unit)) {
		command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStopPost=")
		if !ok {
			continue
		}
		args := strings.Fields(here.Replace(command))
		if r := runAgent(t, append(args[1:], "--set", "journals="+dir+"/journals")...); r.code != 0 && args[0][0] != '-' {
			t.Errorf("%s: %+v", command, r)
			break
		}
	}
	if got := cg.quota(); got != "40000 100000" {
		t.Errorf("the quota is %s", got)
	}
}

// restoreOverdue runs restore --overdue --json.
func restoreOverdue(t *testing.T, args []string, more ...string) (int, restored) {
	t.Helper()
	r := runAgent(t, slices.Concat([]string{"restore", "--overdue", "--json"}, more, args)...)
	var did restored
	if err := json.Unmarshal([]byte(r.stdout), &did); err != nil {
		t.Fatalf("%v in %+v", err, r)
	}
	return r.code, did
}

// restore --overdue keeps a dead agent's caps in force until their leases expire, and
// undoes them then.
func TestOverdueOfADeadAgent(t *testing.T) {
	t.Parallel()
	short, long := newLimited(t, "dead-short", "40000", "wait"), newLimited(t, "dead-long", "-1", "wait")
	dir := state(t)
	args := append(settings(dir), "--config", configFile(t, dir, fmt.Sprintf("/quell-test-cmd-%d-dead-*", os.Getpid())))
	d := start(t, dir, args...)
	d.cap(long)
	d.cap(short)
	d.kill()
	if code, did := restoreOverdue(t, args); code != 0 || len(did.InForce) != 2 || did.Agent != "" || short.quota() != "10000 100000" {
		t.Errorf("before its time: exit %d, %+v, quota %s", code, did, short.quota())
	}
	expire(t, dir, short)
	code, did := restoreOverdue(t, args)
	if code != 0 || did.Agent != agentNone || len(did.Undone) != 1 || did.Undone[0].Task != sample.TaskName(short.path) ||
		did.Undone[0].Result != "restored" || len(did.InForce) != 1 || did.InForce[0].Task != sample.TaskName(long.path) || len(did.Failed) != 0 {
		t.Errorf("exit %d, %+v", code, did)
	}
	if short.quota() != "40000 100000" || long.quota() != "10000 100000" {
		t.Errorf("quotas %s, %s", short.quota(), long.quota())
	}
	if r := runAgent(t, append([]string{"restore", "--overdue"}, args...)...); r.code != 0 || !strings.HasPrefix(r.stdout, "nothing overdue\n"+long.path+": in force until ") {
		t.Errorf("again: %+v", r)
	}
	if r := runAgent(t, append([]string{"restore"}, args...)...); r.code != 0 || r.stdout != long.path+": restored\n" || long.quota() != "-1 100000" {
		t.Errorf("all: %+v, quota %s", r, long.quota())
	}
}

// A stopped agent keeps the journal. Overdue caps are undone in spite of that, once: a
// limit that another process sets then, even to quell's own value, is kept, also when
// the agent wakes up.
func TestOverdueOfAStoppedAgent(t *testing.T) {
	t.Parallel()
	cg := newLimited(t, "stopped", "40000", "wait")
	dir := state(t)
	args := append(settings(dir), "--config", configFile(t, dir, cg.path))
	d := start(t, dir, args...)
	d.stopCapped(cg)
	if code, did := restoreOverdue(t, args, "--grace", "1h"); code != 0 || did.Agent != agentRunning || cg.quota() != "10000 100000" {
		t.Errorf("within its grace: exit %d, %+v, quota %s", code, did, cg.quota())
	}
	code, did := restoreOverdue(t, args, "--grace", "0s")
	if code != exitHung || did.Agent != agentHung || len(did.Undone) != 1 || did.Undone[0].Result != "restored" || len(did.InForce) != 0 {
		t.Errorf("past it: exit %d, %+v", code, did)
	}
	if got := cg.quota(); got != "40000 100000" {
		t.Errorf("the quota is %s", got)
	}
	cg.write("cpu.cfs_quota_us", "10000") // by an impatient operator
	if code, did := restoreOverdue(t, args, "--grace", "0s"); code != 0 || len(did.Undone) != 0 {
		t.Errorf("again: exit %d, %+v", code, did)
	}
	d.wake()
	quelltest.Until(t, "the agent counts the cap as ended", func() bool {
		return len(d.caps()) == 0 && strings.Contains(d.log.String(), "while this agent hung")
	})
	if got := cg.quota(); got != "10000 100000" {
		t.Errorf("awake, the agent changed another process's limit to %s", got)
	}
}

// An agent that is late undoes its own caps, also with a --grace of 0: it is given time to do so.
func TestOverdueBesideALiveAgent(t *testing.T) {
	t.Parallel()
	cg := newLimited(t, "live", "40000", "wait")
	dir := state(t)
	args := append(settings(dir), "--config", configFile(t, dir, cg.path))
	d := start(t, dir, args...)
	d.stopCapped(cg)
	given := false
	r := restoring{overdue: true, giveTime: func(context.Context) error { // as long as it needs
		given = true
		d.wake()
		quelltest.Until(t, "the agent undoes its cap", func() bool { return len(d.caps()) == 0 })
		return nil
	}}
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	did := newRestored(dir + "/state/journal")
	if err := r.restore(t.Context(), did, h); err != nil || !given || did.Agent != agentRunning || len(did.Undone)+len(did.InForce) != 0 {
		t.Errorf("%+v, %v; the agent was given time: %v", did, err, given)
	}
	if got := cg.quota(); got != "40000 100000" {
		t.Errorf("the quota is %s", got)
	}
	if r := runAgent(t, "restore", "--overdue", "--grace", "-1s"); r.code != daemon.ExitUsage {
		t.Errorf("a bad grace: %+v", r)
	}
}

// A restore holds the journal for a moment: an agent that starts at that time waits for it, but
// not for long.
func TestStartWaitsForARestore(t *testing.T) {
	for _, c := range []struct {
		held time.Duration
		want error
	}{{1900 * time.Millisecond, nil}, {2100 * time.Millisecond, enforce.ErrLocked}} {
		dir := t.TempDir() + "/journal"
		synctest.Test(t, func(t *testing.T) {
			h, err := host.Open("/")
			if err != nil {
				t.Fatal(err)
			}
			other, err := enforce.Open(dir, h)
			if err != nil {
				t.Fatal(err)
			}
			released := make(chan error)
			go func() {
				<-time.After(c.held)
				released <- other.Close()
			}()
			e, got := openEnforcer(dir, h)
			if !errors.Is(got, c.want) {
				t.Errorf("held for %s: %v, want %v", c.held, got, c.want)
			}
			if err := <-released; err != nil {
				t.Error(err)
			}
			if got == nil {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// If no agent ever ran there is nothing to undo, and nothing is created.
func TestRestoreWithoutAJournal(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root)
	dir := state(t)
	r := runAgent(t, append([]string{"restore"}, settings(dir)...)...)
	if r.code != 0 || !strings.HasPrefix(r.stdout, "nothing to undo") {
		t.Errorf("restore: %+v", r)
	}
	if _, err := os.Stat(dir + "/state"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the state directory: %v", err)
	}
}

// The audit log names the process that asked for a cap, as the kernel reports it.
func TestAuditNamesThePeer(t *testing.T) {
	t.Parallel()
	cg := newLimited(t, "audit", "-1", "wait")
	dir := state(t)
	d := start(t, dir, append(settings(dir), "--config", configFile(t, dir, cg.path))...)
	d.cap(cg)
	text, err := os.ReadFile(dir + "/state/audit.jsonl")
	if err != nil || !strings.Contains(string(text), "uid 0, pid ") || !strings.Contains(string(text), `"why":"test"`) {
		t.Errorf("audit log %s, %v", text, err)
	}
	info, err := os.Stat(dir + "/state/audit.jsonl")
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the audit log's mode is %v, %v", info.Mode(), err)
	}
}
