package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// decisions lists what operators have decided, on this machine or in the cluster.
func (a *commands) decisions() *cobra.Command {
	cmd := &cobra.Command{Use: "decisions", Short: "list operators' decisions that stand, until when, and which machines have them", Args: app.NoArgs}
	at := a.addScope(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		here, err := at.here(cmd)
		switch {
		case err != nil:
			return err
		case here:
			return a.listOwnDecisions(cmd.Context())
		}
		all, err := at.Decisions(cmd.Context())
		if err != nil {
			return err
		}
		if at.machine != "" {
			all = concerning(all, at.machine)
		}
		return app.Table(a.App, all, []string{"id", "for", "decision", "by", "since", "until", "state", "#machines", "#have", "#done", "#refused", "waiting", "why"},
			func(d cluster.Decision) []string { return a.clusterDecision(&d, all) })
	}
	cmd.AddCommand(a.revokeDecision())
	return a.WithJSON(cmd)
}

// concerning are the decisions for a machine, and those for all.
func concerning(all []cluster.Decision, machine string) (own []cluster.Decision) {
	for _, d := range all {
		if d.Machine == "" || d.Machine == machine {
			own = append(own, d)
		}
	}
	return own
}

// newerMode is the decision on the mode that holds in place of d on all of its machines; "" if there is none.
func newerMode(d *cluster.Decision, all []cluster.Decision) string {
	var list []command.Decision
	for _, o := range concerning(all, d.Machine) {
		if o.Rollout == nil {
			list = append(list, o.Decision)
		}
	}
	if n := command.Newest(list, d.Machine, 0); d.Enforcement != nil && n != nil && n.At > d.At {
		return n.ID
	}
	return ""
}

func (a *commands) clusterDecision(d *cluster.Decision, all []cluster.Decision) []string {
	scope := "all"
	if d.Machine != "" {
		scope = d.Machine
	}
	state := "in force"
	if d.Rollout != nil {
		state = d.Rollout.Text()
	} else if by := newerMode(d, all); by != "" {
		state = "behind " + by
	}
	return append(a.decision(&d.Decision, scope), state, fmt.Sprint(d.Machines), fmt.Sprint(d.Have), fmt.Sprint(d.Done), fmt.Sprint(d.Refused), strings.Join(d.Waiting, ", "), d.Why)
}

// decision is the columns that all lists have.
func (a *commands) decision(d *command.Decision, scope string) []string {
	since, until := "", "reset"
	if d.At != 0 {
		since = a.at(d.At)
	}
	if d.Until != 0 {
		until = a.at(d.Until)
	}
	return []string{d.ID, scope, d.Command.String(), d.Who, since, until}
}

func (a *commands) listOwnDecisions(ctx context.Context) error {
	all, err := a.client().Decisions(ctx)
	if err != nil {
		return err
	}
	return app.Table(a.App, all, []string{"id", "from", "decision", "by", "since", "until", "outcome", "why"}, func(d api.Decision) []string {
		return append(a.decision(d.Decision, string(d.From)), d.Outcome, d.Decision.Why)
	})
}

func (a *commands) revokeDecision() *cobra.Command {
	return a.order(&cobra.Command{
		Use: "revoke ID --reason TEXT", Short: "end a decision before its end", Args: cobra.ExactArgs(1),
	}, func(args []string) command.Command { return command.Command{Reset: &command.Reset{Decision: args[0]}} })
}
