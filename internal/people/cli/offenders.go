package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

func (a *commands) offenders() *cobra.Command {
	cmd := &cobra.Command{
		Use: "offenders", Short: "list jobs whose caps helped a victim, and which are confined", Args: cobra.NoArgs,
		Long: `offenders lists the jobs whose caps helped a victim: how often, when last, the task and
the victim, and whether the job is confined. Caps on a confined job last longer
(enforce.confine_for), because enough of them helped recently (enforce.confine; 0, the
default: no job is confined). The list survives restarts of the agent; it holds the 256
most recent offenders. quell pardon removes a job from it.`,
		Example: `  quell offenders
  quell offenders --json | jq '.[] | select(.confined)'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.client().Offenders(cmd.Context())
			if err != nil {
				return err
			}
			return a.printOffenders(all)
		},
	}
	return a.WithJSON(cmd)
}

func (a *commands) printOffenders(all []plan.Offender) error {
	columns := []string{"job", "confined", "#helped", "last", "task", "victim"}
	return app.Table(a.App, all, columns, func(o plan.Offender) []string {
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
	var why string
	var at *scope
	cmd := &cobra.Command{
		Use: "pardon JOB --reason TEXT", Short: "remove a job from the list of offenders", Args: cobra.ExactArgs(1),
		Long: `pardon makes the agent forget that caps on a job helped others: the job is no longer
confined, until caps on it have helped as often again. A cap in force stays until it
expires (quell uncap removes it). With --machine or --cluster the command goes to another
machine's agent, or to all, through quell-server.`,
		Example: `  quell pardon encode --reason "it reads its files in pieces now, ticket 4711"
  quell pardon encode --cluster --reason "fixed in release 7"`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var jobs []string
			if len(args) == 0 {
				all, err := a.client().Offenders(cmd.Context())
				for i := range all {
					if err == nil {
						jobs = append(jobs, string(all[i].Job))
					}
				}
			}
			return jobs, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.act(cmd, at, command.Command{Why: why, Pardon: &command.Pardon{Job: args[0]}})
		},
	}
	at = a.addScope(cmd)
	reasonFlag(cmd, &why)
	return a.WithJSON(cmd)
}
