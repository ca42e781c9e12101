package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
)

// addServer adds the flags for quell-server's address and the token.
func (a *commands) addServer(cmd *cobra.Command, c *cluster.Client) {
	c.Token = a.Getenv("QUELL_TOKEN")
	cmd.Flags().StringVar(&c.URL, "server", cmp.Or(a.Getenv("QUELL_SERVER"), "http://127.0.0.1:9781"), "quell-server's address ($QUELL_SERVER)")
	cmd.Flags().StringVar(&c.TokenFile, "token-file", "", "file that holds the token (default: $QUELL_TOKEN is the token)")
}

// scope selects where a command applies: this machine's agent, or another machine or the
// whole cluster through quell-server.
type scope struct {
	*cluster.Client
	machine string
	cluster bool
}

func (a *commands) addScope(cmd *cobra.Command) *scope {
	s := a.addMachine(cmd)
	cmd.Flags().BoolVar(&s.cluster, "cluster", false, "all machines, through quell-server")
	return s
}

// addMachine is addScope without the whole cluster.
func (a *commands) addMachine(cmd *cobra.Command) *scope {
	s := &scope{Client: &cluster.Client{}}
	a.addServer(cmd, s.Client)
	cmd.Flags().StringVar(&s.machine, "machine", "", "another machine, through quell-server")
	// The flag exists, so there is no error.
	_ = cmd.RegisterFlagCompletionFunc("machine", func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		all, err := s.Machines(cmd.Context())
		return completions(all, err, func(m cluster.Machine) string { return printable.Text(m.Machine) })
	})
	return s
}

// here reports whether the command is for this machine's agent.
func (s *scope) here(cmd *cobra.Command) (bool, error) {
	switch {
	case s.machine != "" && s.cluster:
		return false, app.Usage(errors.New("--machine and --cluster"), "choose one")
	case s.machine != "" || s.cluster:
		return false, nil
	case cmd.Flags().Changed("server") || cmd.Flags().Changed("token-file"):
		remedy := "add --machine NAME or --cluster"
		if cmd.Flags().Lookup("cluster") == nil {
			remedy = "add --machine NAME"
		}
		return false, app.Usage(errors.New("--server or --token-file without a machine"), remedy+"; without --server the command goes to this machine's agent")
	}
	return true, nil
}

func (a *commands) machines() *cobra.Command {
	c := &cluster.Client{}
	cmd := list(a, &cobra.Command{
		Use: "machines", Short: "list the cluster's machines and when they last sent data",
	}, c.Machines, []string{"machine", "last seen", "#ago", "#batch", "#record", "#lives", "mode", "from", "decisions"}, func(m cluster.Machine) []string {
		row := []string{m.Machine, a.at(m.LastSeen), a.ago(m.LastSeen), fmt.Sprint(m.Batch), fmt.Sprint(m.Record), fmt.Sprint(m.Lives)}
		switch s := m.State; {
		case s == nil:
			return append(row, "", "", "not known")
		case s.Current:
			return append(row, s.Mode, s.From, "current")
		default:
			return append(row, s.Mode, s.From, "behind, as of "+a.at(s.At))
		}
	})
	a.addServer(cmd, c)
	return cmd
}

// list completes a command that fetches a list and shows it as a table.
func list[T any](a *commands, cmd *cobra.Command, fetch func(context.Context) ([]T, error), columns []string, row func(T) []string) *cobra.Command {
	cmd.Args = app.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, err := fetch(cmd.Context())
		if err != nil {
			return err
		}
		return app.Table(a.App, all, columns, row)
	}
	return a.WithJSON(cmd)
}

func (a *commands) at(t sample.Millis) string {
	return t.Time().In(a.Zone).Format("2006-01-02 15:04:05")
}

func (a *commands) ago(t sample.Millis) string {
	return sample.At(a.Now()).Sub(t).Round(time.Second).String()
}

func (a *commands) specs() *cobra.Command {
	c := &cluster.Client{}
	var job, platform string
	fetch := func(ctx context.Context) ([]cluster.Spec, error) { return c.Specs(ctx, job, platform) }
	columns := []string{"job", "platform", "signal", "variant", "state", "#tasks", "#samples", "#mean", "#stddev", "#threshold", "#cpu", "#version", "#machines", "left out"}
	cmd := list(a, &cobra.Command{
		Use: "specs", Short: "list the normal costs of jobs, learnt from the whole cluster",
	}, fetch, columns, func(s cluster.Spec) []string {
		return []string{string(s.Job), string(s.Platform), string(s.Signal), s.Variant, s.State.String(), fmt.Sprint(s.Tasks), fmt.Sprint(s.Samples),
			fourDigits(s.Mean), fourDigits(s.StdDev), fourDigits(float64(s.Threshold)), fourDigits(s.CPUMean), fmt.Sprint(s.Version), fmt.Sprint(s.Machines), machinesLeftOut(&s)}
	})
	cmd.Flags().StringVar(&job, "job", "", "only this job's")
	cmd.Flags().StringVar(&platform, "platform", "", "only this platform's")
	a.addServer(cmd, c)
	cmd.AddCommand(a.revoke())
	return cmd
}

// machinesLeftOut names the machines that a spec was not learnt from, as far as they are known.
func machinesLeftOut(s *cluster.Spec) string {
	text := strings.Join(s.LeftOut, ", ")
	if more := int(s.MachinesOut) - len(s.LeftOut); more > 0 {
		text = strings.TrimPrefix(fmt.Sprintf("%s, %d more", text, more), ", ")
	}
	return text
}

