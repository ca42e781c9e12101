package agent

import (
	"cmp"
	"slices"
)

// priority is how urgently a task's cost is needed.
type priority uint8

const (
	// urgent: the victim of an open incident, which cannot be followed without its cost.
	urgent priority = iota
	// preferred: other tasks may be capped for it, or it is an antagonist.
	preferred
	ordinary
	numRanks
)

// slotRequest is a task that a source could count in the next window.
type slotRequest struct {
	rank priority
	// waitingSince is the window from which on it waits to be counted.
	waitingSince uint64
	// turnWindows is the number of consecutive windows in which it was counted since its
	// last turn began; 0 while it waits.
	turnWindows int
}

// guaranteedSlots is how many seats each rank has regardless of demand: a quarter for each rank
// below urgent. If there are fewer seats than ranks, none is assigned to a rank.
func guaranteedSlots(seats int) (g [numRanks]int, ok bool) {
	if seats < int(numRanks) {
		return g, false
	}
	g[preferred], g[ordinary] = max(1, seats/4), max(1, seats/4)
	g[urgent] = seats - g[preferred] - g[ordinary]
	return g, true
}

// rotate chooses the tasks that are counted in the next window if there are too few
// seats, and returns their indices.
//
// A turn lasts turn windows: an anomaly is several outliers in a row, which cannot be
// seen in a task that is counted only now and then. Within a rank, tasks whose turn is
// not over continue; then waiting tasks enter, longest wait first; then tasks whose turn
// is over. Each rank has its share; unused seats go to the other ranks, urgent first.
//
// So no task starves. While a task waits, the at least g seats of its rank are held by
// tasks that are ahead of it, each of the n−1 others of the rank for one turn at most:
// it is counted after at most ⌈(n−1)·turn/g⌉ windows. (With fewer than three seats, n
// and g are those of all ranks together.) New tasks enter behind it.
func rotate(all []slotRequest, seats, turn int) []int {
	share, shared := guaranteedSlots(seats)
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
func before(a, b slotRequest, turn int) int {
	stage := func(c slotRequest) int {
		switch {
		case c.turnWindows == 0:
			return 1
		case c.turnWindows < turn:
			return 0
		}
		return 2
	}
	return cmp.Or(cmp.Compare(stage(a), stage(b)), cmp.Compare(a.waitingSince, b.waitingSince), cmp.Compare(a.turnWindows, b.turnWindows))
}

// next is the claimant after a window in which it was counted or not.
func (c slotRequest) next(counted bool, window uint64, turn int) slotRequest {
	switch {
	case !counted && c.turnWindows > 0: // it waits from now on
		c.turnWindows, c.waitingSince = 0, window
	case counted && c.turnWindows >= turn: // another turn
		c.turnWindows = 1
	case counted:
		c.turnWindows++
	}
	return c
}

// longestWait is the number of windows in which rotate counts a task of a rank at
// least once; n is the number of tasks of each rank, more than there are seats. 0 means
// never.
func longestWait(n [numRanks]int, r priority, seats, turn int) int {
	all := n[urgent] + n[preferred] + n[ordinary]
	share, shared := guaranteedSlots(seats)
	mine := n[r]
	g := max(share[r], seats-(all-mine)) // the others take at most one seat each
	switch {
	case seats <= 0:
		return 0
	case !shared:
		mine, g = all, seats
	}
	return ((mine-1)*turn+g-1)/g + 1
}
