package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/lab/workload"
)

// workload is the hidden command with which the demo and the lab start processes. It is
// of no use to users.
func (a *commands) workload() *cobra.Command {
	cmd := &cobra.Command{
		Use: "workload KIND [flags]", Short: "play a victim, an innocent or an antagonist", Hidden: true,
		Long: "workload runs one task of a scene until its standard input closes. It starts when it reads a line.\nKinds: " +
			strings.Trim(fmt.Sprint(workload.Kinds()), "[]"),
		Example: "  quell workload hog --work 3s --pause 3s", DisableFlagParsing: true,
		RunE: parsed(workload.Parse, workload.Run),
	}
	cmd.AddCommand(&cobra.Command{
		Use: "lab KERNEL [flags]", Short: "do equal pieces of work and report the end of each", Hidden: true,
		Long:    "Kernels: " + strings.Join(workload.KernelNames(), " "),
		Example: "  quell workload lab primes -threads=2", DisableFlagParsing: true,
		RunE: parsed(workload.ParseKernel, workload.RunKernel),
	})
	cmd.AddCommand(&cobra.Command{
		Use: "command PROGRAM [ARGUMENTS]", Short: "run a program repeatedly and report how long each run took", Hidden: true,
		Example: "  quell workload command sysbench cpu run", DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error { return workload.RunCommand(cmd.Context(), args) },
	})
	return cmd
}

// parsed is the RunE of a command that parses its arguments itself.
func parsed[T any](parse func(args []string) (T, error), run func(context.Context, T) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		v, err := parse(args)
		switch {
		case errors.Is(err, flag.ErrHelp) || len(args) == 0:
			return cmd.Help()
		case err != nil:
			return err
		}
		return run(cmd.Context(), v)
	}
}