func (a *commands) revoke() *cobra.Command {
	c := &cluster.Client{}
	var r cluster.Revocation
	cmd := &cobra.Command{
		Use: "revoke [--machine NAME] [--job NAME] --since TIME --reason TEXT", Short: "take back what was learnt from a machine or about a job", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmp.Or(r.Validate(), command.ValidateWhy(r.Why)); err != nil {
				return explained(err, r.Why)
			}
			d, err := c.Revoke(cmd.Context(), r)
			switch {
			case err != nil:
				return err
			case a.JSON:
				return a.WriteJSON(d)
			}
			_, err = fmt.Fprintln(a.Out, printable.Text(d.Message))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.Machine, "machine", "", "samples of this machine")
	f.StringVar(&r.Job, "job", "", "samples of this job")
	f.StringVar(&r.Since, "since", "", "samples since a time, a day, or a duration ago (24h)")
	f.StringVar(&r.Until, "until", "", "samples until then; without it also those to come")
	f.BoolVar(&r.Lift, "lift", false, "end the revocation of that machine and job")
	reasonFlag(cmd, &r.Why)
	a.addServer(cmd, c)
	return a.WithJSON(cmd)
}

// fourDigits formats a number with four digits.
func fourDigits(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// clusterIncidents shows incidents of other machines, from quell-server.
func (a *commands) clusterIncidents(cmd *cobra.Command, s *scope, f incidentFlags, id string) error {
	if f.stateDir != "" {
		return app.Usage(errors.New("--state-dir and --machine or --cluster"), "choose one")
	}
	if err := f.check(); err != nil {
		return err
	}
	q := cluster.IncidentQuery{ID: id, Machine: s.machine, Open: f.open}
	if id == "last" {
		q.ID = ""
	}
	if f.since > 0 {
		q.Since = f.since.String()
	}
	all, cut, err := s.Incidents(cmd.Context(), q)
	if err != nil {
		return err
	}
	if id == "" {
		if cut {
			fmt.Fprintf(a.Err, "quell: of these the server lists only the newest %d: narrow them with --since, --open or --machine\n", len(all))
		}
		return a.listClusterIncidents(all, f)
	}
	exact := -1
	var of []string // machines: each numbers its own
	for i := range all {
		if all[i].ID == id && id != "last" {
			exact, of = i, append(of, printable.Text(all[i].Machine))
		}
	}
	switch {
	case len(of) > 1:
		return app.Negative(fmt.Errorf("%d machines have an incident %q: %s", len(of), id, strings.Join(of[:min(len(of), 10)], ", ")), "choose one with --machine instead of --cluster")
	case len(all) == 0:
		return app.Negative(fmt.Errorf("no incident ID contains %q", id), "see `quell incidents --cluster`")
	case len(all) > 1 && id != "last" && exact < 0:
		return app.Negative(fmt.Errorf("%q matches %d incidents", id, len(all)), "give more of its ID")
	}
	return app.Show(a.App, all[max(exact, 0)], report.Incident)
}

// listClusterIncidents lists them like those of one machine, oldest first, each with its
// machine.
func (a *commands) listClusterIncidents(all []incident.Record, f incidentFlags) error {
	all = slices.DeleteFunc(all, func(inc incident.Record) bool {
		return f.victim != "" && !logbook.Matches(f.victim, &inc.Victim)
	})
	older := 0
	if f.limit > 0 && len(all) > f.limit {
		all, older = all[:f.limit], len(all)-f.limit
	}
	slices.Reverse(all)
	if !a.JSON {
		for i := range all { // the victim's name gets its machine as prefix
			all[i].Victim.Name = sample.TaskName(all[i].Machine + ":" + string(all[i].Victim.Name))
		}
	}
	return a.listIncidents(all, older)
}

// until is the end of what stands, for a sentence.
func (a *commands) until(end sample.Millis) string {
	if end == 0 {
		return ""
	}
	return ", until " + a.at(end)
}

// printReplies prints each machine's reply, as text or JSON. It returns an error if a
// machine refused or was silent, or if no machine had a matching task.
func (a *commands) printReplies(r cluster.Replies, err error) error {
	if err != nil {
		return err
	}
	if a.JSON {
		if err := a.WriteJSON(r); err != nil {
			return err
		}
	}
	done, bad := 0, len(r.Silent)
	for _, m := range r.Replies {
		mark := "done"
		switch {
		case m.OK && len(m.Refused) > 0:
			mark, done, bad = "in part", done+1, bad+1
		case m.OK:
			done++
		case m.NoMatch:
			mark = "none"
		default:
			mark = "refused"
			bad++
		}
		if a.JSON {
			continue
		}
		fmt.Fprintf(a.Out, "%s: %s: %s\n", printable.Text(m.Machine), mark, printable.Text(m.Message))
		for _, why := range m.Refused {
			fmt.Fprintf(a.Out, "%s: refused: %s\n", printable.Text(m.Machine), printable.Text(why))
		}
	}
	if len(r.Silent) > 0 && !a.JSON {
		fmt.Fprintf(a.Out, "no answer from %s: it holds there from when it comes back%s\n", printable.Text(strings.Join(r.Silent, ", ")), a.until(r.Until))
	}
	switch {
	case bad > 0:
		return app.Negative(fmt.Errorf("%d of %d machines did not complete the command", bad, len(r.Replies)+len(r.Silent)), "see above; `quell machines` shows when each machine last sent data")
	case done == 0:
		return app.Negative(errors.New("no machine has a matching task"), "see `quell query \"SELECT DISTINCT machine, job, task FROM samples\" --since 1h`")
	}
	return nil
}
