package cli

import (
	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
)

func (a *commands) status() *cobra.Command {
	return a.WithJSON(&cobra.Command{
		Use: "status", Short: "show the agent: signals, enforcement, caps, what is degraded", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			st, err := a.client().Status(cmd.Context())
			if err != nil {
				return err
			}
			return app.Show(a.App, st, report.Status)
		},
	})
}
