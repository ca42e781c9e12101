package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
)

func (a *commands) offenders() *cobra.Command {
	fetch := func(ctx context.Context) ([]plan.Offender, error) { return a.client().Offenders(ctx) }
	return list(a, &cobra.Command{
		Use: "offenders", Short: "list jobs whose caps helped a victim, and which are confined",
		Long: `offenders lists the jobs whose caps helped a victim: how often, when last, the task and
the victim, and whether the job is confined. Caps on a confined job last longer
(enforce.confine_for), because enough of them helped recently (enforce.confine; 0, the
default: no job is confined). The list survives restarts of the agent; it holds the 256
most recent offenders. quell pardon removes a job from it.`,
		Example: `  quell offenders
  quell offenders --json | jq '.[] | select(.confined)'`,
	}, fetch, []string{"job", "confined", "#helped", "last", "task", "victim"}, func(o plan.Offender) []string {
		confined := "-"
		if o.Confined {
			confined = "yes"
		}
		last := "-"
		if n := len(o.Helped); n > 0 {
			last = o.Helped[n-1].Time().In(a.Zone).Format("2006-01-02 15:04")
		}
		return []string{string(o.Job), confined, fmt.Sprint(len(o.Helped)), last, string(o.Task), string(o.Victim)}
	})
}

func (a *commands) pardon() *cobra.Command {
	return a.order(&cobra.Command{
		Use: "pardon JOB --reason TEXT", Short: "remove a job from the list of offenders", Args: cobra.ExactArgs(1),
		Long: `pardon makes the agent forget that caps on a job helped others: the job is no longer
confined, until caps on it have helped as often again. A cap in force stays until it
expires (quell uncap removes it). With --machine or --cluster the command goes to another
machine's agent, or to all, through quell-server.`,
		Example: `  quell pardon encode --reason "it reads its files in pieces now, ticket 4711"
  quell pardon encode --cluster --reason "fixed in release 7"`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			all, err := a.client().Offenders(cmd.Context())
			return completions(all, err, func(o plan.Offender) string { return string(o.Job) })
		},
	}, func(args []string) command.Command { return command.Command{Pardon: &command.Pardon{Job: args[0]}} })
}
