package pipeline_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// entry is a cap as the enforcer knows it.
type entry struct {
	plan.Action
	began          sample.Millis
	applied, ended sample.Millis // 0 if not
	asked          bool          // an Uncap was requested
	live           bool          // from the Cap action until Lifted
}

// check is what holds after every call, for any order of calls (doc.go).
func (w *world) check(out output) {
	w.t.Helper()
	p := w.pair[0]
	wrong := func(a plan.Action, why string) {
		w.t.Helper()
		w.t.Fatalf("at %s %s: %+v", clock(w.now.at), why, a)
	}
	for _, a := range out.actions {
		if a.Kind == plan.Uncap {
			switch e := w.books[a.ID]; {
			case e == nil || !e.live:
				wrong(a, "an uncap without a cap")
			case e.asked:
				wrong(a, "a second uncap")
			default:
				e.asked = true
			}
			continue
		}
		if a.Kind == plan.Adjust {
			switch e := w.books[a.ID]; {
			case !w.policy.Feedback && w.policy.MaxDuration == 0 || a.By != "quell":
				wrong(a, "a cap is adjusted that is not to be")
			case e == nil || !e.live || e.asked:
				wrong(a, "an adjustment of no cap")
			case a.Until < e.Until || a.Until > e.Until && a.Until.Sub(e.began) > w.policy.MaxDuration:
				wrong(a, "an adjustment takes from a cap's time, or gives it more than the longest")
			case a.Until <= w.now.at || a.Task.Key != e.Task.Key:
				wrong(a, "an adjustment changes more than the rate and the end")
			case a.Rate != e.Rate && !w.policy.Feedback:
				wrong(a, "the rate of a fixed cap is changed")
			case a.Task.Class == sample.BestEffort && a.Rate < w.policy.BestEffortRate, a.Task.Class == sample.Batch && a.Rate < w.policy.Rate:
				wrong(a, "it takes more than the hard cap")
			case a.Rate < 0.49*e.Rate || a.Rate > 2.01*e.Rate:
				wrong(a, "too large a step")
			default:
				if a.Until > e.Until {
					w.renewed++
				}
				e.Rate, e.Until = a.Rate, a.Until
				w.adjusted++
			}
			continue
		}
		live := 0
		for _, e := range w.books {
			if e.live {
				live++
				if e.Task.Key == a.Task.Key {
					wrong(a, "a second cap on the task")
				}
			}
		}
		switch {
		case w.books[a.ID] != nil:
			wrong(a, "the ID was used before")
		case a.Task.Class == sample.LatencySensitive, a.Task.NeverCap, a.Task.Holds != "":
			wrong(a, "this task must never be capped")
		case a.Until <= w.now.at, a.Rate > 0 == (!a.IO.IsZero() || a.Net > 0):
			wrong(a, "a cap without an end, or not of one thing")
		case a.By == "quell" && w.policy.Mode != plan.On:
			wrong(a, "quell acts although it is not on")
		case a.By == "quell" && live >= w.policy.MaxCaps:
			wrong(a, "more caps than allowed")
		case a.By == "quell":
			w.checkAccused(a, wrong)
		}
		w.books[a.ID] = &entry{Action: a, began: w.now.at, live: true}
	}
	var want, got []string
	for id, e := range w.books {
		if e.live {
			want = append(want, id)
			if !p.Capped(e.Task.Key) {
				wrong(e.Action, "the planner does not know the task to be capped")
			}
		}
	}
	for _, c := range p.Caps() {
		got = append(got, c.ID)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		w.t.Fatalf("at %s the planner holds caps %v, the enforcer %v", clock(w.now.at), got, want)
	}
	for i := range out.incidents {
		w.checkIncident(&out.incidents[i])
	}
}

// checkAccused: a cap of quell's own has an accused suspect and a victim to help.
func (w *world) checkAccused(a plan.Action, wrong func(plan.Action, string)) {
	i := slices.IndexFunc(w.pair[0].Open(), func(inc pipeline.Change) bool { return inc.ID == a.Incident })
	if i < 0 {
		wrong(a, "a cap of quell's own for no open incident")
	}
	inc := w.pair[0].Open()[i]
	found := inc.Now()
	s := slices.IndexFunc(found.Suspects[:found.Antagonists], func(s detect.Suspect) bool { return s.Key == a.Task.Key })
	switch {
	case found.Kind != detect.Neighbour:
		wrong(a, "a cap although the finding accuses no task")
	case inc.Victim.Class != sample.LatencySensitive && !inc.Victim.Protected:
		wrong(a, "a cap for a victim that is not to be helped")
	case inc.Victim.Key == a.Task.Key:
		wrong(a, "the victim is capped")
	case s < 0 || found.Suspects[s].Excluded != "" || found.Suspects[s].Correlation < w.params.Correlation || found.Suspects[s].Level < detect.Likely:
		wrong(a, "a cap on a task that is not accused")
	}
}

