package quality

import (
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sim"
	"github.com/quell-dev/quell/internal/stat"
)

// Confidence of every interval, one-sided.
const Confidence = 0.95

// Study says what is played.
type Study struct {
	Rules []detect.Rule
	// Change, if set, alters a rule's parameters: an ablation.
	Change func(*detect.Params)
	Half   sim.Half
	// Only is whose scenarios are played; "": those of all channels.
	Only sim.Channel
	// Trial is how long suspects may be held to find out (plan.Policy).
	Trial time.Duration
	// Feedback lets caps follow the victim's cost (plan.Policy).
	Feedback bool
	// Seeds is how many cases of each scenario, Minutes how long each.
	Seeds, Minutes int
	// Days is how many days of an everyday machine without antagonists, whose
	// tasks meet at Channel ("": sim.Everyday's).
	Days    int
	Channel sim.Channel
	// Outside tells the rules what runs outside any task.
	Outside bool
	Seed    uint64
	Workers int // 0: one a CPU
}

// Count is what is counted of a class of cases.
type Count struct {
	Class string `json:"class"`
	Cases int    `json:"cases"`
	// Accusations are pairs of victim and accused, each once a case; Right of
	// them named who hurt the victim.
	Accusations int `json:"accusations"`
	Right       int `json:"right"`
	// Victims are tasks that antagonists alone made ill; Named of them had an
	// antagonist accused.
	Victims int `json:"victims"`
	Named   int `json:"named"`
	// First is how many cases with victims had an accusation, and FirstRight in
	// how many of them the first was right.
	First      int `json:"first"`
	FirstRight int `json:"first_right"`
	// After are the times from becoming a victim to being named.
	After []time.Duration `json:"-"`
	// Trials are suspects held to find out; TrialsRight of them had hurt the victim.
	Trials      int `json:"trials"`
	TrialsRight int `json:"trials_right"`
	// Outcomes counts the rounds of caps by what the planner made of them.
	Outcomes map[plan.Outcome]int `json:"outcomes,omitempty"`
	// Relief is what caps took and gave.
	Relief  sim.Relief `json:"relief"`
	Minutes int        `json:"minutes"`
	Samples int        `json:"samples"`
}

// Precision, Recall and Top1 are the shares; their lower ends come with them.
func (c *Count) Precision() (share, low float64) { return shares(c.Right, c.Accusations) }
func (c *Count) Recall() (share, low float64)    { return shares(c.Named, c.Victims) }
func (c *Count) Top1() (share, low float64)      { return shares(c.FirstRight, c.First) }

func shares(k, n int) (share, low float64) {
	if n == 0 {
		return 0, 0
	}
	return float64(k) / float64(n), stat.ShareBelow(k, n, Confidence)
}

// FalsePerThousandDays is how many wrong accusations a thousand machine-days
// have, with the upper end.
func (c *Count) FalsePerThousandDays() (rate, high float64) {
	days := float64(c.Minutes) / (24 * 60)
	wrong := c.Accusations - c.Right
	return float64(wrong) / days * 1000, stat.RateAbove(wrong, Confidence) / days * 1000
}

// Add takes in a case.
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

// Median is the median time to being named; 0 if nobody was.
func (c *Count) Median() time.Duration {
	if len(c.After) == 0 {
		return 0
	}
	slices.Sort(c.After)
	return c.After[len(c.After)/2]
}

// Result is what one rule did.
type Result struct {
	Rule     detect.Rule `json:"rule"`
	All      Count       `json:"all"`
	Classes  []*Count    `json:"classes"` // in the scenarios' order
	Everyday Count       `json:"everyday"`
}

// Run plays the study. progress is told how many of how many cases are done.
func Run(s Study, progress func(done, all int)) ([]Result, error) {
	player := sim.NewPlayer(s.Seed)
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
	// Days for judging are others than days for tuning.
	firstDay := s.Seed
	if s.Half == sim.Test {
		firstDay += 1 << 20
	}
	everyday := sim.Everyday()
	if s.Channel != "" {
		everyday.Channel = s.Channel
	}
	for n := range s.Days {
		days = append(days, sim.Order{Scenario: &everyday, Seed: firstDay + uint64(n)})
	}
	all, done := (len(orders)+len(days))*len(s.Rules), 0
	var results []Result
	for _, rule := range s.Rules {
		p, err := detect.Paper(rule)
		if err != nil {
			return nil, fmt.Errorf("run study: %w", err)
		}
		if s.Change != nil {
			s.Change(&p)
		}
		policy := sim.Policy()
		policy.Mode, policy.Trial, policy.Feedback = plan.On, s.Trial, s.Feedback
		setup := sim.Setup{Params: p, Policy: policy, Minutes: s.Minutes, Outside: s.Outside}
		r := Result{Rule: rule, All: Count{Class: "all"}, Everyday: Count{Class: "everyday"}}
		classes := map[string]*Count{}
		player.Fleet(orders, setup, s.Workers, func(c sim.Case) {
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
		player.Fleet(days, setup, s.Workers, func(c sim.Case) {
			r.Everyday.Add(&c)
			done++
			progress(done, all)
		})
		slices.SortFunc(r.Classes, func(a, b *Count) int { return order(scenarios, a.Class) - order(scenarios, b.Class) })
		results = append(results, r)
	}
	return results, nil
}

func order(all []sim.Scenario, class string) int {
	return slices.IndexFunc(all, func(s sim.Scenario) bool { return s.Class == class })
}
