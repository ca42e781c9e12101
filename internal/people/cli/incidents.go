package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
)

type incidentFlags struct {
	open     bool
	since    time.Duration
	victim   string
	limit    int
	stateDir string
}

func (a *commands) incidents() *cobra.Command {
	var f incidentFlags
	var at *scope
	cmd := &cobra.Command{
		Use: "incidents [ID|last]", Short: "list incidents, or show one in full", Args: cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeIncident,
		RunE: func(cmd *cobra.Command, args []string) error {
			here, err := at.here(cmd)
			for _, flag := range []string{"open", "since", "victim", "limit"} {
				if len(args) == 1 && cmd.Flags().Changed(flag) && (here || flag == "victim" || flag == "limit") { // the server selects by the others
					return app.Usage(fmt.Errorf("--%s is for lists of incidents, and %q shows one", flag, args[0]), "leave one of them out")
				}
			}
			switch {
			case err != nil:
				return err
			case !here && len(args) == 1:
				return a.clusterIncidents(cmd, at, f, args[0])
			case !here:
				return a.clusterIncidents(cmd, at, f, "")
			case len(args) == 1:
				return a.incident(cmd.Context(), f, args[0])
			}
			found, err := a.findIncidents(cmd.Context(), f)
			if err != nil {
				return err
			}
			return a.listIncidents(found.Incidents, found.Older)
		},
	}
	at = a.addScope(cmd)
	cmd.Flags().BoolVar(&f.open, "open", false, "only incidents that are not closed")
	app.DurationVar(cmd.Flags(), &f.since, "since", 0, "only incidents updated within this time, e.g. 1h")
	cmd.Flags().StringVar(&f.victim, "victim", "", "only this victim, named as in commands, or those that match: * is any sequence of characters")
	cmd.Flags().IntVar(&f.limit, "limit", 100, "maximum number of incidents, the newest ones; 0: all")
	cmd.Flags().StringVar(&f.stateDir, "state-dir", "", "read the log in the agent's state directory instead of asking the agent")
	return a.WithJSON(cmd)
}

// listIncidents writes a list, and how many older ones are not in it: JSON has no place for that.
func (a *commands) listIncidents(all []incident.Record, older int) error {
	if !a.JSON {
		return report.Incidents(a.Out, all, older, a.Style())
	}
	if older > 0 {
		fmt.Fprintf(a.Err, "quell: %d older incidents are left out: --limit 0 lists all\n", older)
	}
	return a.WriteJSON(app.List(all))
}

// book opens the log in the agent's state directory.
func (a *commands) book(dir string) (*logbook.Book, error) {
	b, err := logbook.Read(dir)
	if err != nil {
		return nil, app.Usage(err, "name the directory that is state_dir in the agent's configuration, and run as root")
	}
	if n := b.Skipped(); n > 0 {
		fmt.Fprintf(a.Err, "quell: skipped %d damaged line(s) of the log in %s\n", n, dir)
	}
	return b, nil
}

// noAgent adds to a client error that the log can be read without an agent.
func noAgent(err error) error {
	if e, ok := errors.AsType[*api.UnreachableError](err); ok {
		return app.Usage(err, e.Remedy()+"; or read its log with --state-dir /var/lib/quell")
	}
	return err
}

func (f *incidentFlags) check() error {
	switch {
	case f.since < 0:
		return fmt.Errorf("--since %v: want a duration above 0", f.since)
	case f.limit < 0:
		return fmt.Errorf("--limit %d: want a number of incidents, 0 for all", f.limit)
	}
	return nil
}

func (a *commands) findIncidents(ctx context.Context, f incidentFlags) (found api.Incidents, err error) {
	if err := f.check(); err != nil {
		return found, err
	}
	q := logbook.Query{Open: f.open, Victim: f.victim, Limit: f.limit}
	if f.since > 0 {
		q.Since = sample.At(a.Now().Add(-f.since))
	}
	if f.stateDir == "" {
		found, err = a.client().Incidents(ctx, q)
		return found, noAgent(err)
	}
	b, err := a.book(f.stateDir)
	if err == nil {
		found.Incidents, found.Older, err = b.List(q)
	}
	return found, err
}

// incident shows the incident with an ID.
func (a *commands) incident(ctx context.Context, f incidentFlags, id string) (err error) {
	var inc incident.Record
	if f.stateDir == "" {
		inc, err = a.client().Incident(ctx, id)
		err = noAgent(err)
	} else if b, bad := a.book(f.stateDir); bad != nil {
		err = bad
	} else {
		inc, err = b.Incident(id)
	}
	var many *logbook.AmbiguousError
	switch {
	case errors.As(err, &many):
		return app.Negative(err, "give more of its ID")
	case errors.Is(err, logbook.ErrNotFound):
		return app.Negative(err, "see `quell incidents`")
	case err != nil:
		return err
	}
	return app.Show(a.App, inc, report.Incident)
}

// completeIncident completes incident IDs, newest first.
func (a *commands) completeIncident(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var ids []string
	if len(args) == 0 {
		if found, err := a.client().Incidents(cmd.Context(), logbook.Query{Limit: 100}); err == nil {
			for _, inc := range slices.Backward(found.Incidents) {
				ids = append(ids, cobra.CompletionWithDesc(inc.ID, string(inc.Victim.Name)))
			}
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
