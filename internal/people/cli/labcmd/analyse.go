package labcmd

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
)

func (a *commands) labAnalyse() *cobra.Command {
	return a.WithJSON(&cobra.Command{
		Use: "analyse FOLDER|PACK", Short: "compute a study's results", Args: cobra.ExactArgs(1), Aliases: []string{"analyze"},
		Long:              "analyse computes the study's analyses, with intervals, from the records in a folder. It runs nothing.\nThe same records give the same numbers on any machine.",
		Example:           "  quell lab analyse lab-results/smoke\n  quell lab analyse --json smoke.tar.gz | jq '.interferences[].metric'",
		ValidArgsFunction: folders,
		RunE: func(_ *cobra.Command, args []string) error {
			r, done, err := a.openReport(args[0], "")
			if err != nil {
				return err
			}
			defer done()
			if a.JSON {
				return a.WriteJSON(r.Results)
			}
			return printResults(a.Out, &r.Results)
		},
	})
}

// printResults prints the short form for a terminal; lab report has everything.
func printResults(w io.Writer, r *analyse.Results) error {
	fmt.Fprintf(w, "study %s\n", r.Study)
	if r.Simulated {
		fmt.Fprintln(w, "SIMULATED: nothing ran; the truth is the study's own model")
	}
	printVerdicts(w, r.Runs, r.Reasons)
	if n := r.Noise; n != nil {
		fmt.Fprintf(w, "noise floor %.2f %% between two runs; %.2f %% detectable with %d repetitions (%d pairs)\n", 100*n.Floor, 100*n.Detectable, n.Repetitions, n.Pairs)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	head := func(title string, columns ...string) {
		fmt.Fprintf(t, "\n%s\n%s\n", title, strings.Join(columns, "\t"))
	}
	if len(r.Degradations) > 0 {
		head("degradation against solo", "cell", "role", "solo", "with others", "unit", "worse by %")
		for _, d := range r.Degradations {
			fmt.Fprintf(t, "%s\t%s\t%.4g\t%.4g\t%s\t%s\n", levels(d.Levels), d.Part, d.Solo.Value, d.Co.Value, d.Unit, interval(d.Percent))
		}
	}
	if len(r.Interferences) > 0 {
		head("performance interference", "cell", "role", "metric %", "interval %", "halves", "angle°", "style")
		for _, i := range r.Interferences {
			fmt.Fprintf(t, "%s\t%s\t%.2f\t%s\t%.2f, %.2f\t%.2f\t%s\n", levels(i.Levels), i.Role, i.Metric, interval(i.Interval), i.Halves[0].Metric, i.Halves[1].Metric, i.Angle, i.Style())
		}
	}
	if len(r.Mappings) > 0 {
		head("mappings, against each machine's best", "set", "mappings", "average %", "worst %", "of")
		for _, b := range r.Mappings {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\n", b.Set, b.Mappings, interval(b.Interval), interval(b.WorstInterval), b.WorstOf)
		}
	}
	if len(r.Systems) > 0 {
		head("system throughput", "cell", "steps", "unit", "symmetric")
		for _, s := range r.Systems {
			fmt.Fprintf(t, "%s\t%d\t%s\t%v\n", levels(s.Levels), len(s.Steps), s.Unit, s.Symmetric)
		}
	}
	if len(r.Migrations) > 0 {
		head("migrations", "cell", "part", "per second", "logical", "physical", "in s", "on place")
		for _, m := range r.Migrations {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%.0f\t%.3f\n", levels(m.Levels), m.Part, interval(m.PerSecond), m.Logical, m.Physical, m.Seconds, m.OnPlace)
		}
	}
	if len(r.Doses) > 0 {
		head("dose and response", "cell", "role", "per neighbour")
		for _, d := range r.Doses {
			fmt.Fprintf(t, "%s\t%s\t%s\n", levels(d.Levels), d.Part, interval(d.PerNeighbour))
		}
	}
	if len(r.DoseGaps) > 0 {
		head("difference between two doses, %", "cell", "role", "of", "over", "at the first", "full over itself alone", "full over the other full", "do they meet?")
		for _, g := range r.DoseGaps {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", levels(g.Levels), g.Part, g.Of, g.Over, interval(g.First), interval(g.OverOwnLowest), interval(g.AtFull), g.Meeting)
		}
	}
	if len(r.DoseCosts) > 0 {
		head("cost of work", "cell", "role", "price per CPU-hour", "lowest dose", "highest dose", "unit")
		for _, c := range r.DoseCosts {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", levels(c.Levels), c.Part, c.Price, interval(c.Lone), interval(c.Full), c.Unit)
		}
	}
	if len(r.Variations) > 0 {
		head("between instances", "cell", "role", "instances", "between %", "within %", "slowest over fastest %")
		for _, v := range r.Variations {
			fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%.3g\t%.3g\n", levels(v.Levels), v.Part, len(v.Instances), interval(v.Between), v.Within, v.Span)
		}
	}
	if len(r.Validities) > 0 {
		head("signal validity", "signal", "part", "workload", "Pearson", "Spearman", "p", "Pearson with the 95th percentile", "drift %/h", "runs")
		for _, v := range r.Validities {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.3f\t%.3g\t%s\t%s\t%d\n", v.Signal, v.Part, v.Workload, interval(v.Pearson), v.Spearman.Value, v.P, interval(v.Tail), interval(v.Drift), v.N)
		}
	}
	for _, k := range sortedKeys(r.Insufficient) {
		fmt.Fprintf(t, "\n%s: %s\n", k, r.Insufficient[k])
	}
	return t.Flush()
}

func levels(ls []study.Level) string {
	words := make([]string, len(ls))
	for i, l := range ls {
		words[i] = l.Value
	}
	return strings.Join(words, " ")
}

// interval formats a figure with its bounds.
func interval(i analyse.Interval) string {
	return fmt.Sprintf("%.3g [%.3g, %.3g]", i.Value, i.Low, i.High)
}