func (w *world) checkIncident(inc *pipeline.Change) {
	w.t.Helper()
	if inc.Opened == inc.Updated || inc.Closed != 0 { // only then: it is large and updated often
		text, err := json.Marshal((*incident.Record)(inc))
		var back incident.Record
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || back.ID != inc.ID || len(back.Rounds) != len(inc.Rounds) || back.Kind != inc.Kind {
			w.t.Fatalf("incident %s as JSON: %v\n%s", inc.ID, err, text)
		}
	}
	w.checkRecord(inc)
	c := &inc.Chart
	for _, track := range c.Usage {
		if len(track.Usage) != len(c.Times) {
			w.t.Fatalf("incident %s: %d times, %d of %s", inc.ID, len(c.Times), len(track.Usage), track.Task)
		}
	}
	if len(c.VictimCost) != len(c.Times) || !slices.IsSorted(c.Times) {
		w.t.Fatalf("incident %s: the chart has %d times, %d costs", inc.ID, len(c.Times), len(c.VictimCost))
	}
	for _, r := range inc.Rounds {
		if (r.Ended != 0) != (r.Outcome != "") || r.Ended > w.now.at {
			w.t.Fatalf("incident %s: round %+v", inc.ID, r)
		}
	}
	if inc.Closed != 0 && slices.ContainsFunc(inc.Rounds, func(r *plan.Round) bool { return r.Ended == 0 }) {
		w.t.Fatalf("incident %s closed under a cap", inc.ID)
	}
}

// remembered is what an incident said before.
type remembered struct {
	level detect.Level
	vain  int // rounds
	named []sample.TaskKey
}

// checkRecord: an incident's level falls only after a cap in vain. A task that was named
// is in its findings until its end, and the incident then stays a neighbour's.
func (w *world) checkRecord(inc *pipeline.Change) {
	w.t.Helper()
	is, was := remembered{level: inc.Level()}, w.records[inc.ID]
	for _, r := range inc.Rounds {
		if r.Outcome == plan.Noise || r.Outcome == plan.FalsePositive {
			is.vain++
		}
	}
	for _, f := range inc.Findings {
		is.named = append(is.named, f.Suspect.Key)
		if f.From > f.Until || f.Until > inc.Updated {
			w.t.Fatalf("incident %s: %s was named from %s to %s", inc.ID, f.Suspect.Name, clock(f.From), clock(f.Until))
		}
	}
	for _, k := range was.named {
		if !slices.Contains(is.named, k) {
			w.t.Fatalf("incident %s forgot that it named %v: %+v", inc.ID, k, inc.Findings)
		}
	}
	now := inc.Now()
	for i, s := range now.Suspects[:now.Antagonists] {
		if s.Level < detect.Likely || !slices.Contains(is.named, s.Key) {
			w.t.Fatalf("incident %s names %s, number %d, which is %s: %+v", inc.ID, s.Name, i, s.Level, inc.Findings)
		}
	}
	switch {
	case is.level < was.level && is.vain == was.vain && inc.Kind != detect.PhaseChange:
		w.t.Fatalf("incident %s was %s and is %s", inc.ID, was.level, is.level)
	case (inc.Accused != 0) != (len(is.named) > 0), inc.Accused != 0 && inc.Kind != detect.Neighbour:
		w.t.Fatalf("incident %s named %v and says %s, accused at %d", inc.ID, is.named, inc.Kind, inc.Accused)
	}
	w.records[inc.ID] = is
}

// checkEnds: after a Tick no cap outlives its end.
func (w *world) checkEnds() {
	w.t.Helper()
	for _, e := range w.books {
		if e.live && !e.asked && e.Until <= w.now.at {
			w.t.Fatalf("at %s the cap on %s should have ended at %s", clock(w.now.at), e.Task.Name, clock(e.Until))
		}
	}
}

// render is the whole text of an output, but for the charts: they are large, and in most outputs.
func (w *world) render(out output) string {
	var b strings.Builder
	for _, a := range out.actions {
		fmt.Fprintf(&b, "%+v\n", a)
	}
	for _, f := range out.findings {
		fmt.Fprintf(&b, "%+v\n", f)
	}
	for i := range out.incidents {
		inc := out.incidents[i]
		inc.Chart = pipeline.Chart{}
		text, err := json.Marshal((*incident.Record)(&inc))
		fmt.Fprintln(&b, string(text), err)
	}
	return b.String()
}

// sameCharts reports whether the charts of two incidents are the same.
func sameCharts(a, b pipeline.Change) bool {
	same := func(a, b []stat.Float) bool {
		return slices.EqualFunc(a, b, func(x, y stat.Float) bool { return x == y || x != x && y != y })
	}
	return slices.Equal(a.Times, b.Times) && same(a.VictimCost, b.VictimCost) && slices.EqualFunc(a.Usage, b.Usage, func(x, y pipeline.Track) bool {
		return x.Task == y.Task && same(x.Usage, y.Usage)
	})
}

func clock(at sample.Millis) string {
	if at%60_000 == 0 {
		return at.Time().Format("15:04")
	}
	return at.Time().Format("15:04:05")
}

