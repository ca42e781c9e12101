package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Incidents writes a table in the given order, and the number of older incidents that
// it does not have.
func Incidents(w io.Writer, list []incident.Record, older int, s Style) error {
	p := &page{Style: s}
	if len(list) == 0 {
		p.line("no incidents")
		return p.flush(w)
	}
	t := table{columns: []column{
		{head: "FOUND"}, {head: "ID", drop: 4}, {head: "VICTIM", least: 10}, {head: "SIGNAL", drop: 2}, {head: "KIND", drop: 3},
		{head: "SUSPECT", least: 10}, {head: "LEVEL"}, {head: "ACTION", drop: 1}, {head: "OUTCOME"},
		{head: "RELCOST", right: true},
	}}
	for i := range list {
		inc := &list[i]
		suspect, level := mainSuspect(inc)
		t.row(cell{text: s.when(inc.Opened)}, cell{text: shortID(inc.ID)}, cell{text: inc.Victim.Name.String()},
			cell{text: string(inc.Signal)}, cell{text: inc.Kind.String()}, cell{text: suspect}, cell{text: level},
			cell{text: action(inc)}, s.outcomeCell(inc), cell{text: s.number(relativeCost(inc))})
	}
	t.write(p)
	if slices.ContainsFunc(list, func(inc incident.Record) bool { return inc.Closed == 0 }) {
		p.line(p.paint(dim, "* not closed"))
	}
	if older > 0 {
		p.line(p.paint(dim, fmt.Sprintf("%d older: --limit 0 shows all", older)))
	}
	return p.flush(w)
}

// shortID omits the date, which all IDs of a day share; logbook accepts it.
func shortID(id string) string {
	if _, short, ok := strings.Cut(id, "T"); ok {
		return short
	}
	return id
}

// mainSuspect returns the suspect to show in one line, and its level: the last capped one,
// else the first that was not excluded.
func mainSuspect(inc *incident.Record) (name, level string) {
	if all := inc.Rounds; len(all) > 0 {
		r := all[len(all)-1]
		s := inc.Find(&r.Suspect)
		if s == nil {
			s = &detect.Suspect{Task: r.Suspect, Correlation: r.Correlation}
		}
		name := r.Suspect.Name.String()
		if len(r.With) > 0 {
			name += fmt.Sprintf(" and %d more", len(r.With))
		}
		return name, levelText(inc, s)
	}
	if inc.Kind != detect.Neighbour && inc.Kind != detect.Nobody && inc.Kind != detect.Indeterminate {
		return "-", "-" // not caused by another task
	}
	for _, s := range inc.Suspects {
		if s.Excluded == "" {
			return s.Name.String(), levelText(inc, &s)
		}
	}
	return "-", "-"
}

// levelText is a suspect's level with the number that it is based on. Records of older
// agents have no levels.
func levelText(inc *incident.Record, s *detect.Suspect) string {
	switch figure := plan.Figure(s); {
	case inc.Analysed == 0:
		return fmt.Sprintf("r %.2f", s.Correlation)
	case s.Level == detect.None && figure != "":
		return figure
	default:
		return strings.TrimSuffix(s.Level.String()+", "+figure, ", ")
	}
}

func action(inc *incident.Record) string {
	all := inc.Rounds
	switch {
	case len(all) > 1:
		return fmt.Sprintf("%s, %s", capped(all[len(all)-1]), plural(len(all), "round"))
	case len(all) == 1:
		return capped(all[0])
	case inc.Outcome == plan.WouldCap:
		return "advice"
	}
	return "-"
}

// capped is what a round did, in short.
func capped(r *incident.Round) string {
	switch {
	case !r.IO.IsZero():
		return "cap I/O"
	case r.Net > 0:
		return "cap network"
	}
	return fmt.Sprintf("cap %g", r.Rate)
}

// state is the outcome, or that there is none yet. A cap whose lease is over has ended, also if its
// machine cannot say so.
func (s Style) state(inc *incident.Record) string {
	holds := func(r *incident.Round) bool { return r.Ended == 0 && r.Until > s.Now }
	if inc.Outcome == "" && slices.ContainsFunc(inc.Rounds, holds) {
		return "capped now"
	}
	return cmp.Or(string(inc.Outcome), "cap is over")
}

func (s Style) outcomeCell(inc *incident.Record) cell {
	text := s.state(inc)
	if inc.Closed == 0 {
		text += " *"
	}
	return cell{text, outcomeColor(inc.Outcome)}
}

func outcomeColor(o plan.Outcome) color {
	switch o {
	case plan.TruePositive:
		return green
	case plan.FalsePositive, plan.CapFailed:
		return red
	case plan.WouldCap:
		return yellow
	}
	return plain
}

