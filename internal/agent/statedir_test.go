package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

func put(t testing.TB, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func slurp(t testing.TB, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// After a restart the specs are used at once, and an incident that the old agent left
// open is closed.
func TestRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, m := t.TempDir(), newMachine(t)
		r := newRig(t, m, dir, "enforce.mode=on")
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		r.learn()
		noisy.set(1.5)
		r.pass(3 * time.Minute)
		if len(r.status().Caps) != 1 {
			t.Fatal("no cap")
		}
		before := r.incidents()[0]
		r.stop()
		if got := r.values[noisy.limit()]; got != "max" {
			t.Errorf("after the stop the limit is %q", got)
		}

		noisy.set(0.05)
		r = newRig(t, m, dir, "enforce.mode=on")
		r.start()
		defer r.stop()
		all := r.incidents()
		if len(all) != 1 || all[0].Closed != sample.At(time.Now()) || all[0].NotDone != "the agent was restarted" ||
			all[0].Outcome != plan.NotMeasured {
			t.Errorf("incidents %+v", all)
		}
		if is := all[0]; is.Kind != before.Kind || is.Reason == "" || is.Reason != before.Reason || len(is.Suspects) != len(before.Suspects) {
			t.Errorf("it was %s, %s, and is %s, %s", before.Kind, before.Reason, is.Kind, is.Reason)
		}
		if s := r.spec("web"); s.State != spec.Ready || s.Samples != 12 {
			t.Errorf("the spec is %+v", s)
		}
		r.pass(12 * time.Minute) // good samples to distinguish suspects: evidence needs twelve intervals
		noisy.set(1.5)
		r.pass(3 * time.Minute)
		if all := r.incidents(); len(all) != 2 || len(r.status().Caps) != 1 {
			t.Errorf("a quarter of an hour after the restart: caps %+v, incidents %+v", r.status().Caps, all)
		}
	})
}

// A killed agent has saved its specs periodically. An operator's cap does not outlive
// the agent that enforces its lease: the stop undoes it, the audit log has it, and the
// next agent sets none.
func TestOperatorsCapsEndWithTheAgent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir, m := t.TempDir(), newMachine(t)
		r := newRig(t, m, dir)
		noisy := r.add("/batch/noisy-1", 1)
		r.start()
		r.pass(time.Minute)
		r.do(capping(command.Target{Task: "noisy-1"}, 0.5, "2h", "ticket 4711"))
		if got := r.values[noisy.limit()]; got != "0.5" {
			t.Fatalf("the limit is %q", got)
		}
		r.stop()
		if got := r.values[noisy.limit()]; got != "max" {
			t.Errorf("after the stop the limit is %q", got)
		}
		r = newRig(t, m, dir)
		r.start()
		defer r.stop()
		r.pass(3 * time.Minute)
		if got := r.values[noisy.limit()]; got != "max" || len(r.status().Caps) != 0 {
			t.Errorf("after the restart the limit is %q, caps %+v", got, r.status().Caps)
		}
		var told []string
		for _, e := range r.audit() {
			told = append(told, e.Who+" "+e.What+" "+e.Result)
		}
		if got := strings.Join(told, ", "); got != "ann cap ok, quell uncap ok" {
			t.Errorf("the audit log has %s", got)
		}
	})
}

func TestSpecsAreSaved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newRig(t, newMachine(t), dir, "spec.save=5m")
		r.add("/batch/job-1", 1).cost = func() float64 { return 1 }
		r.start()
		defer r.stop()
		r.pass(4*time.Minute + 59*time.Second)
		if _, err := os.Stat(filepath.Join(dir, "specs.json")); err == nil {
			t.Error("saved before it was time")
		}
		r.pass(time.Second)
		var f specFile
		if err := json.Unmarshal([]byte(slurp(t, dir, "specs.json")), &f); err != nil || len(f.Records) != 1 || f.Records[0].Cost.N != 5 {
			t.Errorf("saved %+v, %v", f, err)
		}
		info, err := os.Stat(filepath.Join(dir, "specs.json"))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	})
}

// Files of the state directory that cannot be used are moved aside and reported, and
// none of their content is used.
func TestFilesThatCannotBeRead(t *testing.T) {
	for _, c := range []struct{ file, text, what string }{
		{"specs.json", `{"version":1,"records":[{"job":"we`, "specs: read specs.json: unexpected end of JSON input"},
		{"specs.json", `{"version":2,"records":[{}]}`, "specs: read specs.json: version 2, want 1"},
		{"overrides.json", `{"mode":"on","protect":"web"}`, "overrides: read overrides.json: "},
		{"overrides.json", "\x00\x00\x00", "overrides: read overrides.json: "},
		{"offenders.json", `[{"job":"encode","helped":[1`, "offenders: read offenders.json: "},
	} {
		bubble(t, func(t *testing.T) {
			dir := t.TempDir()
			put(t, dir, c.file, c.text)
			r := newRig(t, newMachine(t), dir)
			r.start()
			s := r.status()
			if len(s.Degraded) != 1 || !strings.HasPrefix(s.Degraded[0], c.what) || !strings.Contains(s.Degraded[0], c.file+".unreadable") {
				t.Errorf("%s: degraded %q", c.text, s.Degraded)
			}
			if s.Mode != plan.Advise {
				t.Errorf("%s: the mode is %v", c.text, s.Mode)
			}
			r.do(enforcing("off", "r")) // writes overrides.json
			r.stop()
			if got := slurp(t, dir, c.file+".unreadable"); got != c.text {
				t.Errorf("%q was kept as %q", c.text, got)
			}
			r = newRig(t, newMachine(t), dir)
			r.start()
			defer r.stop()
			if s := r.status(); len(s.Degraded) != 0 || s.Mode != plan.Off {
				t.Errorf("after the next start: %+v", s)
			}
		})
	}
}

// A state directory that cannot be written is reported while it lasts, and does not
// stop the agent.
func TestStateDirectoryThatCannotBeWritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newRig(t, newMachine(t), dir, "spec.save=1m")
		r.start()
		// A directory in place of the file: root cannot write it either.
		if err := os.Mkdir(filepath.Join(dir, "specs.json"), 0o700); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		if got := r.status().Degraded; len(got) != 1 || !strings.HasPrefix(got[0], "specs: write "+filepath.Join(dir, "specs.json")+": ") {
			t.Errorf("degraded %q", got)
		}
		if err := r.end(); err == nil || !strings.Contains(err.Error(), "specs.json") {
			t.Errorf("the stop said %v", err)
		}
	})
}