// print writes the actions, and what is new in incidents.
func (w *world) print(out output) {
	at := clock(w.now.at)
	for _, a := range out.actions {
		switch a.Kind {
		case plan.Cap:
			fmt.Fprintf(&w.out, "%s cap %s to %s until %s by %s", at, a.Task.Name, held(a), clock(a.Until), a.By)
		case plan.Uncap:
			fmt.Fprintf(&w.out, "%s uncap %s", at, a.Task.Name)
		case plan.Adjust:
			fmt.Fprintf(&w.out, "%s adjust %s to %.3g", at, a.Task.Name, a.Rate)
			if w.policy.MaxDuration > 0 {
				fmt.Fprintf(&w.out, " until %s", clock(a.Until))
			}
		}
		if a.Why != "" {
			fmt.Fprintf(&w.out, ": %s", a.Why)
		}
		fmt.Fprintln(&w.out)
	}
	for i := range out.incidents {
		w.printIncident(at, &out.incidents[i])
	}
}

func (w *world) printIncident(at string, inc *pipeline.Change) {
	n := slices.Index(w.order, inc.ID)
	if n < 0 {
		n = len(w.order)
		w.order = append(w.order, inc.ID)
		fmt.Fprintf(&w.out, "%s incident %d opened: %s of %s at %.3g over %.3g since %s\n", at, n+1, inc.Signal, inc.Victim.Name, inc.Cost, inc.Threshold, clock(inc.Began))
	}
	say := func(key, text string) {
		if w.state[inc.ID+key] != text {
			w.state[inc.ID+key] = text
			fmt.Fprintf(&w.out, "%s incident %d%s: %s\n", at, n+1, key, text)
		}
	}
	for i, r := range inc.Rounds {
		if r.Ended != 0 {
			measured := "not measured"
			if r.Samples > 0 {
				measured = fmt.Sprintf("%.3g before, %.3g under the cap in %d samples, relative %.2f", r.CostBefore, r.CostUnder, r.Samples, r.RelativeCost)
			}
			say(fmt.Sprintf(" round %d", i+1), fmt.Sprintf("%s, %s; %s", r.Suspect.Name, r.Outcome, measured))
		}
	}
	// What the actions and findings said already is not repeated.
	reason, now := inc.Reason, inc.Now()
	if inc.Antagonists > 0 {
		reason = ""
	}
	say("", joined(inc.Kind.String(), string(inc.Outcome), inc.Advice, inc.NotDone, reason))
	var named []string
	for _, f := range inc.Findings {
		named = append(named, fmt.Sprintf("%s %s", f.Suspect.Name, f.Suspect.Level))
	}
	if len(named) > 0 {
		say(" named", strings.Join(named, ", "))
	}
	switch {
	case now.Kind != inc.Kind:
		say(" now", joined(now.Kind.String(), now.Reason))
	case w.state[inc.ID+" now"] != "":
		say(" now", now.Kind.String())
	}
	if inc.Closed != 0 {
		say(" closed", string(inc.Outcome))
	}
}

// joined joins the parts that are not empty.
func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), "; ")
}

// held is what an action limits its task to.
func held(a plan.Action) string {
	if a.IO.IsZero() {
		return fmt.Sprint(a.Rate)
	}
	return a.Limit()
}

// say prints a finding unless the last one on that victim accused the same tasks.
func (w *world) say(f detect.Finding) {
	var names []string
	for _, s := range f.Suspects[:f.Antagonists] {
		name := string(s.Name)
		if s.CoVictim {
			name += " (co-victim)"
		}
		names = append(names, name)
	}
	text := fmt.Sprintf("%s: %s %s", f.Victim.Name, f.Kind, strings.Join(names, ", "))
	if w.said[f.Victim.Name] != text {
		w.said[f.Victim.Name] = text
		fmt.Fprintf(&w.out, "%s finding on %s\n", clock(w.now.at), strings.TrimSpace(text))
	}
}

// show prints what a script asks for.
func (w *world) show(what string) {
	p := w.pair[0]
	switch what {
	case "suspects":
		for i, s := range w.found.Suspects {
			mark := ""
			if i < w.found.Antagonists {
				mark = ", accused"
			}
			if s.Excluded != "" {
				mark = ", " + s.Excluded
			}
			fmt.Fprintf(&w.out, "%.2f %s, %s%s\n", s.Correlation, s.Name, s.Class, mark)
		}
	case "caps":
		for _, c := range p.Caps() {
			fmt.Fprintf(&w.out, "%s to %s until %s by %s, applied %v\n", c.Task.Name, held(c.Action), clock(c.Until), c.By, c.Applied)
		}
	case "incidents":
		for _, inc := range p.Open() {
			fmt.Fprintf(&w.out, "%d: %s of %s, %d rounds, %d intervals drawn\n", slices.Index(w.order, inc.ID)+1, inc.Signal, inc.Victim.Name, len(inc.Rounds), len(inc.Chart.Times))
		}
	}
}

func (w *world) printed() string {
	s := w.out.String()
	w.out.Reset()
	return s
}
