package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/api"
	"github.com/quell-dev/quell/internal/api/cluster"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
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

// oneWhom wants a task, or tasks by what they have in common.
func oneWhom(cmd *cobra.Command, args []string) error {
	n := len(args)
	for _, flag := range []string{"job", "class", "all"} {
		if cmd.Flags().Changed(flag) {
			n++
		}
	}
	if n != 1 {
		return fmt.Errorf("want one TASK, or one of --job, --class, --all; got %d", n)
	}
	return nil
}

// whomFlags add what tasks are named by in place of one by its name.
func whomFlags(cmd *cobra.Command, m *api.Many) {
	cmd.Flags().StringVar(&m.Job, "job", "", "all tasks of a job, in place of TASK")
	cmd.Flags().StringVar(&m.Class, "class", "", "all tasks of a class: latency-sensitive, batch or best-effort")
	cmd.Flags().BoolVar(&m.All, "all", false, "all tasks")
	// The flag is there, so there is no error.
	_ = cmd.RegisterFlagCompletionFunc("class", cobra.FixedCompletions([]string{"latency-sensitive", "batch", "best-effort"}, cobra.ShellCompDirectiveNoFileComp))
}

// whom reads whom a command is about.
func whom(args []string, m api.Many) (task string, err error) {
	if len(args) == 1 {
		return args[0], nil
	}
	if m.Class != "" {
		if _, err := sample.ParseClass(m.Class); err != nil {
			return "", fmt.Errorf("--class: %w", err)
		}
	}
	if m == (api.Many{}) {
		return "", errors.New("want one TASK, or one of --job, --class, --all that is not empty")
	}
	return "", nil
}

// done tells people, or programs, what the agent did. Of several tasks it is a no
// if one was refused.
func (a *app) done(d api.Done, err error) error {
	switch {
	case err != nil:
		return err
	case a.json:
		err = a.writeJSON(d)
	default:
		if _, err = fmt.Fprintln(a.out, d.Message); err == nil {
			for _, why := range d.Refused {
				fmt.Fprintln(a.out, "refused:", why)
			}
		}
	}
	if err == nil && len(d.Refused) > 0 {
		return &noError{fmt.Errorf("%d tasks were refused", len(d.Refused)), "see above"}
	}
	return err
}

func (a *app) cap() *cobra.Command {
	var r api.CapRequest
	var lease time.Duration
	var at *scope
	cmd := &cobra.Command{
		Use: "cap TASK --rate R --for D --reason TEXT", Short: "hold a task to a CPU rate for a while", Args: oneWhom,
		Long: `cap holds a task to a rate of CPU seconds a second until its time is over, quell uncap
ends it, or the agent stops. It works in every mode of enforcement. The agent refuses to
cap what is latency-sensitive or marked never-cap. If the task is a suspect of an open
incident the cap is a round of it, so that its effect is measured.

In place of TASK it can be all tasks of a --job or a --class, each held to the rate. With
--machine or --cluster it is done on another machine, or on all, by way of quell-server,
which an operator's token lets do that ($QUELL_TOKEN or --token-file).`,
		Example: `  quell cap encode --rate 0.1 --for 5m --reason "redis suffers, ticket 4711"
  quell cap /machine.slice/vm-7.scope --rate 0.5 --for 1h --reason "until the batch run is moved"
  quell cap --job encode --cluster --rate 0.2 --for 30m --reason "ticket 4711"
  quell cap encode --machine host-17 --rate 0.1 --for 5m --reason "redis suffers there"`,
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
			var err error
			if r.Task, err = whom(args, r.Many); err != nil {
				return err
			}
			r.For = lease.String()
			return a.act(cmd, at, func(ctx context.Context, c *api.Client) (api.Done, error) { return c.Cap(ctx, r) },
				cluster.Command{Why: r.Reason, Cap: &cluster.Cap{Whom: cluster.Whom{Task: r.Task, Many: r.Many}, Rate: r.Rate, For: r.For}})
		},
	}
	cmd.Flags().Float64Var(&r.Rate, "rate", 0, "CPU seconds a second (required)")
	cmd.Flags().DurationVar(&lease, "for", 0, "how long (required)")
	whomFlags(cmd, &r.Many)
	at = a.addScope(cmd)
	reasonFlag(cmd, &r.Reason)
	return a.withJSON(cmd)
}

