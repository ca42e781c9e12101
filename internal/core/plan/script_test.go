package plan_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

var update = flag.Bool("update", false, "accept what the scripts print")

// TestScripts runs testdata/*.txt: what an incident of /web remembers of findings that
// the script gives. A script is comments (#) and steps. A step is commands, a line of
// dashes, and the expected output up to an empty line:
//
//	policy KEY=VALUE …       start anew: mode, cap-at, trial, trials, for, calm
//	finding KIND[, trial][, change CHANGE], COST     suspects follow, indented:
//	  NAME [named] LEVEL METHOD FIGURE [usual U fair F] [co-victim][: WHY]
//	suffers COST, N          N intervals of /web, 10 s each
//	wait D
//	restart                  the agent restarts; it ends the open incident
//	record                   print the incident as it is recorded
//
// Spec 1 ± 0.5, threshold 2, signal runq. A finding takes no time.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(text))
			if got == string(text) {
				return
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s prints something else:\n%s", file, got)
		})
	}
}

func runScript(t *testing.T, text string) string {
	var b strings.Builder
	w := &script{t: t}
	w.policy(nil)
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		if lines[i] == "" || strings.HasPrefix(lines[i], "#") {
			fmt.Fprintln(&b, lines[i])
			i++
			continue
		}
		end := i + slices.Index(lines[i:], "----")
		if end < i {
			t.Fatalf("line %d: no ---- follows", i+1)
		}
		for _, l := range lines[i : end+1] {
			fmt.Fprintln(&b, l)
		}
		w.run(lines[i:end])
		b.WriteString(w.out.String())
		w.out.Reset()
		for i = end + 1; i < len(lines) && lines[i] != ""; i++ {
		}
	}
	return b.String()
}

// script is a planner driven by a script; all its actions succeed.
type script struct {
	t     *testing.T
	p     *plan.Planner
	how   plan.Policy
	now   sample.Millis
	keys  map[string]uint64
	last  *incident.Record
	known past
	out   strings.Builder
}

func (w *script) policy(args []string) {
	w.how = plan.Paper()
	w.how.MinLevel, w.how.Trial = detect.Proven, 3*time.Minute
	for _, arg := range args {
		k, v, _ := strings.Cut(arg, "=")
		var err error
		switch k {
		case "mode":
			w.how.Mode, err = plan.ParseMode(v)
		case "cap-at":
			err = w.how.MinLevel.UnmarshalText([]byte(v))
		case "trial":
			w.how.Trial, err = time.ParseDuration(v)
		case "trials":
			w.how.Trials, err = strconv.Atoi(v)
		case "for":
			w.how.For, err = time.ParseDuration(v)
		case "calm":
			w.how.Calm, err = time.ParseDuration(v)
		default:
			err = fmt.Errorf("policy has no %s", k)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
	w.p = plan.New("machine", detect.Default, w.how)
	w.now, w.keys, w.last, w.known = sample.At(time.Date(2011, 5, 16, 12, 0, 0, 0, time.UTC)), map[string]uint64{}, nil, nil
}

func (w *script) run(lines []string) {
	w.t.Helper()
	for i := 0; i < len(lines); i++ {
		verb, rest, _ := strings.Cut(lines[i], " ")
		var table []string
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], " ") {
			i++
			table = append(table, strings.TrimSpace(lines[i]))
		}
		switch verb {
		case "policy":
			w.policy(strings.Fields(rest))
		case "finding":
			f := w.finding(strings.Split(rest, ", "), table)
			w.known.found(&f)
			w.p.Finding(w.now, f, w.known.window)
			w.drain()
		case "suffers":
			cost, n, _ := strings.Cut(rest, ", ")
			for range int(w.number(n)) {
				readings, verdicts := []detect.Reading{{Task: ptr(web())}}, make([]detect.Verdict, 1)
				for _, c := range w.p.Caps() { // for part of the interval
					readings, verdicts = append(readings, detect.Reading{Task: ptr(c.Task), Flags: sample.Capped}), append(verdicts, detect.Verdict{})
				}
				w.pass(10 * time.Second)
				c := w.number(cost)
				w.known.add(w.now, c)
				readings[0].Cost, verdicts[0] = c, detect.Verdict{Judged: true, Sane: true, Outlier: c > 2}
				w.p.Interval(w.now, sample.RunQ, w.now, readings, verdicts)
				w.drain()
			}
		case "wait":
			d, err := time.ParseDuration(rest)
			if err != nil {
				w.t.Fatal(err)
			}
			for range d / time.Second {
				w.pass(time.Second)
			}
		case "restart":
			w.p = plan.New("machine", detect.Default, w.how)
			if w.last.Closed == 0 {
				w.last.End(w.now, "the agent was restarted")
			}
		case "record":
			w.record()
		default:
			w.t.Fatalf("%q: no such command", lines[i])
		}
	}
}

