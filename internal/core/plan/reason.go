package plan

import (
	"fmt"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/sample"
)

// All texts about findings are here, in the terms of the method that decided.

// Explain says what a suspect's level rests on, as a clause that names the suspect. For a
// correlation it is only a figure; "" if nothing is known.
func Explain(sig sample.SignalName, victim sample.TaskName, s *detect.Suspect) string {
	var text string
	switch {
	case s.Basis == detect.ByTrial, s.Basis == detect.ByGroup:
		return s.Why
	case s.Basis == detect.ByAccounts && s.Displaced > 0:
		text = fmt.Sprintf("%s uses more than before and displaced other tasks, which %s for %s of the time in which %s was served or waited",
			s.Name, served(sig), percent(s.Displaced), victim)
	case s.Basis == detect.ByAccounts:
		text = fmt.Sprintf("%s %s for %s of the time in which %s was served or waited (usually %s", s.Name, served(sig), percent(s.Share), victim, percent(s.UsualShare))
		if s.FairShare > 0 {
			text += ", fair share " + percent(s.FairShare)
		}
		text += ")"
	case s.Basis == detect.ByFormula:
		text = fmt.Sprintf("correlation %.2f", s.Correlation)
	case s.Probability > 0:
		text = fmt.Sprintf("probability %.2f that it is %s", s.Probability, s.Name)
		if s.Why != "" && !strings.HasPrefix(s.Why, capDidNotHelp) {
			return text + ": " + s.Why
		}
	}
	if text != "" && s.Why != "" {
		text += "; "
	}
	return text + s.Why
}

// Figure is the number that a suspect's level rests on, briefly; "" if there is none.
func Figure(s *detect.Suspect) string {
	switch {
	case s.Basis == detect.ByTrial:
		return "tried"
	case s.Basis == detect.ByGroup:
		return "tried together"
	case s.Basis == detect.ByAccounts:
		return percent(s.Share + s.Displaced)
	case s.Basis == detect.ByFormula:
		return fmt.Sprintf("r %.2f", s.Correlation)
	case s.Probability > 0:
		return fmt.Sprintf("p %.2f", s.Probability)
	}
	return ""
}

func percent(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) }

// served is the verb for a task that was served while another task waited.
func served(n sample.SignalName) string {
	switch sig, _ := sample.LookupSignal(n); sig.Domain {
	case sample.SharedDevice:
		return "was served by the disk"
	case sample.SharedInterface:
		return "sent"
	}
	return "ran"
}

// maxReasonSuspects is how many antagonists a reason mentions.
const maxReasonSuspects = 3

// reason says what an analysis of an incident rests on.
func reason(inc *Incident, a *Analysis, trial bool) string {
	says := func(s *detect.Suspect) string {
		text := Explain(inc.Signal, inc.Victim.Name, s)
		switch {
		case text == "":
			return string(s.Name)
		case s.Basis == detect.ByFormula:
			return fmt.Sprintf("%s has %s", s.Name, text)
		}
		return text
	}
	var first *detect.Suspect
	if len(a.Suspects) > 0 && a.Suspects[0].Excluded == "" {
		first = &a.Suspects[0]
	}
	switch a.Kind {
	case detect.Neighbour:
		var parts []string
		for i := range a.Suspects[:min(a.Antagonists, maxReasonSuspects)] {
			parts = append(parts, says(&a.Suspects[i]))
		}
		if more := a.Antagonists - maxReasonSuspects; more > 0 {
			parts = append(parts, fmt.Sprintf("and %d more", more))
		}
		if len(parts) == 0 && first != nil { // capped in vain
			parts = append(parts, says(first))
		}
		return strings.Join(parts, "; ")
	case detect.Nobody, detect.Indeterminate:
		switch {
		case trial && first != nil:
			text := fmt.Sprintf("%s explains the cost, but chance or another suspect may explain it too", first.Name)
			if why := Explain(inc.Signal, inc.Victim.Name, first); why != "" {
				text += "; " + why
			}
			return text
		case a.Kind == detect.Indeterminate:
			return "every sample of the window is bad: the suspects cannot be told apart"
		case first == nil:
			return "no suspect is left"
		case first.Basis == detect.ByFormula:
			return fmt.Sprintf("no suspect's correlation reaches the threshold; the best, %s, has %.2f", first.Name, first.Correlation)
		case first.Level >= detect.Possible:
			return "no suspect is likely; " + says(first)
		}
		return "no evidence against any suspect"
	case detect.PhaseChange:
		return change(a.Change)
	case detect.OwnQuota:
		if a.HeldBy != "" {
			return fmt.Sprintf("the CPU quota of %s, a cgroup above the task, throttled it; no neighbour is to blame", a.HeldBy)
		}
		return "the task ran into its own CPU quota; no neighbour is to blame"
	case detect.Steal:
		return "the hypervisor took the CPU; the antagonist is another VM"
	case detect.SelfWait:
		return "the task's threads waited for each other; no neighbour is to blame"
	}
	return ""
}

// change says what a task changed in itself.
func change(c detect.Change) string {
	switch c {
	case detect.MoreWork:
		return "the task did more work in the bad intervals; interference does not cause that"
	case detect.LessCPU:
		return "the task's cost rose when it used less CPU, and no other task used more"
	}
	return "the task's cost changed to another level and stayed there, and no other task used more since"
}

// capDidNotHelp describes a task on which a cap did not help.
const capDidNotHelp = "capping it did not help"

// capResult says what a judged cap has shown about its suspect.
func capResult(inc *Incident, r *Round) string {
	if r.didNotHelp() {
		return fmt.Sprintf("%s: %s of %s at %.3g under the cap, %.3g before", capDidNotHelp, inc.Signal, inc.Victim.Name, r.CostUnder, r.CostBefore)
	}
	return fmt.Sprintf("%s of %s fell from %.3g to %.3g while %s was limited to %s", inc.Signal, inc.Victim.Name, r.CostBefore, r.CostUnder, r.Suspect.Name, r.Limit())
}

// Limit is what the task was limited to, for people.
func (c *Capped) Limit() string { return (&Action{Rate: c.Rate, IO: c.IO, Net: c.Net}).Limit() }

// trialCommand is the command with which an operator makes a trial; "" if there is none:
// commands limit CPU time only.
func trialCommand(a *Action, inc *incident, s *detect.Suspect, lasts time.Duration) string {
	if a.Rate <= 0 {
		return ""
	}
	why := "trial: does it hurt " + inc.Victim.Name.String() + "?"
	if f := Figure(s); f != "" {
		why += " " + s.Level.String() + ", " + f
	}
	return fmt.Sprintf("quell cap %s --rate %.4g --for %s --incident %s --reason %s", shell(s.Name.String()), a.Rate, command.Duration(max(lasts, time.Second)), inc.ID, shell(why))
}

// shell quotes an argument for a POSIX shell.
func shell(arg string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:@=+,", r)
	}
	if arg != "" && strings.IndexFunc(arg, func(r rune) bool { return !plain(r) }) < 0 {
		return arg
	}
	return "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
}
