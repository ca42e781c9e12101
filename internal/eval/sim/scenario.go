package sim

import (
	"hash/fnv"
	"strings"
)

// Scenario is a recipe for cases: what happens on a machine. A seed determines the details.
type Scenario struct {
	Name  string
	Class string // results are grouped by it
	Half  Half

	Channel  Channel
	Pattern  Pattern // "" if there is no antagonist
	Strong   bool    // otherwise mild: below the paper's correlation of 0.35
	Confuser Confuser
	Trouble  Trouble // what else happens if there is no antagonist
	Visits   bool    // antagonists come and go at visitsADay (Fleet)
	Guests   *Guests // of a machine on which tasks were placed (Placed); nil: drawn

	Crowded, Loud, Uneven bool
}

// Half is the permitted use of a scenario.
type Half string

// Rules are improved on the tuning half only, and judged on the test half.
const (
	Tuning Half = "tuning"
	Test   Half = "test"
)

// halfOf is the fixed rule of the split: FNV-1a of the name, 64 bits, its highest bit.
func halfOf(name string) Half {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	if h.Sum64()>>63 == 0 {
		return Tuning
	}
	return Test
}

// Pattern is when antagonists are active.
type Pattern string

// The patterns.
const (
	Onset  Pattern = "onset"  // one comes and stays
	Bursts Pattern = "bursts" // one comes and goes
	Busier Pattern = "busier" // one that was busy before becomes busier, and less again
	Turns  Pattern = "turns"  // two or three, one at a time
	Group  Pattern = "group"  // three or four at once, none of them sufficient alone
)

// Confuser is what makes innocents look guilty in addition to the antagonist.
type Confuser string

// The confusers.
const (
	NoConfuser Confuser = "plain"
	Scheduled  Confuser = "scheduled"  // bystanders that mostly start when the antagonist does
	CoVictims  Confuser = "co-victims" // other tasks suffer too, and use more CPU because of it
	Swing      Confuser = "swing"      // the victim's own load swings
)

// Trouble is what happens on a machine without antagonists.
type Trouble string

// The troubles.
const (
	Calm     Trouble = "calm"
	Diurnal  Trouble = "diurnal"   // the load of all tasks rises and falls together
	OwnQuota Trouble = "own-quota" // the victim uses up its own CPU quota
	Level    Trouble = "level"     // the victim changes to another level of cost
	Bimodal  Trouble = "bimodal"   // costly where it uses little (CPI², section 6.1, case 3)
	MoreWork Trouble = "more-work" // more to do, and each piece costs more
	Steal    Trouble = "steal"     // the hypervisor takes CPU time
	Racket   Trouble = "racket"    // neighbours that use much CPU but do not load the channel
	Churn    Trouble = "churn"     // tasks restart, and are expensive while they are cold
	Unseen   Trouble = "unseen"    // an antagonist that cannot be seen, such as another VM
)

// Scenarios returns all families, in a fixed order.
func Scenarios() []Scenario {
	var all []Scenario
	add := func(s Scenario, name ...string) {
		s.Name = strings.Join(name, "/")
		s.Half = halfOf(s.Name)
		all = append(all, s)
	}
	for _, c := range Channels() {
		for _, p := range []Pattern{Onset, Bursts, Busier, Turns, Group} {
			for _, f := range []Confuser{NoConfuser, Scheduled, CoVictims, Swing} {
				add(Scenario{Class: string(p) + " mild", Channel: c, Pattern: p, Confuser: f}, string(c), string(p), "mild", string(f))
				if c != SMT { // SMT cannot cost more than 53 % (platform.go)
					add(Scenario{Class: string(p) + " strong", Channel: c, Pattern: p, Confuser: f, Strong: true}, string(c), string(p), "strong", string(f))
				}
			}
		}
	}
	either := func(yes bool, a, b string) string {
		if yes {
			return a
		}
		return b
	}
	for _, t := range []Trouble{Calm, Diurnal, OwnQuota, Level, Bimodal, MoreWork, Steal, Racket, Churn, Unseen} {
		for i := range 8 {
			s := Scenario{Class: "free " + string(t), Channel: LLC, Trouble: t, Crowded: i&1 != 0, Loud: i&2 != 0, Uneven: i&4 != 0}
			if i&4 != 0 && i&1 != 0 {
				s.Channel = CPU
			}
			add(s, "free", string(t), either(s.Crowded, "crowded", "few"), either(s.Loud, "bursty", "steady"), either(s.Uneven, "uneven", "even"))
		}
	}
	return all
}

// Everyday is the machine of a fleet on a usual day: no antagonist, and small troubles at
// the rates in trouble.go.
func Everyday() Scenario {
	return Scenario{Name: "everyday", Class: "everyday", Half: Test, Channel: LLC, Trouble: everyday, Loud: true}
}

// Fleet is the machine of a fleet on a usual day: everyday, and antagonists that come and
// go. Their rate is fitted to section 7 of CPI² (trouble.go, docs/sim.md).
func Fleet() Scenario {
	s := Everyday()
	s.Name, s.Class, s.Visits = "fleet", "fleet", true
	return s
}

const everyday Trouble = "everyday"
