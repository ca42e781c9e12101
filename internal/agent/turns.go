package agent

import (
	"cmp"
	"slices"
)

// rank is how much a task's cost is needed now.
type rank uint8

const (
	// urgent: the victim of an open incident, which nobody can follow without.
	urgent rank = iota
	// preferred: others may be capped for it, or it is an antagonist.
	preferred
	ordinary
	numRanks
)

// claimant is a task that a source could count in the next window.
type claimant struct {
	rank rank
	// since is the window from which on it waits to be counted.
	since uint64
	// served is in how many windows up to now it was counted in a row, since
	// its last turn began; 0 while it waits.
	served int
}

// shares is how many of the seats each rank has whatever the others want: a
// quarter for each rank below urgent. Too few seats to share are nobody's in
// particular.
func shares(seats int) (g [numRanks]int, ok bool) {
	if seats < int(numRanks) {
		return g, false
	}
	g[preferred], g[ordinary] = max(1, seats/4), max(1, seats/4)
	g[urgent] = seats - g[preferred] - g[ordinary]
	return g, true
}

// takeTurns chooses who is counted in the next window where there are seats for
// some only, and returns their indices.
//
// A turn is turn windows long: an anomaly is several outliers in a row, which
// nobody would see of a task that is counted now and then. Of a rank, those
// whose turn is not over go on, then those who wait enter, longest first, then
// those whose turn is over. Each rank has its share; what it leaves goes to the
// other ranks, urgent first.
//
// So nobody starves. While a task waits, the g seats that its rank has at least
// are held by tasks that are before it, each of the n−1 others of the rank for
// one turn at most: it is counted after at most ⌈(n−1)·turn/g⌉ windows. (With
// fewer than three seats, of all ranks together.) Newcomers enter behind it.
func takeTurns(all []claimant, seats, turn int) []int {
	if seats >= len(all) {
		seated := make([]int, len(all))
		for i := range seated {
			seated[i] = i
		}
		return seated
	}
	share, shared := shares(seats)
	var queues [numRanks][]int
	for i, c := range all {
		r := c.rank
		if !shared {
			r = urgent
		}
		queues[r] = append(queues[r], i)
	}
	left := max(0, seats)
	var take [numRanks]int
	for r := range queues {
		take[r] = min(len(queues[r]), share[r])
		left -= take[r]
	}
	var seated []int
	for r, q := range queues {
		more := min(left, len(q)-take[r])
		left -= more
		slices.SortStableFunc(q, func(i, j int) int { return before(all[i], all[j], turn) })
		seated = append(seated, q[:take[r]+more]...)
	}
	return seated
}

// before orders the claimants of a rank.
func before(a, b claimant, turn int) int {
	stage := func(c claimant) int {
		switch {
		case c.served == 0:
			return 1
		case c.served < turn:
			return 0
		}
		return 2
	}
	return cmp.Or(cmp.Compare(stage(a), stage(b)), cmp.Compare(a.since, b.since), cmp.Compare(a.served, b.served))
}

// next is the claimant after a window: counted or not.
func (c claimant) next(counted bool, window uint64, turn int) claimant {
	switch {
	case !counted && c.served > 0: // it waits from now on
		c.served, c.since = 0, window
	case counted && c.served >= turn: // another turn
		c.served = 1
	case counted:
		c.served++
	}
	return c
}

// longestWait is in how many windows, at most, a task of a rank with n tasks is
// counted at least once, by takeTurns; 0 if never.
func longestWait(n [numRanks]int, r rank, seats, turn int) int {
	all := 0
	for _, m := range n {
		all += m
	}
	share, shared := shares(seats)
	mine := n[r]
	g := max(share[r], seats-(all-mine)) // the others cannot take more than one each
	switch {
	case seats >= all:
		return 1
	case seats <= 0:
		return 0
	case !shared:
		mine, g = all, seats
	}
	return ((mine-1)*turn+g-1)/g + 1
}
