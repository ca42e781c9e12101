package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// reasonFlag adds --reason to a command: the agent records the operator and the reason.
func reasonFlag(cmd *cobra.Command, why *string) {
	cmd.Flags().StringVar(why, "reason", "", "reason, for the audit log (required)")
}

// explained adds a remedy to the error of an invalid command.
func explained(err error, why string) error {
	if err != nil && command.ValidateWhy(why) != nil {
		return app.Usage(err, `add --reason "why"`)
	}
	return err
}

// leaseFlag adds the duration of a cap.
func leaseFlag(cmd *cobra.Command, lease *command.Duration, usage string) {
	cmd.Flags().TextVar(lease, "for", *lease, usage+", a `duration` from 1s to 24h")
	if *lease == 0 {
		cmd.Flags().Lookup("for").DefValue = "" // help shows no default
	}
}

// order completes a command that has agents do something: of returns what they are told,
// without the reason.
func (a *commands) order(cmd *cobra.Command, of func(args []string) command.Command) *cobra.Command {
	var why string
	reasonFlag(cmd, &why)
	at := a.addScope(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := of(args)
		c.Why = why
		return a.act(cmd, at, cluster.Command{Command: c})
	}
	return a.WithJSON(cmd)
}

// orderOn is order for a target: a task's name, or flags that select tasks by other means.
// An empty name, for example from an unset variable, clears the target, whatever the flags.
func (a *commands) orderOn(t *command.Target, cmd *cobra.Command, of func() command.Command) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = cobra.MaximumNArgs(1), a.completeTask
	cmd.Flags().StringVar(&t.Job, "job", "", "all tasks of a job, instead of TASK")
	cmd.Flags().StringVar(&t.Class, "class", "", "all tasks of a class: latency-sensitive, batch or best-effort")
	cmd.Flags().BoolVar(&t.All, "all", false, "all tasks")
	// The flag exists, so there is no error.
	_ = cmd.RegisterFlagCompletionFunc("class", cobra.FixedCompletions([]string{"latency-sensitive", "batch", "best-effort"}, cobra.ShellCompDirectiveNoFileComp))
	return a.order(cmd, func(args []string) command.Command {
		switch {
		case len(args) == 1 && args[0] == "":
			*t = command.Target{}
		case len(args) == 1:
			t.Task = args[0]
			if !utf8.ValidString(t.Task) { // else it may be a name's text form already
				t.Task = sample.NameText(t.Task)
			}
		}
		return of()
	})
}

// done prints what the agent did, as text or JSON. With several tasks it returns an error
// if one was refused.
func (a *commands) done(d api.Done, err error) error {
	switch {
	case err != nil:
		return err
	case a.JSON:
		err = a.WriteJSON(d)
	default:
		if _, err = fmt.Fprintln(a.Out, printable.Text(d.Message)); err == nil {
			for _, why := range d.Refused {
				fmt.Fprintln(a.Out, "refused:", printable.Text(why))
			}
		}
	}
	if err == nil && len(d.Refused) > 0 {
		return app.Negative(fmt.Errorf("%d tasks were refused", len(d.Refused)), "see above")
	}
	return err
}

func (a *commands) cap() *cobra.Command {
	var c command.Cap
	cmd := &cobra.Command{
		Use: "cap TASK --rate R --for D --reason TEXT", Short: "limit the CPU usage of a task for a limited time",
	}
	cmd.Flags().Var((*command.Rate)(&c.Rate), "rate", "limit in CPUs (CPU-s/s), 0.001 to 1024; 10% and 100m are a tenth of one (required)")
	leaseFlag(cmd, &c.For, "lease (required)")
	cmd.Flags().StringVar(&c.Incident, "incident", "", "ID of the open incident whose victim the cap is to help: its effect is measured there")
	return a.orderOn(&c.Target, cmd, func() command.Command { return command.Command{Cap: &c} })
}

func (a *commands) uncap() *cobra.Command {
	var target command.Target
	return a.orderOn(&target, &cobra.Command{
		Use: "uncap TASK --reason TEXT", Short: "remove a cap before it expires",
	}, func() command.Command { return command.Command{Uncap: &target} })
}

func (a *commands) protect() *cobra.Command {
	var target command.Target
	var lasts command.Duration
	var off, reset bool
	cmd := &cobra.Command{
		Use: "protect TASK [--off|--reset] --reason TEXT", Short: "allow quell to cap other tasks when this task suffers",
	}
	cmd.Flags().BoolVar(&off, "off", false, "end the protection")
	cmd.Flags().BoolVar(&reset, "reset", false, "take back what was said of TASK: the configuration holds again")
	lastsFlag(cmd, &lasts)
	cmd.MarkFlagsMutuallyExclusive("off", "reset")
	return a.orderOn(&target, cmd, func() command.Command {
		switch {
		case reset:
			return command.Command{Reset: &command.Reset{Protect: &target}, For: lasts}
		case off:
			return command.Command{Unprotect: &target, For: lasts}
		}
		return command.Command{Protect: &target, For: lasts}
	})
}

