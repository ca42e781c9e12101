package detect

import (
	"fmt"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/sample"
)

// Where the kernel runs a queue it is known who was served while a task waited
// (Reading.Served): that accounts for the wait, and needs neither a history of the
// suspect nor a correlation. It says who was served, which is not yet whose fault it
// is; what must come to it stands at account.level (docs/design/0008).

// What accounts ask of a suspect.
const (
	// ofExcess is the least part of what the victim waits more than usual that a
	// suspect must have been served more than usual.
	ofExcess = 0.2
	// accounted is the least part of the wait that must be somebody's.
	accounted = 0.5
	// grown is by what ratio a demand, or a suspect's use, must have gone up to count
	// as more than before.
	grown = 1.25
	// asksMore is by what ratio a victim's own demand for the queue must have gone up,
	// beyond half a CPU (or half a request a second), to be the reason for its wait: a
	// few threads more wait for each other as soon as somebody else takes a CPU.
	asksMore = 2
	// usualOver is how many good intervals the usual shares are the mean of, about.
	usualOver = 60
)

// account is what one interval says of who was served while a task waited.
type account struct {
	at     sample.Millis
	bad    bool
	wanted float64 // s/s that the task was served or waited behind others
	waited float64 // s/s of it that it waited
	niced  float64 // s/s of the wait that was of threads which ask to be served last
	demand float64 // Reading.Demand
	served []Served
}

// usual is what accounts say while a task is well: means over good intervals.
type usual struct {
	n             float64
	waits, demand float64 // share of what it wanted; Reading.Demand
	of            map[sample.TaskKey]float64
}

// accounts is what is kept of a task.
type accounts struct {
	newest []account // of the last OutlierWindow, oldest first
	usual  usual
}

