package detect

import (
	"fmt"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// If the kernel runs a queue, the tasks that were served while a task waited are known
// (Reading.Served). That accounts for the wait, and needs neither a history of the suspect
// nor a correlation. A task that was served is not necessarily at fault; accountTotals.grounds has
// the further conditions (docs/design/0008).

// Constants of accounts: unit, meaning, and how each was chosen (docs/design/0008).
const (
	// Share of the victim's excess wait: least by which the service of a suspect exceeds its
	// usual service, and most of the wait that may lack a known task in a proof. Design 0008;
	// the reason for the number is not stated.
	minExcessShare = 0.2
	// Share of the wait: least part attributed to tasks; below it statistics decide. Not stated.
	minAttributedShare = 0.5
	// Ratio: least increase of a suspect's service or usage that counts. Not stated.
	increaseRatio = 1.25
	// Ratio: least increase of a victim's own demand for the queue, plus ownDemandOffset,
	// that is the reason for its wait. A few more threads wait for each other as soon as
	// another task takes a CPU. Design 0008, first table.
	ownDemandRatio = 2
	// CPUs, or requests a second: see ownDemandRatio.
	ownDemandOffset = 0.5
	// Share of the wait: more than this by threads of low priority prevents a name. Design
	// 0008, first table.
	maxNicedShare = 0.5
	// Intervals: about the number of good ones in the mean of the usual shares. Not stated.
	usualOver = 60
	// Share: smaller usual shares are forgotten, which bounds the memory. Numerical.
	minUsualShare = 1e-4
)

// account holds the tasks that were served while a task waited, for one interval.
type account struct {
	at     sample.Millis
	bad    bool
	wanted float64 // s/s that the task was served or waited behind others
	waited float64 // s/s of wanted in which it waited
	niced  float64 // s/s of the wait by threads with low priority (niced or SCHED_IDLE)
	demand float64 // Reading.Demand
	served []Served
}

// usual holds the means of accounts over a task's good intervals.
type usual struct {
	n             float64
	waits, demand float64 // waited ÷ wanted; Reading.Demand
	of            map[sample.TaskKey]float64
}

// accounts is what is kept of a task's accounts.
type accounts struct {
	newest []account // of the last OutlierWindow, oldest first
	usual  usual
}

// keep adds a reading that was judged.
func (a *accounts) keep(at, end sample.Millis, r *Reading, c cause) {
	n := 0
	for n < len(a.newest) && a.newest[n].at <= end {
		n++
	}
	var old account
	if n > 0 {
		old = a.newest[0] // its slice is reused
	}
	a.newest = slices.Delete(a.newest, 0, n)
	if r.Served == nil || !(r.Wanted > 0) {
		return
	}
	now := account{at: at, bad: c == byNeighbour, wanted: r.Wanted, waited: r.Waited, niced: r.Niced, demand: r.Demand,
		served: append(old.served[:0], r.Served...)}
	a.newest = append(a.newest, now)
	if c == good {
		a.usual.add(&now)
	}
}

// raised reports whether a task's demand for the queue is so much above its usual one that this is the
// reason for its wait.
func (u *usual) raised(demand float64) bool {
	return u.n > 0 && demand > ownDemandRatio*u.demand+ownDemandOffset
}

// selfMade reports whether a task may have made its wait for CPUs itself, so that the wait says nothing
// of its neighbours: what it waited for itself is not apart, its threads asked to be served last, or it
// has asked for far more than usual.
func (r *Reading) selfMade(u *usual) bool {
	return !r.SelfKnown || r.Niced > r.Waited*maxNicedShare || u.raised(r.Demand)
}

// everServed adds the tasks that were served in the newest accounts to a set. They shared the queue then,
// whatever was known of where they may run.
func (a *accounts) everServed(all map[sample.TaskKey]bool) {
	for i := range a.newest {
		for j := range a.newest[i].served {
			all[a.newest[i].served[j].By] = true
		}
	}
}

func (u *usual) add(a *account) {
	u.n = min(u.n+1, usualOver)
	part := 1 / u.n
	u.waits += (a.waited/a.wanted - u.waits) * part
	u.demand += (a.demand - u.demand) * part
	for k, v := range u.of {
		if v *= 1 - part; v < minUsualShare {
			delete(u.of, k)
		} else {
			u.of[k] = v
		}
	}
	for i := range a.served {
		s := &a.served[i]
		if share := s.Time / a.wanted * part; share >= minUsualShare {
			if u.of == nil {
				u.of = map[sample.TaskKey]float64{}
			}
			u.of[s.By] += share
		}
	}
}

// accountTotals are the totals of the bad ones of the newest accounts.
type accountTotals struct {
	n                                         int
	wanted, waited, niced, demand, attributed float64
	usual                                     *usual
	of                                        []Served               // Fair is the mean, weighted by time
	at                                        map[sample.TaskKey]int // in of, if those are many
	// pushed is the part of the wanted time in which tasks without increased usage were
	// served more than usual. used is the usage of the tasks, by slot, and rises the total
	// increase of those with increased usage.
	pushed, rises float64
	used          []use
}

// mostServed is the number of tasks that were served up to which a search is cheaper than a map.
const mostServed = 32

// find returns where a task is in of, −1 if it was not served.
func (t *accountTotals) find(k sample.TaskKey) int {
	if len(t.of) <= mostServed {
		return slices.IndexFunc(t.of, func(p Served) bool { return p.By == k })
	}
	if len(t.at) == 0 {
		if t.at == nil {
			t.at = map[sample.TaskKey]int{}
		}
		for i := range t.of {
			t.at[t.of[i].By] = i
		}
	}
	if i, ok := t.at[k]; ok {
		return i
	}
	return -1
}

// add adds a task that was not served yet.
func (t *accountTotals) add(k sample.TaskKey) int {
	t.of = append(t.of, Served{By: k})
	if len(t.at) > 0 {
		t.at[k] = len(t.of) - 1
	}
	return len(t.of) - 1
}

// use is a suspect's mean usage in the victim's bad intervals, and in its good ones over
// everything that is remembered; NaN if not known.
type use struct{ bad, before float64 }

// rise returns the increase of its usage, 0 if that is below increaseRatio.
func (u use) rise() float64 {
	if u.bad >= increaseRatio*u.before {
		return u.bad - u.before
	}
	return 0
}

// account sums the accounts of a victim's newest bad intervals; nil if too little of its
// wait is accounted for.
func (d *Detector) account(s *series, victim int) *accountTotals {
	a := &s.tasks[victim].accounts
	t := &d.sums
	clear(t.at)
	*t = accountTotals{usual: &a.usual, of: t.of[:0], at: t.at, used: t.used[:0]}
	for i := range a.newest {
		x := &a.newest[i]
		if !x.bad {
			continue
		}
		t.n++
		t.wanted, t.waited, t.niced, t.demand = t.wanted+x.wanted, t.waited+x.waited, t.niced+x.niced, t.demand+x.demand
		for _, o := range x.served {
			if o.By != Outside().Key { // outside the followed tasks it may be any task
				t.attributed += o.Time
			}
			k := t.find(o.By)
			if k < 0 {
				k = t.add(o.By)
			}
			p := &t.of[k]
			p.Time += o.Time
			p.Fair += o.Fair * o.Time
		}
	}
	if t.n == 0 || !(t.waited > 0) || t.attributed < minAttributedShare*t.waited {
		return nil
	}
	for i := range t.of {
		if p := &t.of[i]; p.Time > 0 {
			p.Fair /= p.Time
		}
	}
	for i := range s.tasks {
		u := use{math.NaN(), math.NaN()}
		if k := &s.tasks[i]; i != victim && k.used && d.excluded[i] == "" {
			u.bad, u.before = d.usedBefore(s, victim, i)
			t.rises += u.rise()
			j := t.find(k.task.Key)
			bound := k.reach.Len() == 1 // to one CPU, from which nothing can push it
			if j >= 0 && !bound && u.bad < increaseRatio*u.before && s.signal.Domain == sample.SharedCPU {
				t.pushed += max(0, t.of[j].Time/t.wanted-t.usual.of[k.task.Key])
			}
		}
		t.used = append(t.used, u)
	}
	return t
}

// grounds returns the evidence of the accounts against the suspect in a slot; least is the
// least usage that counts.
func (t *accountTotals) grounds(slot int, by sample.TaskKey, least float64) Grounds {
	g := Grounds{Basis: ByAccounts, UsualShare: t.usual.of[by]}
	if k := t.find(by); k >= 0 {
		g.Share, g.FairShare = t.of[k].Time/t.wanted, t.of[k].Fair
	}
	excess := t.waited/t.wanted - t.usual.waits
	if excess <= 0 {
		return g
	}
	// A new task takes a CPU from the tasks that were there. If one of them then waits for
	// another, the new task caused that, whatever CPU it runs on itself.
	use := t.used[slot]
	if rise := use.rise(); rise > 0 && rise >= max(least, minExcessShare*min(1, t.pushed*t.wanted/float64(t.n))) {
		g.Displaced = t.pushed * rise / t.rises
	}
	enough := func(share float64) bool {
		return share-g.UsualShare >= minExcessShare*excess && share >= increaseRatio*g.UsualShare
	}
	served := enough(g.Share)
	if !served && !enough(g.Share+g.Displaced) {
		g.Displaced = 0
		return g
	}
	switch demand := t.demand / float64(t.n); {
	case use.bad < increaseRatio*use.before:
		g.Level, g.Why = Possible, "it used no more than before: it may have been moved to where the victim waits"
	case t.usual.raised(demand):
		g.Level, g.Why = Possible, fmt.Sprintf("the victim's own demand is %.1f times as much as usual", demand/max(t.usual.demand, 1e-3))
	case t.niced > t.waited*maxNicedShare:
		g.Level, g.Why = Possible, "the victim's threads have low priority (niced or SCHED_IDLE)"
	case !served:
		g.Level = Likely
	case t.usual.n == 0:
		g.Level, g.Why = Likely, "no good interval of the victim is known to compare with"
	case t.attributed < (1-minExcessShare)*t.waited:
		g.Level, g.Why = Likely, fmt.Sprintf("%.0f %% of the wait is not attributed to a known task", 100*(1-t.attributed/t.waited))
	case g.FairShare == 0:
		g.Level, g.Why = Likely, "its fair share is unknown"
	case g.Share <= g.FairShare:
		g.Level, g.Why = Likely, "that is no more than its fair share"
	default:
		g.Level = Proven
	}
	if served {
		g.Displaced = 0
	}
	return g
}

// usedBefore returns a suspect's mean usage in the victim's bad intervals and in its good
// ones, over everything that is remembered; NaN if there is nothing.
func (d *Detector) usedBefore(s *series, victim, suspect int) (bad, before float64) {
	var n [2]float64
	limit := s.tasks[victim].limit
	for b := range s.memory.blocks {
		if victim < len(b.counted) && b.counted[victim] > 0 && float64(b.cost[victim]) <= limit {
			k := float64(b.counted[victim])
			n[0] += k
			if suspect < len(b.pressure) {
				before += k * float64(b.pressure[suspect])
			}
		}
	}
	newest := s.rows[len(s.rows)-1].at
	for _, r := range s.rows {
		switch {
		case r.cause[victim] == good:
			n[0], before = n[0]+1, before+float64(r.usage(suspect))
		case r.cause[victim] == byNeighbour && newest.Sub(r.at) < d.params.OutlierWindow:
			n[1], bad = n[1]+1, bad+float64(r.usage(suspect))
		}
	}
	if n[0] == 0 || n[1] == 0 {
		return math.NaN(), math.NaN()
	}
	return bad / n[1], before / n[0]
}