// lastsFlag adds the end of what stands without one.
func lastsFlag(cmd *cobra.Command, lasts *command.Duration) {
	cmd.Flags().TextVar(lasts, "for", *lasts, "how long it holds, a `duration` from 1s to 8760h (default: until it is reset)")
	cmd.Flags().Lookup("for").DefValue = "" // help shows no other default
}

func (a *commands) enforcement() *cobra.Command {
	var why string
	var at *scope
	var lasts, step command.Duration
	var reset, canary bool
	cmd := &cobra.Command{
		Use: "enforcement [off|advise|on|--reset] --reason TEXT", Short: "print or change the enforcement mode", Args: cobra.MaximumNArgs(1),
		ValidArgs: []string{"off", "advise", "on"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !canary && cmd.Flags().Changed("step"):
				return app.Usage(errors.New("--step without --canary"), "add --canary, or leave --step out: the mode holds at once then")
			case reset && len(args) > 0:
				return app.Usage(errors.New("--reset and a mode"), "choose one")
			case reset:
				return a.act(cmd, at, cluster.Command{Command: command.Command{Why: why, Reset: &command.Reset{Enforcement: true}, For: lasts}})
			case len(args) == 0:
				if here, err := at.here(cmd); err != nil || !here {
					return cmp.Or(err, app.Usage(errors.New("the mode of other machines cannot be printed"), "name the mode to set: off, advise or on; `quell machines` lists modes"))
				}
				return a.printMode(cmd.Context())
			}
			c := cluster.Command{Command: command.Command{Why: why, Enforcement: &command.Enforcement{Mode: args[0]}, For: lasts}}
			if canary {
				c.Canary = &command.Canary{Every: step}
			}
			return a.act(cmd, at, c)
		},
	}
	at = a.addScope(cmd)
	reasonFlag(cmd, &why)
	lastsFlag(cmd, &lasts)
	cmd.Flags().BoolVar(&reset, "reset", false, "take back what was set: the configuration holds again")
	cmd.Flags().BoolVar(&canary, "canary", false, "with --cluster, set it on one machine, then on 1 %, then on all, and stop if caps do not help")
	step = command.Duration(time.Hour)
	cmd.MarkFlagsMutuallyExclusive("reset", "canary") // a reset goes to all machines at once
	cmd.Flags().TextVar(&step, "step", step, "how long each step of --canary lasts at least, a `duration` from 1m to 168h")
	return a.WithJSON(cmd)
}

// act sends a command to this machine's agent, or to others through quell-server. An
// invalid command is not sent.
func (a *commands) act(cmd *cobra.Command, at *scope, c cluster.Command) error {
	if err := c.Command.Validate(); err != nil {
		return explained(err, c.Why)
	}
	here, err := at.here(cmd)
	switch {
	case err != nil:
		return err
	case here && c.Canary != nil:
		return app.Usage(errors.New("--canary without --cluster"), "add --cluster")
	case here:
		return a.done(a.client().Command(cmd.Context(), c.Command))
	}
	c.Machine, c.Cluster = at.machine, at.cluster
	if err := c.Validate(); err != nil {
		return app.Usage(err, "see `quell enforcement --help`")
	}
	return a.printReplies(at.Command(cmd.Context(), c))
}

func (a *commands) printMode(ctx context.Context) error {
	st, err := a.client().Status(ctx)
	if err != nil {
		return err
	}
	if a.JSON {
		return a.WriteJSON(map[string]any{"mode": st.Mode, "mode_from": st.ModeFrom})
	}
	text := st.Mode.String()
	if st.ModeFrom.From != "" { // an older agent does not say
		text += " (" + printable.Text(st.ModeFrom.Text()) + ")"
	}
	_, err = fmt.Fprintln(a.Out, text)
	return err
}

// completeTask completes the names of the agent's tasks.
func (a *commands) completeTask(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	tasks, err := a.client().Tasks(cmd.Context())
	return completions(tasks, err, func(t api.TaskView) string {
		return cobra.CompletionWithDesc(t.Name.String(), t.Job.String()+", "+t.Class.String())
	})
}

// active are characters by which a shell runs a part of a name.
const active = "$`;&|<>()"

// completions are the names in a list; without an answer there are none. A shell puts what several names
// begin with into the line as it is, and evaluates the line at the next Tab: a name of a task's choice that
// it would run is left out.
func completions[T any](all []T, err error, name func(T) string) (names []string, _ cobra.ShellCompDirective) {
	if err == nil {
		for _, v := range all {
			text := name(v)
			if choice, _, _ := strings.Cut(text, "\t"); !strings.ContainsAny(choice, active) {
				names = append(names, text)
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
