// Table plays rules over the simulator's scenarios and prints how often they
// are right (make quality).
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/eval/quality"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/eval/sim"
	"github.com/quell-dev/quell/internal/eval/stat"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run() error {
	s := quality.Study{}
	var rules []string
	for _, r := range rivals.Names() {
		rules = append(rules, string(r))
	}
	names := flag.String("rules", strings.Join(rules, ","), "rules to play, separated by commas")
	half := flag.String("half", string(sim.Test), "half of the scenarios: tuning or test")
	flag.IntVar(&s.Seeds, "seeds", 10, "cases of each scenario")
	flag.IntVar(&s.Minutes, "minutes", 150, "length of a case")
	flag.IntVar(&s.Days, "days", 200, "days of an everyday machine without antagonists")
	channel := flag.String("channel", "", "channel of the everyday machines, such as cpu; empty: the last-level cache")
	flag.BoolVar(&s.Outside, "outside", false, "give the rules the load outside any task")
	only := flag.String("only", "", "play only scenarios of this channel, such as cpu; empty: all")
	flag.Uint64Var(&s.Seed, "seed", 1, "random seed")
	flag.IntVar(&s.Workers, "workers", 0, "cases played in parallel; 0: one per CPU")
	flag.DurationVar(&s.Trial, "trial", 3*time.Minute, "maximum length of a trial; 0: no trials")
	flag.BoolVar(&s.Feedback, "feedback", false, "let caps follow the victim's cost")
	with := flag.String("with", "", "switches to turn on in every rule, by name: an ablation")
	without := flag.String("without", "", "switches to turn off")
	tail := flag.Float64("tail", 0, "share of outliers among calm samples, by the distribution of the paper's figure 7, in every rule; 0: the rule's own sigmas")
	asJSON := flag.Bool("json", false, "write JSON")
	flag.Parse()
	for name := range strings.SplitSeq(*names, ",") {
		s.Rules = append(s.Rules, detect.Method(name))
	}
	s.Half, s.Channel, s.Only = sim.Half(*half), sim.Channel(*channel), sim.Channel(*only)
	for _, c := range []sim.Channel{s.Channel, s.Only} {
		if c != "" && !slices.Contains(sim.Channels(), c) {
			return fmt.Errorf("channel %q: want one of %v", c, sim.Channels())
		}
	}
	change, err := switches(*with, *without)
	if err != nil {
		return err
	}
	s.Change = func(p *detect.Params) {
		change(p)
		if *tail > 0 {
			p.Sigmas = stat.SigmasOver(*tail)
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
	if *asJSON {
		return json.NewEncoder(os.Stdout).Encode(results)
	}
	return quality.Text(os.Stdout, results)
}

// switches returns a function that turns detect's switches of these names on and off.
func switches(on, off string) (func(*detect.Params), error) {
	known := reflect.TypeFor[detect.Switches]()
	list := func(names string) (all []string, err error) {
		for name := range strings.SplitSeq(names, ",") {
			if name == "" {
				continue
			}
			if _, ok := known.FieldByName(name); !ok {
				return nil, fmt.Errorf("unknown switch %q", name)
			}
			all = append(all, name)
		}
		return all, nil
	}
	ons, err := list(on)
	if err != nil {
		return nil, err
	}
	offs, err := list(off)
	if err != nil {
		return nil, err
	}
	return func(p *detect.Params) {
		v := reflect.ValueOf(&p.Switches).Elem()
		for _, name := range ons {
			v.FieldByName(name).SetBool(true)
		}
		for _, name := range offs {
			v.FieldByName(name).SetBool(false)
		}
	}, nil
}
