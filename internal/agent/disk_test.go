package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/api"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/report"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
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

// What was learnt is judged by at once after a restart, and an incident that
// the old agent left open is closed.
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
		r.stop()
		if got := r.values[noisy.limit()]; got != "max" {
			t.Errorf("after the stop the limit is %q", got)
		}

		noisy.set(0.05)
		r = newRig(t, m, dir, "enforce.mode=on")
		r.start()
		defer r.stop()
		all := r.incidents()
		if len(all) != 1 || all[0].Closed != sample.At(time.Now()) || all[0].Reason != "the agent was restarted" ||
			all[0].Outcome != plan.NotMeasured {
			t.Errorf("incidents %+v", all)
		}
		if s := r.spec("web"); s.State != spec.Ready || s.Samples != 12 {
			t.Errorf("the spec is %+v", s)
		}
		r.pass(3 * time.Minute) // good samples to tell suspects apart by
		noisy.set(1.5)
		r.pass(3 * time.Minute)
		if all := r.incidents(); len(all) != 2 || len(r.status().Caps) != 1 {
			t.Errorf("six minutes after the restart: caps %+v, incidents %+v", r.status().Caps, all)
		}
	})
}

// A killed agent has saved its specs now and then.
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

// Files of the state directory that cannot be used are kept aside and said,
// and nothing of them counts.
func TestFilesThatCannotBeRead(t *testing.T) {
	for _, c := range []struct{ file, text, what string }{
		{"specs.json", `{"version":1,"records":[{"job":"we`, "specs: read specs.json: unexpected end of JSON input"},
		{"specs.json", `{"version":2,"records":[{}]}`, "specs: read specs.json: version 2, want 1"},
		{"overrides.json", `{"mode":"on","protected":"web"}`, "overrides: read overrides.json: "},
		{"overrides.json", "\x00\x00\x00", "overrides: read overrides.json: "},
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
			r.do(api.PathMode, api.ModeRequest{Mode: "off", Reason: "r"}) // writes overrides.json
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

// A state directory that cannot be written is shown while it lasts, and does
// not stop the agent.
func TestStateDirectoryThatCannotBeWritten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r := newRig(t, newMachine(t), dir, "spec.save=1m")
		r.start()
		// A directory in the place of the file: also root cannot write it.
		if err := os.Mkdir(filepath.Join(dir, "specs.json.new"), 0o700); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		if got := r.status().Degraded; len(got) != 1 || !strings.HasPrefix(got[0], "specs: write specs.json: ") {
			t.Errorf("degraded %q", got)
		}
		if err := r.end(); err == nil || !strings.Contains(err.Error(), "specs.json") {
			t.Errorf("the stop said %v", err)
		}
	})
}

// What LoadIncidents makes of the log while it is rotated, torn and continued.
func TestIncidentLog(t *testing.T) {
	dir := t.TempDir()
	l := jsonLog{path: filepath.Join(dir, report.LogName), max: 2000, keep: 3}
	inc := func(id string, updated int) *plan.Incident {
		return &plan.Incident{ID: id, Opened: 1, Updated: sample.Millis(updated), Reason: strings.Repeat("x", 100)}
	}
	ids := func() (all []string) {
		t.Helper()
		list, _, err := report.LoadIncidents(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			all = append(all, fmt.Sprint(i.ID, "@", i.Updated))
		}
		return all
	}
	write := func(i *plan.Incident) {
		t.Helper()
		if err := l.write(i); err != nil {
			t.Fatal(err)
		}
	}
	write(inc("a", 1))
	for n := range 20 { // rotates every few lines
		write(inc("b", n))
	}
	if got := strings.Join(ids(), " "); got != "b@19" && got != "a@1 b@19" {
		t.Errorf("incidents %s", got)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) != 4 {
		t.Errorf("files %q, want the log and the 3 that are kept", files)
	}
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil || info.Size() > 2000 || info.Size() == 0 {
			t.Errorf("%s has %d bytes, %v", f, info.Size(), err)
		}
		if text := slurp(t, dir, filepath.Base(f)); !strings.HasSuffix(text, "\n") {
			t.Errorf("%s does not end with a line", f)
		}
	}
	// A crash tears the last line: the next one stands alone.
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"id":"torn","upd`)
	f.Close()
	write(inc("c", 1))
	l.close()
	if got := strings.Join(ids(), " "); !strings.HasSuffix(got, "c@1") || strings.Contains(got, "torn") {
		t.Errorf("after the torn line: %s", got)
	}
	// A write that fails, here to a file that is closed, costs its own line.
	write(inc("d", 1))
	l.f.Close()
	if err := l.write(inc("e", 1)); err == nil {
		t.Error("writing to a closed file worked")
	}
	write(inc("f", 1))
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(ids(), " "); !strings.HasSuffix(got, "d@1 f@1") {
		t.Errorf("after the failed write: %s", got)
	}
	if bytes.Contains([]byte(slurp(t, dir, report.LogName)), []byte("\n\n")) {
		t.Error("an empty line")
	}
}

// A line longer than the limit gets a file of its own, and nothing is lost.
func TestLogLineOverTheLimit(t *testing.T) {
	dir := t.TempDir()
	l := jsonLog{path: filepath.Join(dir, "log"), max: 10, keep: 5}
	for _, s := range []string{"short", strings.Repeat("long", 10), "end"} {
		if err := l.write(s); err != nil {
			t.Fatal(err)
		}
	}
	l.close()
	if got := slurp(t, dir, "log.2") + slurp(t, dir, "log.1") + slurp(t, dir, "log"); strings.Count(got, "\n") != 3 ||
		!strings.HasPrefix(got, `"short"`) || !strings.HasSuffix(got, "\"end\"\n") {
		t.Errorf("logs %q", got)
	}
}
