package detect

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// A group are suspects that hurt the victim only together (switch Groups, docs/design/0014):
// they explain its excess together, and none of them alone. Limits decide: a limit is evidence
// on the set of tasks that it limited. A set that was limited in vain clears its subsets, and no
// larger set.

// Constants of groups: unit, meaning, and how each was chosen (docs/design/0014).
const (
	// Suspects: size of a group.
	minGroup, maxGroup = 2, 4
	// Share of the victim's excess: least of a group's members together, and more than any
	// member has. A suspect that has it is an antagonist of its own.
	groupShare = 0.5
	// Share of the victim's excess: least of a member.
	minMemberShare = 0.1
	// Intervals under the limit of a whole group: least of a proof.
	minUnder = 2
	// Standard errors, of the victim's usual σ: least difference that a member makes.
	neededErrors = 2
	// Share of the newest bad intervals: least in which all members worked. Members in turn hurt
	// the victim one by one.
	togetherShare = 0.6
	// Ratio: least correlation of a member's work with the victim's cost to the best member's.
	alikeShare = 0.9
	// Share of a column's sum of squares, added to it: members that always work together then
	// have equal shares, instead of any. Numerical.
	ridge = 0.05
	// Rounds of coordinate descent over at most four columns. Numerical.
	descents = 50
)

// Member is a suspect of a group.
type Member struct {
	Task sample.Task `json:"suspect"`
	// Share is its part of the victim's excess in the newest bad intervals, 0..1: by the
	// queue's accounts, else by the regression.
	Share float64 `json:"share"`
	// Usage is its mean pressure in the victim's bad intervals, in the unit of the signal.
	Usage float64 `json:"usage"`
	// Needed: the victim cost more whenever only this member was not limited, or less when
	// it was limited in addition to others.
	Needed bool `json:"needed,omitempty"`
}

// groupMember is a Member while its group is sought.
type groupMember struct {
	slot        int
	share       float64
	usage       float64
	rank        float64 // by which the candidates are ordered
	correlation float64 // of its work with the victim's cost; 1 by accounts
	needed      bool
	idle        bool // limiting it in addition to others made no difference
	failed      bool // limiting it alone left the victim over its threshold
}

// group is the workspace of the search.
type group struct {
	members []groupMember
	out     []Member
	// proven: limiting all members together helped. wanted: it would decide.
	proven, wanted bool
}

// propose adds a suspect to the candidates if it would be worth a trial before any limit.
func (d *Detector) propose(s *series, victim, slot int, g *Grounds, w *weighing, tried float64) {
	if usage := d.meanBadUsage(victim, slot); (g.Level >= Likely || g.Probability >= tried) && usage >= d.leastPressure(s) {
		r := 1.0
		if w != nil {
			r = w.Correlation
		}
		d.group.members = append(d.group.members, groupMember{correlation: r, slot: slot, usage: usage, rank: g.figure(), share: max(0, g.Share+g.Displaced-g.UsualShare)})
	}
}

// findGroup makes the group of the candidates; d.group.members is empty after if there is none.
func (d *Detector) findGroup(s *series, victim int, books *accountTotals) {
	g := &d.group
	d.selectAlike(s)
	if len(g.members) < minGroup || !d.shares(s, victim, books) {
		g.members = g.members[:0]
		return
	}
	g.members = slices.DeleteFunc(g.members, func(m groupMember) bool { return m.share < minMemberShare })
	slices.SortStableFunc(g.members, func(a, b groupMember) int { return cmp.Compare(b.share, a.share) })
	t := &s.tasks[victim]
	limits := d.limitedSets(s, victim)
	var group int
	var sum, most float64
	for i := range g.members {
		m := &g.members[i]
		m.needed, m.idle = limits.effect(i, t.spec.Mean, t.spec.StdDev)
		m.needed = m.needed || books == nil && d.zWithOthers(i) >= minTriedZ
		m.failed = limits[1<<i].n > 0 && limits[1<<i].under() > t.limit
		alone := limits[1<<i].n >= minUnder && limits[1<<i].under() <= t.limit
		if m.idle && !m.needed {
			continue
		}
		group |= 1 << i
		sum, most = sum+m.share, max(most, m.share)
		if alone {
			most = 1 // its limit suffices
		}
	}
	whole := limits.within(group)
	aloneFailed := limits.partFailed(group, t.limit)
	g.members = slices.DeleteFunc(g.members, func(m groupMember) bool { return m.idle && !m.needed })
	if len(g.members) < minGroup || sum < groupShare || most >= groupShare || whole.vain(t.spec.Mean) || !d.together(s, victim) {
		g.members = g.members[:0]
		return
	}
	g.proven = whole.n >= minUnder && whole.under() <= t.limit && (books != nil || d.proveGroup())
	g.wanted = !g.proven && aloneFailed
}

