package main

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/quelltest"
)

// After kill -9 the old quota is put back, by the next start or by restore,
// whether there was one or none; a quota that somebody set meanwhile is theirs.
func TestCapOutlivesTheAgentThatIsKilled(t *testing.T) {
	for _, c := range []struct{ name, quota, meanwhile, want string }{
		{"none", "-1", "", "-1 100000"},
		{"some", "40000", "", "40000 100000"},
		{"theirs", "40000", "25000", "25000 100000"},
	} {
		for _, how := range []string{"start", "restore"} {
			t.Run(c.name+" "+how, func(t *testing.T) {
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

// restore leaves a running agent's caps to it.
func TestRestoreWhileAnAgentRuns(t *testing.T) {
	cg := newLimited(t, "running", "-1", "wait")
	dir := state(t)
	args := append(settings(dir), "--config", configFile(t, dir, cg.path))
	d := start(t, dir, args...)
	d.cap(cg)
	r := runAgent(t, append([]string{"restore"}, args...)...)
	if r.code != exitUsage || !strings.Contains(r.stderr, "journal is in use") || !strings.Contains(r.stderr, "what to do: ") || r.stdout != "" {
		t.Errorf("restore: %+v", r)
	}
	if got := cg.quota(); got != "10000 100000" {
		t.Errorf("the quota is %s", got)
	}
	if s, err := d.Status(t.Context()); err != nil || len(s.Caps) != 1 {
		t.Errorf("status %+v, %v", s, err)
	}
}

// Where no agent ever was there is nothing to undo, and nothing is made.
func TestRestoreWithoutAJournal(t *testing.T) {
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

// Who asked for a cap stands in the audit log, as the kernel tells it.
func TestAuditNamesThePeer(t *testing.T) {
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
