package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/api"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/report"
	"github.com/quell-dev/quell/internal/sample"
)

type incidentFlags struct {
	open     bool
	since    time.Duration
	victim   string
	stateDir string
}

func (a *app) incidents() *cobra.Command {
	var f incidentFlags
	cmd := &cobra.Command{
		Use: "incidents [ID|last]", Short: "list what was found and done, or one incident in full", Args: cobra.MaximumNArgs(1),
		Long: `incidents lists what the agent found and did, oldest first: when, who suffered, by
what, the best suspect with its correlation (the one capped, if any), what was done and
what came of it. RELCOST is the victim's cost under the cap ÷ its cost before it.

With an ID, or any part of one that fits only one incident, it shows that incident in
full: the facts, every suspect with the reason for its rank, the rounds of capping,
and the victim's cost and the suspects' usage over time.`,
		Example: `  quell incidents --open
  quell incidents --since 24h --victim '*redis*'
  quell incidents last
  quell incidents 120905.250-7 --json | jq .suspects
  quell incidents --state-dir /var/lib/quell    # without an agent`,
		ValidArgsFunction: a.completeIncident,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := a.loadIncidents(cmd.Context(), f)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				return a.incident(all, args[0])
			}
			if a.json {
				return a.writeJSON(list(all))
			}
			return report.Incidents(a.out, all, a.style())
		},
	}
	cmd.Flags().BoolVar(&f.open, "open", false, "only incidents that are not closed")
	cmd.Flags().DurationVar(&f.since, "since", 0, "only incidents that something happened in so recently, e.g. 1h")
	cmd.Flags().StringVar(&f.victim, "victim", "", "only victims whose name matches; * is any run of characters")
	cmd.Flags().StringVar(&f.stateDir, "state-dir", "", "read the log in the agent's state directory instead of asking the agent")
	return a.withJSON(cmd)
}

func (a *app) loadIncidents(ctx context.Context, f incidentFlags) ([]plan.Incident, error) {
	if f.since < 0 {
		return nil, fmt.Errorf("--since %v: want a duration above 0", f.since)
	}
	var all []plan.Incident
	var err error
	if f.stateDir != "" {
		var skipped int
		all, skipped, err = report.LoadIncidents(f.stateDir)
		if err != nil {
			return nil, &usageError{err, "name the directory that is state_dir in the agent's configuration, and run as root"}
		}
		if skipped > 0 {
			fmt.Fprintf(a.err, "quell: skipped %d damaged line(s) of the log in %s\n", skipped, f.stateDir)
		}
	} else if all, err = a.client().Incidents(ctx, f.open); err != nil {
		var e *api.UnreachableError
		if errors.As(err, &e) {
			return nil, &usageError{err, e.Remedy() + "; or read its log with --state-dir /var/lib/quell"}
		}
		return nil, err
	}
	from := sample.Millis(0)
	if f.since > 0 {
		from = sample.At(a.now().Add(-f.since))
	}
	return slices.DeleteFunc(all, func(inc plan.Incident) bool {
		return f.open && inc.Closed != 0 || inc.Updated < from || f.victim != "" && !matches(f.victim, string(inc.Victim.Name))
	}), nil
}

// matches reports whether a name fits a pattern whose stars stand for any run
// of characters, "/" too: cgroup paths are long.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return pattern == name
	}
	name, ok := strings.CutPrefix(name, parts[0])
	for _, part := range parts[1:last] {
		_, rest, found := strings.Cut(name, part)
		name, ok = rest, ok && found
	}
	return ok && strings.HasSuffix(name, parts[last])
}

func (a *app) incident(all []plan.Incident, id string) error {
	found := report.MatchID(all, id)
	switch len(found) {
	case 1:
	case 0:
		return &noError{fmt.Errorf("find incident %q: there is none among %d", id, len(all)), "see `quell incidents`"}
	default:
		var ids []string
		for _, inc := range found {
			ids = append(ids, inc.ID)
		}
		return &noError{fmt.Errorf("find incident %q: it could be any of %s", id, strings.Join(ids, ", ")), "give more of its ID"}
	}
	if a.json {
		return a.writeJSON(found[0])
	}
	return report.Incident(a.out, found[0], a.style())
}

// completeIncident offers IDs for the shell's completion, newest first.
func (a *app) completeIncident(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var ids []string
	if len(args) == 0 {
		if all, err := a.client().Incidents(cmd.Context(), false); err == nil {
			for _, inc := range slices.Backward(all) {
				ids = append(ids, cobra.CompletionWithDesc(inc.ID, string(inc.Victim.Name)))
			}
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
