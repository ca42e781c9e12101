package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/evaluation"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// trialRun holds the flags of quell trial and its progress.
type trialRun struct {
	budget           int
	terms            command.Terms // of each cap
	poll, ends       time.Duration
	reason, out      string
	includeUnaccused bool

	again map[trialKey]time.Time // before it a pair is not tried again
	made  int
	seen  map[string]bool // incidents for which caps were made
}

// trialKey is a capped suspect and its victim: each pair is tried once, and after a lease if the agent refused it.
type trialKey struct{ victim, suspect sample.TaskName }

func (a *commands) trial() *cobra.Command {
	p := plan.Paper()
	t := trialRun{terms: command.Terms{Rate: p.Rate, For: command.Duration(p.For)}, again: map[trialKey]time.Time{}, seen: map[string]bool{}}
	cmd := &cobra.Command{
		Use: "trial --budget N --reason TEXT", Short: "cap reported suspects one at a time, and measure the effect", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runTrials(cmd.Context(), &t) },
	}
	flags := cmd.Flags()
	flags.IntVar(&t.budget, "budget", 0, "maximum number of caps (required)")
	flags.Var((*command.Rate)(&t.terms.Rate), "rate", "limit in CPUs (CPU-s/s), 0.001 to 1024; 10% and 100m are a tenth of one")
	leaseFlag(cmd, &t.terms.For, "lease of each cap")
	app.DurationVar(flags, &t.ends, "within", 24*time.Hour, "how long to wait for incidents")
	app.DurationVar(flags, &t.poll, "poll", 2*time.Second, "polling interval")
	flags.BoolVar(&t.includeUnaccused, "any", false, "also cap the best suspect if none is accused, as the paper did to plot correlations below its threshold")
	flags.StringVar(&t.out, "out", "", "also write a report with plots to this file (HTML)")
	reasonFlag(cmd, &t.reason)
	return a.WithJSON(cmd)
}

func (a *commands) runTrials(ctx context.Context, t *trialRun) error {
	switch {
	case t.budget < 1:
		return fmt.Errorf("--budget %d: want 1 or more caps", t.budget)
	case t.poll <= 0 || t.ends <= 0:
		return errors.New("--poll and --within: want durations above 0")
	}
	c := t.capCommand("any of them", "") // the other fields are the same for all
	if err := cmp.Or(command.ValidateWhy(t.reason), c.Validate()); err != nil {
		return explained(err, t.reason)
	}
	if _, err := a.client().Status(ctx); err != nil {
		return err
	}
	limited, stop := context.WithTimeout(ctx, t.ends)
	defer stop()
	for t.made < t.budget && limited.Err() == nil {
		inc, suspect, err := a.nextSuspect(limited, t)
		if err == nil && inc != nil {
			err = a.capAndWait(limited, t, inc, suspect)
		}
		if err != nil && limited.Err() == nil {
			return err
		}
		wait(limited, t.poll)
	}
	// The final, complete incidents.
	last, done := fresh(ctx)
	defer done()
	var e evaluation.Evaluation
	for id := range t.seen {
		inc, err := a.client().Incident(last, id)
		if err != nil {
			return err
		}
		e.Add(&inc)
	}
	fmt.Fprintf(a.Err, "quell: %d of %d caps were made\n", t.made, t.budget)
	return a.showEvaluation(&e, t.out, "")
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// nextSuspect finds an open incident with a suspect to cap, nil if there is none.
func (a *commands) nextSuspect(ctx context.Context, t *trialRun) (*incident.Record, *detect.Suspect, error) {
	found, err := a.client().Incidents(ctx, logbook.Query{Open: true})
	if err != nil {
		return nil, nil, err
	}
	for i := range found.Incidents {
		inc := &found.Incidents[i]
		if !inc.Kind.MayBeANeighbour() || !inc.Victim.MayBeHelped() || capped(inc) {
			continue
		}
		now := inc.Now()
		for k, s := range now.Suspects {
			if k >= now.Antagonists && !(t.includeUnaccused && k == 0) || s.Excluded != "" || !s.MayBeCapped() ||
				time.Now().Before(t.again[trialKey{inc.Victim.Name, s.Name}]) {
				continue
			}
			return inc, &s, nil
		}
	}
	return nil, nil, nil
}

// capped reports whether a cap is already in force for the incident.
func capped(inc *incident.Record) bool {
	return slices.ContainsFunc(inc.Rounds, func(r *incident.Round) bool { return r.Ended == 0 })
}

func (t *trialRun) capCommand(task, incident string) command.Command {
	return command.Command{Why: "trial: " + t.reason, Cap: &command.Cap{Target: command.Target{Task: task}, Terms: t.terms, Incident: incident}}
}

// overdue is how long after its lease a cap is given up: the agent ends it in a tick.
const overdue = time.Minute

// capAndWait caps a suspect for an incident and waits until the cap ends, at most until it is
// overdue.
func (a *commands) capAndWait(ctx context.Context, t *trialRun, inc *incident.Record, s *detect.Suspect) error {
	pair, task := trialKey{inc.Victim.Name, s.Name}, s.Name.Text()
	t.again[pair] = time.Now().Add(time.Duration(t.terms.For))
	done, err := a.client().Command(ctx, t.capCommand(task, inc.ID))
	var refused *api.RefusedError
	if errors.As(err, &refused) {
		fmt.Fprintf(a.Err, "quell: %s was not capped: %s\n", s.Name, printable.Text(err.Error()))
		return nil
	}
	if err != nil {
		return err
	}
	t.made++
	t.seen[inc.ID], t.again[pair] = true, time.Now().Add(t.ends)
	why := plan.Explain(inc.Signal, inc.Victim.Name, s)
	if why != "" {
		why = " (" + why + ")"
	}
	fmt.Fprintf(a.Err, "quell: %d of %d: %s of %s is over its threshold; %s%s is capped for %s\n", t.made, t.budget, inc.Signal, inc.Victim.Name, s.Name, why, t.terms.For)
	leased, end := context.WithTimeout(ctx, time.Duration(t.terms.For)+overdue)
	defer end()
	for leased.Err() == nil {
		now, err := a.client().Incident(leased, inc.ID)
		if err != nil && leased.Err() == nil {
			return err
		}
		i := slices.IndexFunc(now.Rounds, func(r *incident.Round) bool { return r.ID == done.ID })
		switch {
		case i >= 0 && now.Rounds[i].Ended != 0:
			fmt.Fprintf(a.Err, "quell: %s: relative cost %s\n", now.Rounds[i].Outcome, relative(now.Rounds[i]))
			return nil
		case i < 0 && err == nil:
			fmt.Fprintf(a.Err, "quell: the cap is removed: the agent does not measure it for %s\n", inc.ID)
			end()
		}
		wait(leased, t.poll)
	}
	last, stop := fresh(ctx)
	defer stop()
	uncap := command.Command{Why: "the trial was ended", Uncap: &command.Target{Task: task}}
	if _, err := a.client().Command(last, uncap); err != nil && !errors.As(err, &refused) {
		return fmt.Errorf("uncap %s: %w; its cap expires within %s", s.Name, err, t.terms.For)
	}
	return nil
}

func relative(r *incident.Round) string {
	if v := float64(r.RelativeCost); !math.IsNaN(v) {
		return fmt.Sprintf("%.2f", v)
	}
	return "not measured"
}