func (a *app) uncap() *cobra.Command {
	var r api.UncapRequest
	var at *scope
	cmd := &cobra.Command{
		Use: "uncap TASK --reason TEXT", Short: "end a cap before its time", Args: oneWhom,
		Long: "uncap ends a cap of quell's, an operator's or its own, and puts back the limit that was there before.",
		Example: `  quell uncap encode --reason "moved to another machine"
  quell uncap --job encode --cluster --reason "ticket 4711 is closed"
  quell uncap --all --reason "maintenance"`,
		ValidArgsFunction: a.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needReason(r.Reason); err != nil {
				return err
			}
			var err error
			if r.Task, err = whom(args, r.Many); err != nil {
				return err
			}
			return a.act(cmd, at, func(ctx context.Context, c *api.Client) (api.Done, error) { return c.Uncap(ctx, r) },
				cluster.Command{Why: r.Reason, Uncap: &cluster.Whom{Task: r.Task, Many: r.Many}})
		},
	}
	whomFlags(cmd, &r.Many)
	at = a.addScope(cmd)
	reasonFlag(cmd, &r.Reason)
	return a.withJSON(cmd)
}

func (a *app) protect() *cobra.Command {
	var r api.ProtectRequest
	var at *scope
	cmd := &cobra.Command{
		Use: "protect TASK [--off] --reason TEXT", Short: "let others be capped for a task", Args: oneWhom,
		Long: `protect makes a task a victim for whom others may be capped although it is not
latency-sensitive; with --off nobody is capped for it although it is. It does not keep the
task itself from being capped.

In place of TASK it can be a --job, a --class, or --all: tasks that come later are meant too.
What was said of a task counts before what was said of its job, that before its class, that
before all; it holds over a restart of the agent.`,
		Example: `  quell protect index --reason "nightly build must be done by 6"
  quell protect index --off --reason "build is done"
  quell protect --job index --cluster --reason "release week"
  quell protect --all --off --machine host-17 --reason "load test there"`,
		ValidArgsFunction: a.completeTask,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := needReason(r.Reason); err != nil {
				return err
			}
			var err error
			if r.Task, err = whom(args, r.Many); err != nil {
				return err
			}
			do := cluster.Command{Why: r.Reason}
			if who := (&cluster.Whom{Task: r.Task, Many: r.Many}); r.Off {
				do.Unprotect = who
			} else {
				do.Protect = who
			}
			return a.act(cmd, at, func(ctx context.Context, c *api.Client) (api.Done, error) { return c.Protect(ctx, r) }, do)
		},
	}
	cmd.Flags().BoolVar(&r.Off, "off", false, "end the protection")
	whomFlags(cmd, &r.Many)
	at = a.addScope(cmd)
	reasonFlag(cmd, &r.Reason)
	return a.withJSON(cmd)
}

func (a *app) enforcement() *cobra.Command {
	var reason string
	var at *scope
	cmd := &cobra.Command{
		Use: "enforcement [off|advise|on] --reason TEXT", Short: "print or change how far the agent may act", Args: cobra.MaximumNArgs(1),
		Long: `enforcement prints how far the agent may act by itself, or changes it: off only records,
advise also says what it would do, on caps antagonists. Leaving on lifts the caps that
quell set by itself at once; operators' caps stay until their end. With --machine or
--cluster it changes another machine's agent, or all, by way of quell-server.`,
		Example: `  quell enforcement
  quell enforcement on --reason "advice was right for two weeks"
  quell enforcement off --reason "maintenance"
  quell enforcement advise --cluster --reason "too many caps last night"`,
		ValidArgs: []string{"off", "advise", "on"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if here, err := at.here(cmd); err != nil || !here {
					return cmp.Or[error](err, &usageError{errors.New("the mode of other machines is not known here"), "say what it is to be: off, advise or on"})
				}
				return a.printMode(cmd.Context())
			}
			if _, err := plan.ParseMode(args[0]); err != nil {
				return err
			}
			if err := needReason(reason); err != nil {
				return err
			}
			return a.act(cmd, at, func(ctx context.Context, c *api.Client) (api.Done, error) {
				return c.SetMode(ctx, api.ModeRequest{Mode: args[0], Reason: reason})
			}, cluster.Command{Why: reason, Enforcement: &cluster.Mode{Mode: args[0]}})
		},
	}
	at = a.addScope(cmd)
	reasonFlag(cmd, &reason)
	return a.withJSON(cmd)
}

// act has this machine's agent do something, or others by way of quell-server.
func (a *app) act(cmd *cobra.Command, at *scope, local func(context.Context, *api.Client) (api.Done, error), elsewhere cluster.Command) error {
	here, err := at.here(cmd)
	if err != nil {
		return err
	}
	if here {
		return a.done(local(cmd.Context(), a.client()))
	}
	elsewhere.Machine, elsewhere.Cluster = at.machine, at.cluster
	return a.printReplies(at.Command(cmd.Context(), elsewhere))
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