// keep takes in a reading that was judged.
func (a *accounts) keep(at, end sample.Millis, r *Reading, c cause) {
	n := 0
	for n < len(a.newest) && a.newest[n].at <= end {
		n++
	}
	var old account
	if n > 0 {
		old = a.newest[0] // its slice is used again
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

func (u *usual) add(a *account) {
	u.n = min(u.n+1, usualOver)
	part := 1 / u.n
	u.waits += (a.waited/a.wanted - u.waits) * part
	u.demand += (a.demand - u.demand) * part
	for k, v := range u.of {
		if v *= 1 - part; v < 1e-4 {
			delete(u.of, k)
		} else {
			u.of[k] = v
		}
	}
	for i := range a.served {
		s := &a.served[i]
		if share := s.Time / a.wanted * part; share >= 1e-4 {
			if u.of == nil {
				u.of = map[sample.TaskKey]float64{}
			}
			u.of[s.By] += share
		}
	}
}

// sums are the bad ones of the newest accounts together.
type sums struct {
	n                                         int
	wanted, waited, niced, demand, attributed float64
	usual                                     *usual
	of                                        []Served // Fair is the mean, weighted by time
	// pushed is the part of the wanted time in which more than usual was served of those
	// who use no more than before; used is what tasks used, by slot, and rises how much
	// more all of them together did that use more.
	pushed, rises float64
	used          []use
}

// use is what a suspect used in the victim's bad intervals, and in its good ones by
// everything that is remembered; NaN where that is not known.
type use struct{ bad, before float64 }

// rise is how much more it used, 0 where that is not grown.
func (u use) rise() float64 {
	if u.bad >= grown*u.before {
		return u.bad - u.before
	}
	return 0
}

// account adds up the accounts of a victim's newest bad intervals; nil where too
// little of its wait is accounted for.
func (d *Detector) account(s *series, victim int) *sums {
	a := &s.tasks[victim].accounts
	t := &d.sums
	*t = sums{usual: &a.usual, of: t.of[:0], used: t.used[:0]}
	for i := range a.newest {
		x := &a.newest[i]
		if !x.bad {
			continue
		}
		t.n++
		t.wanted, t.waited, t.niced, t.demand = t.wanted+x.wanted, t.waited+x.waited, t.niced+x.niced, t.demand+x.demand
		for _, o := range x.served {
			if o.By != Outside().Key { // what is no task that is followed may be any
				t.attributed += o.Time
			}
			k := slices.IndexFunc(t.of, func(p Served) bool { return p.By == o.By })
			if k < 0 {
				t.of = append(t.of, Served{By: o.By})
				k = len(t.of) - 1
			}
			p := &t.of[k]
			p.Time += o.Time
			p.Fair += o.Fair * o.Time
		}
	}
	if t.n == 0 || !(t.waited > 0) || t.attributed < accounted*t.waited {
		return nil
	}
	for i := range t.of {
		if p := &t.of[i]; p.Time > 0 {
			p.Fair /= p.Time
		}
	}
	for i := range s.tasks {
		u := use{math.NaN(), math.NaN()}
		if k := &s.tasks[i]; i != victim && k.used && d.unable(s, victim, i) == "" {
			u.bad, u.before = d.usedBefore(s, victim, i)
			t.rises += u.rise()
			j := slices.IndexFunc(t.of, func(p Served) bool { return p.By == k.task.Key })
			if j >= 0 && u.bad < grown*u.before && s.signal.Domain == sample.SharedCPU {
				t.pushed += max(0, t.of[j].Time/t.wanted-t.usual.of[k.task.Key])
			}
		}
		t.used = append(t.used, u)
	}
	return t
}

// grounds says what the accounts say of the suspect in a slot; least is what counts as
// used.
func (t *sums) grounds(slot int, by sample.TaskKey, least float64) Grounds {
	g := Grounds{Method: ByAccounts, UsualShare: t.usual.of[by]}
	if k := slices.IndexFunc(t.of, func(p Served) bool { return p.By == by }); k >= 0 {
		g.Share, g.FairShare = t.of[k].Time/t.wanted, t.of[k].Fair
	}
	excess := t.waited/t.wanted - t.usual.waits
	if excess <= 0 {
		return g
	}
	// Who comes takes a CPU from those who were there. Where one of them now waits for
	// the other, that is the newcomer's doing, on whatever CPU it runs itself.
	use := t.used[slot]
	if rise := use.rise(); rise > 0 && rise >= max(least, ofExcess*min(1, t.pushed*t.wanted/float64(t.n))) {
		g.Pushed = t.pushed * rise / t.rises
	}
	enough := func(share float64) bool { return share-g.UsualShare >= ofExcess*excess && share >= grown*g.UsualShare }
	served := enough(g.Share)
	if !served && !enough(g.Share+g.Pushed) {
		g.Pushed = 0
		return g
	}
	switch demand := t.demand / float64(t.n); {
	case use.bad < grown*use.before:
		g.Level, g.Why = Possible, "it used no more than before: it may have been moved to where the victim waits"
	case t.usual.n > 0 && demand > asksMore*t.usual.demand+0.5:
		g.Level, g.Why = Possible, fmt.Sprintf("the victim wants %.1f times as much as usual", demand/max(t.usual.demand, 1e-3))
	case t.niced > t.waited/2:
		g.Level, g.Why = Possible, "the victim's threads ask to be served last"
	case !served:
		g.Level = Likely
	case t.attributed < (1-ofExcess)*t.waited:
		g.Level, g.Why = Likely, fmt.Sprintf("%.0f %% of the wait is nobody's that is known", 100*(1-t.attributed/t.waited))
	case g.FairShare == 0:
		g.Level, g.Why = Likely, "its fair share is not known"
	case g.Share <= g.FairShare:
		g.Level, g.Why = Likely, "that is no more than its fair share"
	default:
		g.Level = Proven
	}
	if served {
		g.Pushed = 0
	}
	return g
}

// usedBefore is what a suspect used in the victim's bad intervals and in its good
// ones, by everything that is remembered; NaN where nothing is.
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
			n[0], before = n[0]+1, before+float64(r.pressure[suspect])
		case r.cause[victim] == byNeighbour && newest.Sub(r.at) < d.params.OutlierWindow:
			n[1], bad = n[1]+1, bad+float64(r.pressure[suspect])
		}
	}
	if n[0] == 0 || n[1] == 0 {
		return math.NaN(), math.NaN()
	}
	return bad / n[1], before / n[0]
}