func (w *script) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.p.Tick(w.now)
	w.drain()
}

func (w *script) number(s string) float64 {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *script) finding(args, table []string) detect.Finding {
	w.t.Helper()
	f := detect.Finding{At: w.now, Signal: sample.RunQ, Victim: web(), Spec: spec.Spec{Mean: 1, StdDev: 0.5}, First: w.now - 20*second,
		Result: detect.Result{Threshold: 2, Bad: 3, Pairs: 10, Cost: w.number(args[len(args)-1])}}
	if err := f.Kind.UnmarshalText([]byte(args[0])); err != nil {
		w.t.Fatal(err)
	}
	for _, arg := range args[1 : len(args)-1] {
		change, ok := strings.CutPrefix(arg, "change ")
		f.Trial, f.Change = f.Trial || arg == "trial", detect.Change(change)
		if !ok {
			f.Change = ""
		}
	}
	for _, line := range table {
		var s detect.Suspect
		line, s.Why, _ = strings.Cut(line, ": ")
		words := strings.Fields(line)
		s.Task = w.task(words[0])
		if words[1] == "named" {
			words = words[1:]
			f.Antagonists++
		}
		if err := s.Level.UnmarshalText([]byte(words[1])); err != nil {
			w.t.Fatal(err)
		}
		for i := 2; i+1 < len(words); i += 2 {
			n := w.number(words[i+1])
			switch words[i] {
			case string(detect.ByAccounts):
				s.Basis, s.Share = detect.ByAccounts, n
			case string(detect.ByStatistics):
				s.Basis, s.Probability = detect.ByStatistics, n
			case string(detect.ByFormula):
				s.Basis, s.Correlation = detect.ByFormula, n
			case string(detect.ByTrial): // with the earlier probability
				s.Basis, s.Probability = detect.ByTrial, n
			case "usual":
				s.UsualShare = n
			case "fair":
				s.FairShare = n
			default:
				w.t.Fatalf("%q: no such figure", words[i])
			}
		}
		s.CoVictim = words[len(words)-1] == "co-victim"
		f.Suspects = append(f.Suspects, s)
	}
	return f
}

// task is a batch task; a name that begins with /fellow is a latency-sensitive one.
func (w *script) task(name string) sample.Task {
	if w.keys[name] == 0 {
		w.keys[name] = uint64(len(w.keys) + 2)
	}
	t := sample.Task{Key: sample.TaskKey{Inode: w.keys[name]}, Name: sample.TaskName(name), Class: sample.Batch}
	if strings.HasPrefix(name, "/fellow") {
		t.Class = sample.LatencySensitive
	}
	return t
}

// drain carries out all actions and keeps the last incident.
func (w *script) drain() {
	for w.p.Pending() {
		out := w.p.Take()
		for _, a := range out.Actions {
			what := map[plan.ActionKind]string{plan.Cap: "cap", plan.Uncap: "uncap", plan.Adjust: "adjust"}[a.Kind]
			fmt.Fprintf(&w.out, "%s %s %s: %s\n", w.clock(w.now), what, a.Task.Name, a.Why)
			if a.Kind == plan.Uncap {
				w.p.Lifted(w.now, a.ID, false)
			} else {
				w.p.Applied(w.now, a.ID, nil)
			}
		}
		for i := range out.Incidents {
			w.last = &incident.Record{Incident: out.Incidents[i]}
		}
	}
}

func (*script) clock(at sample.Millis) string { return at.Time().Format("15:04:05") }

func (w *script) record() {
	r := w.last
	line := func(key string, of ...string) {
		of = slices.DeleteFunc(of, func(s string) bool { return s == "" })
		if len(of) > 0 {
			fmt.Fprintf(&w.out, "  %s: %s\n", key, strings.Join(of, "; "))
		}
	}
	end := "open"
	if r.Closed != 0 {
		end = "closed " + w.clock(r.Closed)
	}
	fmt.Fprintf(&w.out, "%s by %d of %d, found %s, cost %.3g; %s; %s\n", r.Kind, r.Antagonists, len(r.Suspects), w.clock(r.Analysed), r.Cost, r.Outcome, end)
	line("reason", r.Reason)
	if r.Latest != nil {
		line("latest", fmt.Sprintf("%s, %s by %d, cost %.3g", w.clock(r.Latest.Analysed), r.Latest.Kind, r.Latest.Antagonists, r.Latest.Cost), r.Latest.Reason)
	}
	for _, f := range r.Findings {
		line("named", fmt.Sprintf("%s from %s to %s, %s by %s, %s", f.Suspect.Name, w.clock(f.From), w.clock(f.Until), f.Suspect.Level, f.Suspect.Basis, plan.Figure(&f.Suspect)))
	}
	line("not done", r.NotDone)
	line("advice", r.Advice)
}
