// Placing compares what becomes of a simulated fleet if its scheduler keeps pairs of jobs
// apart: the pairs that quell has measured on one half of the machines, and as many random
// ones, judged on the other half (make placement, docs/sim.md).
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/quell-dev/quell/internal/core/detect"
)

func main() {
	s := study{Rule: detect.Default, Served: 16, Work: 24}
	flag.IntVar(&s.Machines, "machines", 200, "machines of each half")
	flag.IntVar(&s.Days, "days", 30, "days that each half is played")
	flag.StringVar((*string)(&s.Rule), "rule", string(s.Rule), "rule that measures the pairs")
	flag.Uint64Var(&s.Seed, "seed", 1, "random seed")
	flag.IntVar(&s.Draws, "draws", 200, "random choices of pairs, whose mean counts")
	flag.Parse()
	r, err := s.run()
	if err == nil {
		err = r.write(os.Stdout, &s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "placing:", err)
		os.Exit(1)
	}
}

// write writes the result as tables.
func (r *result) write(out io.Writer, s *study) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	perYear := func(h float64) float64 { return h * 365 / float64(s.Days) * 1000 / float64(s.Machines) }
	fmt.Fprintf(w, "rule %s, seed %d: %d machines and %d days a half; %d pairs of jobs interfere, %d were measured, %d of them wrong\n\n",
		s.Rule, s.Seed, s.Machines, s.Days, r.True, r.Measured, r.Wrong)
	fmt.Fprintln(w, "pairs kept apart\tpairs\tinterference hours\t95 % of draws\tper 1,000 machines and year\tof random pairs")
	for _, row := range r.Rows {
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f to %.0f\t%.0f\t%.2f\n", row.Name, row.Pairs, row.Hours, row.Low, row.High, perYear(row.Hours), row.Hours/r.Random)
	}
	return w.Flush()
}