// relativeCost is the value of the last round, whose task mainSuspect shows; NaN if it was
// not measured.
func relativeCost(inc *incident.Record) float64 {
	if n := len(inc.Rounds); n > 0 && inc.Rounds[n-1].Samples > 0 {
		return float64(inc.Rounds[n-1].RelativeCost)
	}
	return math.NaN()
}

// Incident writes one incident in full: facts, suspects, rounds, and the picture.
func Incident(w io.Writer, inc incident.Record, s Style) error {
	p := &page{Style: s}
	p.facts(&inc)
	p.suspects(&inc)
	p.rounds(&inc)
	p.incidentCharts(&inc)
	return p.flush(w)
}

func (p *page) facts(inc *incident.Record) {
	sig, _ := sample.LookupSignal(inc.Signal)
	from := "of the job"
	if inc.SpecOwn {
		from = "of this machine's own history"
	}
	if inc.SpecSamples > 0 {
		from += fmt.Sprintf(", provisional, of %d samples", inc.SpecSamples)
	}
	p.fact("incident", inc.ID+" on "+inc.Machine)
	p.fact("victim", taskText(inc.Victim))
	p.fact("signal", fmt.Sprintf("%s: %s, counted as %s", inc.Signal, sig.Cost, inc.Variant))
	p.fact("cost", fmt.Sprintf("%s %s; normal is %s ± %s, %s; threshold %s; %s over it when last analysed",
		p.cost(inc.Signal, inc.Cost), sig.Unit, p.cost(inc.Signal, inc.SpecMean), p.cost(inc.Signal, inc.SpecStdDev), from, p.cost(inc.Signal, inc.Threshold), plural(inc.Bad, "interval")))
	times := fmt.Sprintf("bad since %s, found %s", p.local(inc.Began).Format("2006-01-02 15:04:05 MST"), p.clockOf(inc.Opened, inc.Began))
	if d := inc.Opened.Sub(inc.Began); d > 0 {
		times += " (" + span(d) + " later)"
	}
	if inc.Closed != 0 {
		times += ", closed " + p.clockOf(inc.Closed, inc.Began)
	} else {
		times += ", not closed"
	}
	p.fact("time", times)
	p.fact("finding", finding(inc))
	if inc.Reason != "" {
		p.fact("reason", inc.Reason)
	}
	p.writeFindings(inc)
	if now := inc.Latest; now != nil {
		text := fmt.Sprintf("%s: %s, cost %s", p.clockOf(now.Analysed, inc.Began), now.Kind, p.cost(inc.Signal, now.Cost))
		if now.Reason != "" {
			text += "; " + now.Reason
		}
		p.fact("latest", text)
	}
	p.fact("decided", fmt.Sprintf("by rule %s, enforcement %s", inc.Rule, inc.Mode))
	for _, x := range inc.Profiles {
		p.fact("profile", "of "+x.Task.String()+": "+x.URL)
	}
	if inc.Advice != "" {
		p.fact("advice", inc.Advice)
	}
	if inc.NotDone != "" {
		p.fact("not done", inc.NotDone)
	}
	p.colored("outcome", outcomeColor(inc.Outcome), p.outcome(inc))
}

// writeFindings lists the antagonists that the incident named, with times.
func (p *page) writeFindings(inc *incident.Record) {
	label := "named"
	for _, f := range inc.Findings {
		when := "at " + p.clockOf(f.From, inc.Began)
		if f.Until > f.From {
			when = fmt.Sprintf("from %s to %s", p.clockOf(f.From, inc.Began), p.clockOf(f.Until, inc.Began))
		}
		p.fact(label, fmt.Sprintf("%s, %s: %s", f.Suspect.Name, when, levelText(inc, &f.Suspect)))
		label = ""
	}
}

func taskText(t sample.Task) string {
	marks := []string{t.Class.String()}
	if t.Protected {
		marks = append(marks, "protected")
	}
	if t.NeverCap {
		marks = append(marks, "never-cap")
	}
	return fmt.Sprintf("%s (job %s, %s)", t.Name, t.Job, strings.Join(marks, ", "))
}

// class is a suspect's class; usage outside any task has none.
func class(t sample.Task) string {
	if t.Name == detect.OutsideName {
		return "-"
	}
	return t.Class.String()
}

func finding(inc *incident.Record) string {
	switch inc.Kind {
	case detect.Neighbour:
		if inc.Antagonists == 0 {
			return fmt.Sprintf("neighbour: the task named of %s was capped without effect", plural(len(inc.Suspects), "suspect"))
		}
		return fmt.Sprintf("neighbour: %s among %s, compared over %s", plural(inc.Antagonists, "antagonist"), plural(len(inc.Suspects), "suspect"), plural(inc.Pairs, "interval"))
	case detect.Nobody:
		return "nobody: the task suffers, and no suspect is named"
	case detect.Indeterminate:
		return "indeterminate: no good intervals to distinguish suspects"
	case detect.OwnQuota:
		if inc.HeldBy != "" {
			return fmt.Sprintf("own-quota: the CPU quota of %s, a cgroup above the task, throttled it; no neighbour is to blame", inc.HeldBy)
		}
		return "own-quota: the task ran into its own CPU quota; no neighbour is to blame"
	case detect.Steal:
		return "steal: the hypervisor took the CPU; the antagonist is another VM"
	case detect.PhaseChange:
		return "phase-change (" + string(inc.Change) + "): the task's own behaviour changed; no task is accused"
	case detect.SelfWait:
		return "self-wait: the task's threads waited for each other; no neighbour is to blame"
	}
	return inc.Kind.String()
}