// selectAlike keeps the best candidates, those whose work goes with the victim's cost about as well
// as the best one's.
func (d *Detector) selectAlike(s *series) {
	g := &d.group
	slices.SortFunc(g.members, func(a, b groupMember) int {
		x, y := &s.tasks[a.slot].task, &s.tasks[b.slot].task
		return cmp.Or(cmp.Compare(b.rank, a.rank), cmp.Compare(x.Name, y.Name), compareKeys(x.Key, y.Key))
	})
	best := 0.0
	for _, m := range g.members {
		best = max(best, m.correlation)
	}
	g.members = slices.DeleteFunc(g.members, func(m groupMember) bool { return m.correlation < alikeShare*best })
	g.members = g.members[:min(len(g.members), maxGroup)]
}

// zWithOthers returns a member's z in the regression together with the others.
func (d *Detector) zWithOthers(member int) float64 {
	t := &d.regression
	t.basis = t.basis[:0]
	for i, m := range d.group.members {
		if i != member {
			t.basis = append(t.basis, t.direction(m.slot))
		}
	}
	return t.zOf(d.group.members[member].slot)
}

// together reports whether the members worked at the same time in the victim's newest bad
// intervals without a limit: each used more than half of what it used at most.
func (d *Detector) together(s *series, victim int) bool {
	newest := s.rows[len(s.rows)-1].at
	var most [maxGroup]float64
	for pass := range 2 {
		all, n := 0.0, 0.0
		for _, r := range s.rows {
			if r.cause[victim] != byNeighbour || r.anyLimited() {
				continue
			}
			if pass == 1 && newest.Sub(r.at) >= 2*d.params.OutlierWindow {
				continue
			}
			work := 0
			for i, m := range d.group.members {
				u := float64(r.pressure[m.slot])
				if pass == 0 {
					most[i] = max(most[i], u)
				}
				if u >= most[i]/2 {
					work++
				}
			}
			if n++; work == len(d.group.members) {
				all++
			}
		}
		if pass == 1 {
			return n == 0 || all >= togetherShare*n
		}
	}
	return false
}

// shares computes the members' shares of the victim's excess, and reports whether that could be
// done.
func (d *Detector) shares(s *series, victim int, books *accountTotals) bool {
	g := &d.group
	if books != nil {
		excess := books.waited/books.wanted - books.usual.waits
		for i := range g.members {
			g.members[i].share /= excess
		}
		return excess > 0
	}
	t := &d.regression
	if !t.load(d, s, victim) {
		return false
	}
	g.members = slices.DeleteFunc(g.members, func(m groupMember) bool { return !slices.Contains(t.slots, m.slot) })
	excess := t.meanExcess(t.y)
	if !(excess > 0) {
		return false
	}
	var beta, norm [maxGroup]float64
	for i, m := range g.members {
		u := t.usageOf(m.slot)
		norm[i] = math.Sqrt(dot(u, u))
		if norm[i] == 0 {
			return false
		}
	}
	// Non-negative least squares by coordinate descent, of columns of length 1.
	e := append(t.e[:0], t.y...)
	t.e = e
	for range descents {
		for i, m := range g.members {
			u := t.usageOf(m.slot)
			next := max(0, (dot(u, e)/norm[i]+beta[i])/(1+ridge))
			for k := range e {
				e[k] -= (next - beta[i]) * u[k] / norm[i]
			}
			beta[i] = next
		}
	}
	for i := range g.members {
		m := &g.members[i]
		m.share = max(0, beta[i]/norm[i]*t.meanExcess(t.usageOf(m.slot))/excess)
	}
	return true
}

// proveGroup reports whether the members' usage together, weighted by their shares, explains
// the victim's cost so well that it accuses them. shares has loaded the regression.
func (d *Detector) proveGroup() bool {
	t, g := &d.regression, &d.group
	n := len(t.y)
	t.u = zeroed(t.u, n)
	for _, m := range g.members {
		x := t.usageOf(m.slot)
		scale := m.share / math.Sqrt(dot(x, x))
		for k := range x {
			t.u[k] += scale * x[k]
		}
	}
	p := fit{part: 1, sigmas: minExplainedSigmas, limits: g.limitCount(t.rows)}
	p.changes = levelChanges(t.u) + 2*p.limits
	t.basis = t.basis[:0]
	p.z = t.zOfColumn()
	t.fitStep()
	t.basis = append(t.basis, t.step)
	p.zWithStep = t.zOfColumn()
	return p.proves()
}

// limitCount counts how often all members were limited together in the rows.
func (g *group) limitCount(rows []*row) (count int) {
	was := false
	for _, r := range rows {
		is := !slices.ContainsFunc(g.members, func(m groupMember) bool { return r.cause[m.slot] != limited })
		if is && !was {
			count++
		}
		was = is
	}
	return count
}

