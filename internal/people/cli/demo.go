package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/demo"
	"github.com/quell-dev/quell/internal/people/report"
)

func (a *commands) demo() *cobra.Command {
	var o demo.Options
	var mode string
	var inFull, cluster bool
	var server, listen string
	var ui bool
	cmd := &cobra.Command{
		Use: "demo", Short: "find, prove and quiet a real noisy neighbour on this machine", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Mode, err = plan.ParseMode(mode); err != nil {
				return fmt.Errorf("--enforce: %w", err)
			}
			if !slices.Contains([]demo.Channel{demo.CPU, demo.Cache, demo.Auto}, o.Channel) {
				return fmt.Errorf("--channel %q: want cpu, cache or auto", o.Channel)
			}
			if _, ok := sample.LookupSignal(o.Signal); o.Signal != "" && !ok {
				return fmt.Errorf("--signal %q: want cpi, cpt, cps or runq", o.Signal)
			}
			if !cmd.Flags().Changed("seed") {
				o.Seed = rand.Uint64N(1_000_000)
			}
			if cluster {
				for _, flag := range []string{"channel", "signal", "enforce", "patience", "no-antagonist", "incident", "ui"} {
					if cmd.Flags().Changed(flag) {
						return fmt.Errorf("--cluster and --%s: choose one", flag)
					}
				}
				return a.playCluster(cmd, demo.ClusterOptions{Seed: o.Seed, Agent: o.Agent, Server: server, Logs: o.AgentLog})
			}
			if !ui {
				return a.playDemo(cmd, o, inFull)
			}
			return a.playDemoUI(cmd, o, inFull, listen)
		},
	}
	f := cmd.Flags()
	f.StringVar((*string)(&o.Channel), "channel", string(demo.CPU), "cpu, cache or auto")
	f.StringVar((*string)(&o.Signal), "signal", "", "cost signal: cpi, cpt, cps or runq (default: the channel's)")
	f.StringVar(&mode, "enforce", plan.On.String(), "off, advise or on")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of lengths and times (default: random)")
	f.DurationVar(&o.Patience, "patience", 0, "on a busy machine, learn again for up to this long, until the victim's threshold is low enough (default: go on with any)")
	f.BoolVar(&o.Alone, "no-antagonist", false, "leave the antagonist out")
	f.StringVar(&o.Agent, "agent", "", "the quell-agent program (default: next to quell, else in PATH)")
	f.BoolVar(&inFull, "incident", false, "also show the agent's incident in full, with charts")
	f.StringVar(&o.AgentLog, "agent-log", "", "keep the agent's log in this file, or with --cluster all logs in this folder")
	f.BoolVar(&ui, "ui", false, "show the dashboard of the running demo to a browser, until the demo ends")
	f.StringVar(&listen, "listen", uiListen, "with --ui: address; only loopback")
	f.BoolVar(&cluster, "cluster", false, "run it on a cluster: quell-server and three agents")
	f.StringVar(&server, "quell-server", "", "with --cluster: the quell-server program (default: next to quell, else in PATH)")
	return a.WithJSON(cmd)
}

// playDemoUI is playDemo with the dashboard.
func (a *commands) playDemoUI(cmd *cobra.Command, o demo.Options, inFull bool, listen string) error {
	if err := loopback(listen); err != nil {
		return err
	}
	s, err := openUI(listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Text(), "the dashboard of the demo, until it ends: http://%s\nits token:  %s\n", s.address, s.token)
	o.Started = s.watch
	return errors.Join(a.playDemo(cmd, o, inFull), s.close())
}

func (a *commands) playDemo(cmd *cobra.Command, o demo.Options, inFull bool) error {
	var err error
	if o.Agent, err = demoAgent(o.Agent); err != nil {
		return err
	}
	o.PMU = hasPMU()
	out, show := a.stage()
	o.Show = show.event
	fmt.Fprintln(out, "quell demo: real processes, real cgroups, the shipped agent")
	r, err := demo.Run(cmd.Context(), o)
	show.Clear()
	if err != nil {
		return demoError(err, "run it with --agent-log FILE to see the agent's log")
	}
	if a.JSON {
		if err := json.NewEncoder(a.Out).Encode(r); err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
	} else {
		printDemo(out, r)
		if inc := r.Incident(); inFull && inc != nil {
			fmt.Fprintln(out)
			if err := report.Incident(out, *inc, a.Style()); err != nil {
				return err
			}
		}
	}
	return demoVerdict(r.OK, r.Verdict, r.Excuse, "run it with --agent-log FILE and look there")
}

// demoAgent finds the agent's program, if the demo can run at all.
func demoAgent(named string) (string, error) {
	if os.Geteuid() != 0 {
		return "", app.Usage(errors.New("demo: not root: it creates cgroups and uses kernel counters"), "run it as root (sudo)")
	}
	path, err := app.Program("quell-agent", named)
	if err != nil {
		return "", app.Usage(err, "build it (make build) or name it with --agent")
	}
	return path, nil
}

