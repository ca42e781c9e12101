package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/demo"
)

// playCluster runs the demo of a cluster.
func (a *commands) playCluster(cmd *cobra.Command, o demo.ClusterOptions) error {
	var err error
	if o.Agent, err = demoAgent(o.Agent); err != nil {
		return err
	}
	if o.Server, err = app.Program("quell-server", o.Server); err != nil {
		return app.Usage(err, "build it (make bin/quell-server, which needs a C++ compiler) or name it with --quell-server")
	}
	if o.Logs != "" {
		if err := os.MkdirAll(o.Logs, 0o700); err != nil {
			return app.Usage(fmt.Errorf("make folder of logs: %w", err), "name another with --agent-log")
		}
	}
	out, show := a.stage()
	o.Show = show.event
	fmt.Fprintln(out, "quell demo: a cluster of real processes on this machine, the shipped server and agents")
	r, err := demo.RunCluster(cmd.Context(), o)
	show.Clear()
	if err != nil {
		return demoError(err, "run it with --agent-log FOLDER to see the programs' logs")
	}
	if a.JSON {
		err = json.NewEncoder(a.Out).Encode(r)
	} else {
		err = printCluster(out, r)
	}
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return demoVerdict(r.OK, r.Verdict, r.Excuse, "run it with --agent-log FOLDER and look there")
}

// printCluster prints a short table and the verdict.
func printCluster(w io.Writer, r *demo.ClusterResult) error {
	row := demoRows(w)
	fmt.Fprintln(w)
	row("spec", "%.3g ± %.2g s/CPU-s, of %d tasks on %d machines, %d samples", float64(r.SpecMean), float64(r.SpecStdDev), r.SpecTasks, len(r.Machines), r.SpecSamples)
	row("victim", "%s", filepath.Base(string(r.Victim)))
	row("antagonist", "%s, on %s", filepath.Base(string(r.Antagonist)), r.Machines[0])
	if r.Named != "" {
		row("capped", "%s, on %s, correlation %.2f", filepath.Base(string(r.Named)), r.On, float64(r.Correlation))
	}
	if c := float64(r.RelativeCost); !math.IsNaN(c) {
		row("relative", "%.2g of the contended cost under the cap", c)
	}
	row("server", "killed, down for %.0f s; afterwards %d samples stored, %d twice, %d missing", r.Away, r.Stored, r.Twice, r.Missing)
	for i, e := range r.Audited {
		name := ""
		if i == 0 {
			name = "audit"
		}
		row(name, "%s: %s: %s", e[0], e[1], e[2])
	}
	row("left behind", "%s", cmp.Or(strings.Join(r.LeftBehind, ", "), "nothing"))
	_, err := fmt.Fprintf(w, "\n%s (seed %d, %s)\n", r.Verdict, r.Seed, time.Duration(r.Seconds*float64(time.Second)).Round(100*time.Millisecond))
	if err == nil && r.Excuse != "" {
		_, err = fmt.Fprintln(w, r.Excuse)
	}
	return err
}
