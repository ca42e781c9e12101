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
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			all, err := a.client().Offenders(cmd.Context())
			return completions(all, err, func(o plan.Offender) string { return string(o.Job) })
		},
	}, func(args []string) command.Command { return command.Command{Pardon: &command.Pardon{Job: args[0]}} })
}
