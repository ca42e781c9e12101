package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/api"
	"github.com/quell-dev/quell/internal/plan"
)

// The agent takes changes from whoever may open its socket and writes down who
// it was and why; so there must be a why.
func reasonFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "why, for the audit log (required)")
}

func needReason(reason string) error {
	if strings.TrimSpace(reason) == "" {
		return &usageError{errors.New("--reason is missing: every change is written down with its reason"), `add --reason "why"`}
	}
	return nil
}

func oneTask(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("want one TASK, got %d", len(args))
	}
	return nil
}

// done tells people, or programs, what the agent did.
func (a *app) done(d api.Done, err error) error {
	if err != nil {
		return err
	}
	if a.json {
		return a.writeJSON(d)
	}
	_, err = fmt.Fprintln(a.out, d.Message)
	return err
}

func (a *app) cap() *cobra.Command {
	var r api.CapRequest
	var lease time.Duration
	cmd := &cobra.Command{
		Use: "cap TASK --rate R --for D --reason TEXT", Short: "hold a task to a CPU rate for a while", Args: oneTask,
		Long: `cap holds a task to a rate of CPU seconds a second until its time is over, quell uncap
ends it, or the agent stops. It works in every mode of enforcement. The agent refuses to
cap what is latency-sensitive or marked never-cap. If the task is a suspect of an open
incident the cap is a round of it, so that its effect is measured.`,
		Example: `  quell cap encode --rate 0.1 --for 5m --reason "redis suffers, ticket 4711"
  quell cap /machine.slice/vm-7.scope --rate 0.5 --for 1h --reason "until the batch run is moved"`,
		ValidArgsFunction: a.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !(r.Rate > 0) || math.IsInf(r.Rate, 0):
				return fmt.Errorf("--rate %v: want CPU seconds a second above 0, e.g. 0.1", r.Rate)
			case lease < plan.MinCap:
				return fmt.Errorf("--for %v: want %v or more, e.g. 5m", lease, plan.MinCap)
			}
			if err := needReason(r.Reason); err != nil {
				return err
			}
			r.Task, r.For = args[0], lease.String()
			return a.done(a.client().Cap(cmd.Context(), r))
		},
	}
	cmd.Flags().Float64Var(&r.Rate, "rate", 0, "CPU seconds a second (required)")
	cmd.Flags().DurationVar(&lease, "for", 0, "how long (required)")
	reasonFlag(cmd, &r.Reason)
	return a.withJSON(cmd)
}

func (a *app) uncap() *cobra.Command {
	var r api.UncapRequest
	cmd := &cobra.Command{
		Use: "uncap TASK --reason TEXT", Short: "end a cap before its time", Args: oneTask,
		Long:              "uncap ends a cap of quell's, an operator's or its own, and puts back the limit that was there before.",
		Example:           `  quell uncap encode --reason "moved to another machine"`,
		ValidArgsFunction: a.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needReason(r.Reason); err != nil {
				return err
			}
			r.Task = args[0]
			return a.done(a.client().Uncap(cmd.Context(), r))
		},
	}
	reasonFlag(cmd, &r.Reason)
	return a.withJSON(cmd)
}

func (a *app) protect() *cobra.Command {
	var r api.ProtectRequest
	cmd := &cobra.Command{
		Use: "protect TASK [--off] --reason TEXT", Short: "let others be capped for a task", Args: oneTask,
		Long: `protect makes a task a victim for whom others may be capped although it is not
latency-sensitive. It does not keep the task itself from being capped.`,
		Example:           "  quell protect index --reason \"nightly build must be done by 6\"\n  quell protect index --off --reason \"build is done\"",
		ValidArgsFunction: a.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needReason(r.Reason); err != nil {
				return err
			}
			r.Task = args[0]
			return a.done(a.client().Protect(cmd.Context(), r))
		},
	}
	cmd.Flags().BoolVar(&r.Off, "off", false, "end the protection")
	reasonFlag(cmd, &r.Reason)
	return a.withJSON(cmd)
}

func (a *app) enforcement() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "enforcement [off|advise|on] --reason TEXT", Short: "print or change how far the agent may act", Args: cobra.MaximumNArgs(1),
		Long: `enforcement prints how far the agent may act by itself, or changes it: off only records,
advise also says what it would do, on caps antagonists. Leaving on lifts the caps that
quell set by itself at once; operators' caps stay until their end.`,
		Example: `  quell enforcement
  quell enforcement on --reason "advice was right for two weeks"
  quell enforcement off --reason "maintenance"`,
		ValidArgs: []string{"off", "advise", "on"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return a.printMode(cmd.Context())
			}
			if _, err := plan.ParseMode(args[0]); err != nil {
				return err
			}
			if err := needReason(reason); err != nil {
				return err
			}
			return a.done(a.client().SetMode(cmd.Context(), api.ModeRequest{Mode: args[0], Reason: reason}))
		},
	}
	reasonFlag(cmd, &reason)
	return a.withJSON(cmd)
}

func (a *app) printMode(ctx context.Context) error {
	st, err := a.client().Status(ctx)
	if err != nil {
		return err
	}
	if a.json {
		return a.writeJSON(map[string]plan.Mode{"mode": st.Mode})
	}
	_, err = fmt.Fprintln(a.out, st.Mode)
	return err
}

// completeTask offers the agent's tasks for the shell's completion.
func (a *app) completeTask(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if len(args) == 0 {
		if tasks, err := a.client().Tasks(cmd.Context()); err == nil {
			for _, t := range tasks {
				names = append(names, cobra.CompletionWithDesc(string(t.Name), string(t.Job)+", "+t.Class.String()))
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
