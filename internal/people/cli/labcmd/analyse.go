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
		ValidArgsFunction: folders,
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := a.openReport(args[0], "")
			if err != nil {
				return err
			}
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
	section(t, "values", "cell\trole\tworkload\tvalue\tunit\tbetter", r.Scores, func(s analyse.Score) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", levels(s.Levels), s.Part, s.Workload, interval(s.Value), s.Unit, s.Better)
	})
	section(t, "degradation against solo", "cell\trole\tsolo\twith others\tunit\tworse by %", r.Degradations, func(d analyse.Degradation) string {
		return fmt.Sprintf("%s\t%s\t%.4g\t%.4g\t%s\t%s", levels(d.Levels), d.Part, d.Solo.Value, d.Co.Value, d.Unit, interval(d.Percent))
	})
	section(t, "performance interference", "cell\trole\tmetric %\tinterval %\thalves\tangle°\tstyle", r.Interferences, func(i analyse.Interference) string {
		return fmt.Sprintf("%s\t%s\t%.2f\t%s\t%.2f, %.2f\t%.2f\t%s", levels(i.Levels), i.Role, i.Metric, interval(i.Interval), i.Halves[0].Metric, i.Halves[1].Metric, i.Angle, i.Style())
	})
	section(t, "mappings, against each machine's best", "set\tmappings\taverage %\tworst %\tof", r.Mappings, func(b analyse.MappingResult) string {
		return fmt.Sprintf("%s\t%d\t%s\t%s\t%s", b.Set, b.Mappings, interval(b.Interval), interval(b.WorstInterval), b.WorstOf)
	})
	section(t, "system throughput", "cell\tsteps\tunit\tsymmetric", r.Systems, func(s analyse.System) string {
		return fmt.Sprintf("%s\t%d\t%s\t%v", levels(s.Levels), len(s.Steps), s.Unit, s.Symmetric)
	})
	section(t, "migrations", "cell\tpart\tper second\tlogical\tphysical\tin s\ton place", r.Migrations, func(m analyse.MigrationStats) string {
		return fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%.0f\t%.3f", levels(m.Levels), m.Part, interval(m.PerSecond), m.Logical, m.Physical, m.Seconds, m.OnPlace)
	})
	section(t, "dose and response", "cell\trole\tper neighbour", r.Doses, func(d analyse.Dose) string {
		return fmt.Sprintf("%s\t%s\t%s", levels(d.Levels), d.Part, interval(d.PerNeighbour))
	})
	section(t, "difference between two doses, %", "cell\trole\tof\tover\tat the first\tfull over itself alone\tfull over the other full\tdo they meet?", r.DoseGaps, func(g analyse.DoseGap) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", levels(g.Levels), g.Part, g.Of, g.Over, interval(g.First), interval(g.OverOwnLowest), interval(g.AtFull), g.Meeting)
	})
	section(t, "cost of work", "cell\trole\tprice per CPU-hour\tlowest dose\thighest dose\tunit", r.DoseCosts, func(c analyse.DoseCost) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", levels(c.Levels), c.Part, c.Price, interval(c.Lone), interval(c.Full), c.Unit)
	})
	section(t, "between instances", "cell\trole\tinstances\tbetween %\twithin %\tslowest over fastest %", r.Variations, func(v analyse.Variation) string {
		return fmt.Sprintf("%s\t%s\t%d\t%s\t%.3g\t%.3g", levels(v.Levels), v.Part, len(v.Instances), interval(v.Between), v.Within, v.Span)
	})
	section(t, "signal validity", "signal\tpart\tworkload\tPearson\tSpearman\tp\tPearson with the 95th percentile\tdrift %/h\truns", r.Validities, func(v analyse.Validity) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%.3f\t%.3g\t%s\t%s\t%d", v.Signal, v.Part, v.Workload, interval(v.Pearson), v.Spearman.Value, v.P, interval(v.Tail), interval(v.Drift), v.N)
	})
	if r.NetIO != nil || r.Tenants != nil || len(r.Correlations) > 0 {
		fmt.Fprintln(t, "\nnetwork figures and correlations are in the report (quell lab report)")
	}
	for _, k := range sortedKeys(r.Insufficient) {
		fmt.Fprintf(t, "\n%s: %s\n", k, r.Insufficient[k])
	}
	return t.Flush()
}

// section prints a table with a row for each result, if there are any.
func section[T any](w io.Writer, title, columns string, all []T, row func(T) string) {
	for i, one := range all {
		if i == 0 {
			fmt.Fprintf(w, "\n%s\n%s\n", title, columns)
		}
		fmt.Fprintln(w, row(one))
	}
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