// costs are a victim's costs while exactly one set of the candidates was limited.
type costs struct {
	sum, n   float64
	unbadSum float64 // unlimited bad cost, the same for all
}

func (c *costs) under() float64 { return c.sum / c.n }

// vain reports whether the limit reduced the victim's excess by too little.
func (c *costs) vain(mean float64) bool {
	return c.n > 0 && c.unbadSum-c.under() < Relief*(c.unbadSum-mean)
}

// limitSets has the victim's costs by the set of members that were limited, a bit for each. The
// empty set has those of its bad intervals.
type limitSets [1 << maxGroup]costs

// limitedSets sums the victim's costs. The first interval of each set is left out, since it is
// only partly under that limit.
func (d *Detector) limitedSets(s *series, victim int) (all limitSets) {
	last := 0
	for i, r := range s.rows {
		set := 0
		for k, m := range d.group.members {
			if r.cause[m.slot] == limited {
				set |= 1 << k
			}
		}
		changed := i > 0 && set != last
		last = set
		c := r.cause[victim]
		if changed && set != 0 || set == 0 && r.anyLimited() || c != byNeighbour && (c != good || set == 0) {
			continue
		}
		all[set].sum, all[set].n = all[set].sum+float64(r.cost[victim]), all[set].n+1
	}
	for i := range all {
		all[i].unbadSum = all[0].under()
	}
	return all
}

// within returns the costs under limits of the set or a larger one.
func (l *limitSets) within(set int) (c costs) {
	c.unbadSum = l[0].under()
	for k := range l {
		if k&set == set && k != 0 {
			c.sum, c.n = c.sum+l[k].sum, c.n+l[k].n
		}
	}
	return c
}

// partFailed reports whether the limit of a part of the group left the victim over its threshold.
func (l *limitSets) partFailed(group int, limit float64) bool {
	for k := range l {
		if part := k & group; part != 0 && part != group && l[k].n > 0 && l[k].under() > limit {
			return true
		}
	}
	return false
}

// effect compares the sets that differ in a member only. needed reports that the victim cost
// less with it by enough, in one of them; idle that there are such sets, and none showed that.
func (l *limitSets) effect(member int, mean, sd float64) (needed, idle bool) {
	compared := false
	for k := range l {
		without, with := &l[k], &l[k|1<<member]
		if k&(1<<member) != 0 || with.n == 0 || without.n == 0 {
			continue
		}
		least := max(neededErrors*sd*math.Sqrt(1/with.n+1/without.n), Relief*(l[0].under()-mean))
		needed = needed || without.under()-with.under() >= least
		// Only a set with others says that it made no difference: alone it may not suffice.
		compared = compared || k != 0 && min(with.n, without.n) >= minUnder
	}
	return needed, compared && !needed
}

// nameGroup names the members of a group that is proven: a member that made a difference is
// proven too. While a group is to be tried, and after a limit of a member alone that left the
// victim over its threshold, no trial of that member is worth it.
func (d *Detector) nameGroup(s *series) {
	g := &d.group
	if len(g.members) == 0 {
		return
	}
	list := slices.Clone(d.top)
	for i := range list {
		if m := g.member(list[i].slot); m != nil && m.failed {
			list[i].worthTrial = false
		} else if list[i].worthTrial || m == nil && list[i].grounds.Level == Proven {
			g.wanted = false
		}
	}
	d.top = d.top[:0]
	for _, c := range list {
		if m := g.member(c.slot); m != nil && g.proven && c.grounds.Level < Proven {
			c.rank, c.worthTrial = 0, false
			c.grounds.Level, c.grounds.Basis = Likely, ByGroup
			if m.needed {
				c.grounds.Level = Proven
			}
			c.grounds.Why = "limiting it together with " + g.others(s, c.slot) + " reduced the victim's cost"
		}
		d.top = d.keep(s, d.top, c)
	}
}

// others names the other members.
func (g *group) others(s *series, slot int) string {
	var names []string
	for _, m := range g.members {
		if m.slot != slot {
			names = append(names, s.tasks[m.slot].task.Name.String())
		}
	}
	return strings.Join(names, " and ")
}

// describeGroup returns the group, in the detector's buffer.
func (d *Detector) describeGroup(s *series) []Member {
	g := &d.group
	g.out = g.out[:0]
	for _, m := range g.members {
		g.out = append(g.out, Member{Task: s.tasks[m.slot].task, Share: m.share, Usage: m.usage, Needed: m.needed})
	}
	if len(g.out) == 0 {
		return nil
	}
	return g.out
}

// member returns a suspect's place in the group; nil if it has none.
func (g *group) member(slot int) *groupMember {
	if i := slices.IndexFunc(g.members, func(m groupMember) bool { return m.slot == slot }); i >= 0 {
		return &g.members[i]
	}
	return nil
}