func (s Style) outcome(inc *incident.Record) string {
	text := s.state(inc)
	if rel := relativeCost(inc); !math.IsNaN(rel) {
		text += fmt.Sprintf(": relative cost %.2f (the victim's cost under the cap ÷ before it)", rel)
	}
	return text
}

func (p *page) suspects(inc *incident.Record) {
	if len(inc.Suspects) == 0 {
		return
	}
	p.line("")
	t := table{columns: []column{{head: "#", right: true}, {head: "SUSPECT", least: 24}, {head: "CLASS", drop: 1},
		{head: "LEVEL"}, {head: strings.ToUpper(pressure(inc.Signal)), right: true}, {head: "WHY", least: 24, words: true}}}
	for i, sus := range inc.Suspects {
		rank, c := fmt.Sprint(i+1), plain
		var why string
		switch {
		case sus.Excluded != "":
			rank, why, c = "-", "excluded: "+sus.Excluded, dim
		case inc.Kind == detect.PhaseChange || inc.Kind == detect.Indeterminate:
			why = "not accused"
		case i >= inc.Antagonists && (inc.Analysed == 0 || sus.Basis == detect.ByFormula && sus.Level == detect.None):
			why = "below the threshold"
		case i >= inc.Antagonists:
			why = "not named"
		case sus.CoVictim:
			why = "antagonist, but suffered too: ranked behind"
		default:
			why, c = "antagonist", red
		}
		if sus.Excluded == "" && sus.Why != "" {
			why += "; " + sus.Why
		}
		if i < inc.Antagonists && sus.Excluded == "" {
			switch {
			case sus.Name == detect.OutsideName:
				why += "; may not be capped: it runs outside any task"
			case sus.Class == sample.LatencySensitive:
				why += "; may not be capped: latency-sensitive"
			case sus.NeverCap:
				why += "; may not be capped: never-cap"
			case sus.Holds != "":
				why += fmt.Sprintf("; may not be capped: its cgroup contains %s", sus.Holds)
			}
		}
		t.row(cell{text: rank}, cell{text: string(sus.Name)}, cell{text: class(sus.Task)},
			cell{levelText(inc, &sus), c}, cell{text: p.number(sus.Usage)}, cell{why, c})
	}
	t.write(p)
}

func (p *page) rounds(inc *incident.Record) {
	sig, _ := sample.LookupSignal(inc.Signal)
	for i, r := range inc.Rounds {
		if i == 0 {
			p.line("")
		}
		end := "until " + p.clockOf(r.Until, inc.Began) + " at the latest"
		if r.Ended != 0 {
			end = "ended " + p.clockOf(r.Ended, inc.Began)
		}
		text := fmt.Sprintf("%s capped to %s by %s from %s, %s.", r.Names(), r.Limit(), r.By, p.clockOf(r.From, inc.Began), end)
		if r.Why != "" {
			text += " Why: " + r.Why + "."
		}
		p.fact(fmt.Sprintf("round %d", i+1), text)
		result := fmt.Sprintf("cost before the cap %s %s, under it not measured", p.cost(inc.Signal, float64(r.CostBefore)), sig.Unit)
		if r.Samples > 0 && !math.IsNaN(float64(r.RelativeCost)) {
			result = fmt.Sprintf("cost %s → %s %s over %s, relative cost %.2f", p.cost(inc.Signal, float64(r.CostBefore)),
				p.cost(inc.Signal, float64(r.CostUnder)), sig.Unit, plural(int(r.Samples), "sample"), float64(r.RelativeCost))
			if before, under := float64(r.UsageBefore), float64(r.UsageUnder); !math.IsNaN(before) && !math.IsNaN(under) {
				result += fmt.Sprintf("; usage of the capped task %s → %s %s", p.number(before), p.number(under), pressure(inc.Signal))
			}
		}
		if r.Outcome != "" {
			result += ": " + string(r.Outcome)
		}
		p.colored("", outcomeColor(r.Outcome), result)
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// pressure is the unit of a suspect's usage.
func pressure(n sample.SignalName) string {
	sig, known := sample.LookupSignal(n)
	if !known {
		return sample.CPUPerSecond
	}
	return sig.Pressure
}
