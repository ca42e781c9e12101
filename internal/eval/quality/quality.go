package quality

import (
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/eval/rivals"
	"github.com/quell-dev/quell/internal/eval/sim"
	"github.com/quell-dev/quell/internal/eval/stat"
)

// Confidence of every confidence interval, one-sided.
const Confidence = 0.95

// Study says which cases are played.
type Study struct {
	Rules []detect.Method
	Half  sim.Half
	// Only is the channel whose scenarios are played; "": all channels.
	Only sim.Channel
	// Policy is applied in mode on, or with Advise in mode advise: no task is capped or tried. Start
	// from sim.Policy.
	Policy plan.Policy
	Advise bool
	// Seeds is the number of cases of each scenario, Minutes the length of each.
	Seeds, Minutes int
	// Days is the number of days of an everyday machine without antagonists, at most daysOfASeed,
	// whose tasks contend for Channel ("": sim.Everyday's).
	Days    int
	Channel sim.Channel
	// Outside gives the rules the load outside any task.
	Outside bool
	// Suffer is that of sim.Setup.
	Suffer  float64
	Seed    uint64
	Workers int // 0: one per CPU
}

// Count holds the counts of a class of cases.
type Count struct {
	Class string `json:"class"`
	Cases int    `json:"cases"`
	// Accusations are pairs of victim and accused, each once a case; Right of them named a
	// task that hurt the victim.
	Accusations int `json:"accusations"`
	Right       int `json:"right"`
	// Victims are tasks that only antagonists raised over the threshold; for Named of them
	// an antagonist was accused.
	Victims int `json:"victims"`
	Named   int `json:"named"`
	// First is the number of cases with victims and an accusation, and FirstRight the
	// number of those in which the first accusation was right.
	First      int `json:"first"`
	FirstRight int `json:"first_right"`
	// After are the times from becoming a victim to being named.
	After []time.Duration `json:"-"`
	// Trials are suspects limited for a trial; TrialsRight of them had hurt the victim.
	Trials      int `json:"trials"`
	TrialsRight int `json:"trials_right"`
	// Outcomes counts the rounds of caps by the planner's verdict.
	Outcomes map[plan.Outcome]int `json:"outcomes,omitempty"`
	// Relief is the cost and the benefit of caps.
	Relief  sim.Relief `json:"relief"`
	Minutes int        `json:"minutes"`
	Samples int        `json:"samples"`
}

// Precision, Recall and Top1 are shares, with their lower confidence limits.
func (c *Count) Precision() (share, low float64) { return shares(c.Right, c.Accusations) }
func (c *Count) Recall() (share, low float64)    { return shares(c.Named, c.Victims) }
func (c *Count) Top1() (share, low float64)      { return shares(c.FirstRight, c.First) }

func shares(k, n int) (share, low float64) {
	if n == 0 {
		return 0, 0
	}
	return float64(k) / float64(n), stat.ShareLowerBound(k, n, Confidence)
}

// FalsePerThousandDays is the number of wrong accusations in a thousand machine-days, with
// its upper confidence limit.
func (c *Count) FalsePerThousandDays() (rate, high float64) {
	days := float64(c.Minutes) / (24 * 60)
	wrong := c.Accusations - c.Right
	return float64(wrong) / days * 1000, stat.RateUpperBound(wrong, Confidence) / days * 1000
}

// Add adds a case.
func (c *Count) Add(k *sim.Case) {
	c.Cases++
	c.Minutes += k.Minutes
	c.Samples += k.Samples
	c.Relief.Add(&k.Relief)
	c.Accusations += len(k.Accusations)
	for _, a := range k.Accusations {
		if a.Right {
			c.Right++
		}
	}
	c.Trials += k.Trials
	c.TrialsRight += k.TrialsRight
	c.Victims += len(k.Victims)
	for _, v := range k.Victims {
		if v.Named {
			c.Named++
			c.After = append(c.After, v.After)
		}
	}
	if len(k.Victims) > 0 && len(k.Accusations) > 0 {
		c.First++
		if k.Accusations[0].Right {
			c.FirstRight++
		}
	}
	for _, r := range k.Rounds {
		if r.Trial {
			continue
		}
		if c.Outcomes == nil {
			c.Outcomes = map[plan.Outcome]int{}
		}
		c.Outcomes[r.Outcome]++
	}
}

