// Table plays rules over the simulator's scenarios and prints how often they
// are right (make quality).
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/eval/quality"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/eval/sim"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run() error {
	s := quality.Study{Policy: sim.Policy()}
	var rules []string
	for _, r := range rivals.Names() {
		rules = append(rules, string(r))
	}
	names := flag.String("rules", strings.Join(rules, ","), "rules to play, separated by commas; evidence-look_back is evidence without that switch, an ablation")
	flag.StringVar((*string)(&s.Half), "half", string(sim.Test), "half of the scenarios: tuning or test")
	flag.IntVar(&s.Seeds, "seeds", 10, "cases of each scenario")
	flag.IntVar(&s.Minutes, "minutes", 150, "length of a case")
	flag.IntVar(&s.Days, "days", 200, "days of an everyday machine without antagonists")
	flag.StringVar((*string)(&s.Channel), "channel", "", "channel of the everyday machines, such as cpu; empty: the last-level cache")
	flag.BoolVar(&s.Outside, "outside", false, "give the rules the load outside any task")
	flag.Float64Var(&s.Suffer, "suffer", 0, "sensitivity of antagonists to what they contend for, as a multiple of the victim's")
	flag.StringVar((*string)(&s.Only), "only", "", "play only scenarios of this channel, such as cpu; empty: all")
	flag.Uint64Var(&s.Seed, "seed", 1, "random seed")
	flag.IntVar(&s.Workers, "workers", 0, "cases played in parallel; 0: one per CPU")
	flag.DurationVar(&s.Policy.Trial, "trial", 3*time.Minute, "maximum length of a trial; 0: no trials")
	flag.BoolVar(&s.Advise, "advise", false, "play in mode advise: no caps, no trials")
	flag.BoolVar(&s.Policy.Groups, "groups", false, "try and cap suspects together where a cap on one is not enough")
	flag.BoolVar(&s.Policy.Feedback, "feedback", false, "let caps follow the victim's cost")
	flag.Parse()
	for name := range strings.SplitSeq(*names, ",") {
		s.Rules = append(s.Rules, detect.Method(name))
	}
	for _, c := range []sim.Channel{s.Channel, s.Only} {
		if c != "" && !slices.Contains(sim.Channels(), c) {
			return fmt.Errorf("channel %q: want one of %v", c, sim.Channels())
		}
	}
	began, shown := time.Now(), time.Now()
	results, err := quality.Run(s, func(done, all int) {
		if now := time.Now(); now.Sub(shown) > 5*time.Second {
			shown = now
			fmt.Fprintf(os.Stderr, "%d of %d cases, %s\n", done, all, now.Sub(began).Round(time.Second))
		}
	})
	if err != nil {
		return err
	}
	return quality.Text(os.Stdout, results)
}