// stage returns the output for the demo's events.
func (a *commands) stage() (io.Writer, *eventPrinter) {
	out := a.Text()
	return out, &eventPrinter{Progress: a.Progress(out), w: out}
}

// demoError is the error of a demo that could not finish; look says where to find more.
func demoError(err error, look string) error {
	if env, ok := errors.AsType[*workload.MissingError](err); ok {
		return app.Usage(fmt.Errorf("demo: %w", err), env.Remedy)
	}
	return app.Negative(fmt.Errorf("demo: %w", err), "everything it made was removed; "+look)
}

// demoVerdict is the error of a demo with a bad result.
func demoVerdict(ok bool, verdict, excuse, look string) error {
	switch {
	case ok:
		return nil
	case excuse != "":
		return app.Negative(fmt.Errorf("demo: %s", verdict), "run it on a machine whose CPUs run at the same time")
	}
	return app.Negative(fmt.Errorf("demo: %s", verdict), "try again; if it fails again, "+look)
}

// hasPMU tries to open the cpi signal.
func hasPMU() bool {
	h, err := host.Open("/")
	if err != nil {
		return false
	}
	topo, err := h.Topology()
	if err != nil {
		return false
	}
	s, err := counter.OpenCPI(topo.Online, h.Layout().Unified)
	if err != nil {
		return false
	}
	s.Close()
	return true
}

// eventPrinter shows events: one line each, and a progress bar on a terminal.
type eventPrinter struct {
	*app.Progress
	w    io.Writer
	last string
}

func (t *eventPrinter) event(e demo.Event) {
	line := fmt.Sprintf("[%5.1fs] %s", e.After.Seconds(), e.Text)
	if e.Of == 0 {
		t.Clear()
		fmt.Fprintln(t.w, line)
		return
	}
	if !t.Live() {
		if e.Text != t.last && !strings.Contains(e.Text, ":") {
			fmt.Fprintln(t.w, line+" …")
		}
		t.last = e.Text
		return
	}
	t.Draw("%s %s %d/%d", line, app.Bar(float64(e.Done)/float64(e.Of), 24, "█", "░"), e.Done, e.Of)
}

// demoRows returns a function that prints rows of the table at the end of a demo.
func demoRows(w io.Writer) func(name, format string, args ...any) {
	return func(name, format string, args ...any) {
		fmt.Fprintf(w, "  %-12s "+format+"\n", append([]any{name}, args...)...)
	}
}

// printDemo prints a short table and the verdict.
func printDemo(w io.Writer, r *demo.Result) {
	sig, _ := sample.LookupSignal(r.Signal)
	row := demoRows(w)
	num := func(v incident.Value) string {
		if math.IsNaN(float64(v)) {
			return "-"
		}
		return fmt.Sprintf("%.3g", float64(v))
	}
	fmt.Fprintln(w)
	row("channel", "%s, signal %s (%s)", r.Channel, r.Signal, r.Variant)
	row("victim", "%s", filepath.Base(string(r.Victim)))
	switch {
	case r.Antagonist == "":
		row("antagonist", "left out")
	default:
		row("antagonist", "%s", filepath.Base(string(r.Antagonist)))
	}
	if r.Named != "" {
		s := detect.Suspect{Grounds: r.Grounds, Correlation: float64(r.Correlation)}
		row("named", "%s, %s", filepath.Base(string(r.Named)), strings.TrimSuffix(s.Level.String()+", "+plan.Figure(&s), ", "))
		if u := r.RunnerUp; u != nil {
			why := ""
			if u.Excluded != "" {
				why = " (" + u.Excluded + ")"
			}
			row("runner-up", "%s, correlation %.2f%s", filepath.Base(string(u.Task)), u.Correlation, why)
		}
		from := "the third outlier"
		if r.Trials > 0 {
			from = fmt.Sprintf("the result of trial %d", r.Trials)
		}
		row("found after", "%s s from %s, %s intervals from the antagonist's start", num(r.SecondsToIncident), from, num(r.IntervalsToIncident))
	}
	row("cost", "%s alone, %s contended, %s capped (%s)", num(r.CostAlone), num(r.CostContended), num(r.CostCapped), sig.Unit)
	if c := float64(r.RelativeCost); c == c {
		row("relative", "%s of the contended cost under the cap (the paper's median: 0.63)", num(r.RelativeCost))
	}
	row("left behind", "%s", cmp.Or(strings.Join(r.LeftBehind, ", "), "nothing"))
	took := time.Duration(r.Seconds * float64(time.Second)).Round(100 * time.Millisecond)
	fmt.Fprintf(w, "\n%s (seed %d, %s, %d attempt(s), %d flip(s))\n", r.Verdict, r.Seed, took, r.Attempts, r.Flips)
	if r.Excuse != "" {
		fmt.Fprintln(w, r.Excuse)
	}
}