// Median is the median time until a victim is named; 0 if none was.
func (c *Count) Median() time.Duration {
	if len(c.After) == 0 {
		return 0
	}
	slices.Sort(c.After)
	return c.After[len(c.After)/2]
}

// Result is the result of one rule.
type Result struct {
	Rule     detect.Method
	All      Count
	Classes  []*Count // in the scenarios' order
	Everyday Count
}

// Run plays the study. progress receives the number of finished cases and of all cases.
func Run(s Study, progress func(done, all int)) ([]Result, error) {
	if s.Half != sim.Tuning && s.Half != sim.Test || s.Days > daysOfASeed {
		return nil, fmt.Errorf("run study: half %q, %d days: want %s or %s, and at most %d days", s.Half, s.Days, sim.Tuning, sim.Test, daysOfASeed)
	}
	rules := make([]rivals.Rule, len(s.Rules))
	for i, name := range s.Rules {
		var err error
		if rules[i], err = rivals.Load(name); err != nil {
			return nil, fmt.Errorf("run study: %w", err)
		}
	}
	player := sim.NewSimulator(s.Seed)
	scenarios := sim.Scenarios()
	var orders, days []sim.Order
	for i := range scenarios {
		if scenarios[i].Half != s.Half || s.Only != "" && scenarios[i].Channel != s.Only {
			continue
		}
		for n := range s.Seeds {
			orders = append(orders, sim.Order{Scenario: &scenarios[i], Seed: s.Seed + uint64(n)})
		}
	}
	everyday := sim.Everyday()
	if s.Channel != "" {
		everyday.Channel = s.Channel
	}
	for n := range s.Days {
		days = append(days, sim.Order{Scenario: &everyday, Seed: s.firstDay() + uint64(n)})
	}
	all, done := (len(orders)+len(days))*len(s.Rules), 0
	var results []Result
	s.Policy.Mode = plan.On
	if s.Advise {
		s.Policy.Mode = plan.Advise
	}
	for i, rule := range s.Rules {
		setup := sim.Setup{Rule: rules[i], Policy: s.Policy, Minutes: s.Minutes, Outside: s.Outside, Suffer: s.Suffer}
		r := Result{Rule: rule, All: Count{Class: "all"}, Everyday: Count{Class: "everyday"}}
		classes := map[string]*Count{}
		player.RunAll(orders, setup, s.Workers, func(c sim.Case) {
			class := classes[c.Scenario.Class]
			if class == nil {
				class = &Count{Class: c.Scenario.Class}
				classes[class.Class] = class
				r.Classes = append(r.Classes, class)
			}
			class.Add(&c)
			r.All.Add(&c)
			done++
			progress(done, all)
		})
		setup.Minutes = 24 * 60
		player.RunAll(days, setup, s.Workers, func(c sim.Case) {
			r.Everyday.Add(&c)
			done++
			progress(done, all)
		})
		slices.SortFunc(r.Classes, func(a, b *Count) int { return order(scenarios, a.Class) - order(scenarios, b.Class) })
		results = append(results, r)
	}
	return results, nil
}

// daysOfASeed is the number of days that a seed has for judging.
const daysOfASeed = 1 << 20

// firstDay is the seed of the first day. The days for judging differ from the days for tuning and,
// whatever their number, from those of other seeds: a seed that was not used has days that were not.
func (s *Study) firstDay() uint64 {
	if s.Half == sim.Test {
		return max(s.Seed, 1)*daysOfASeed + 1
	}
	return s.Seed
}

func order(all []sim.Scenario, class string) int {
	return slices.IndexFunc(all, func(s sim.Scenario) bool { return s.Class == class })
}
