package agent

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestTakeTurns(t *testing.T) {
	const turn = 3
	wait := func(r priority, since uint64) slotRequest { return slotRequest{rank: r, waitingSince: since} }
	serving := func(r priority, served int) slotRequest { return slotRequest{rank: r, turnWindows: served} }
	for _, c := range []struct {
		name  string
		all   []slotRequest
		seats int
		want  []int
	}{
		{"no claimant", nil, 3, nil},
		{"enough for all", []slotRequest{wait(ordinary, 5), serving(urgent, 9)}, 2, []int{0, 1}},
		{"no seats", []slotRequest{wait(urgent, 1)}, 0, nil},
		{"fewer than none", []slotRequest{wait(urgent, 1)}, -4, nil},
		{"longest wait first", []slotRequest{wait(ordinary, 7), wait(ordinary, 3), wait(ordinary, 5), wait(ordinary, 4), wait(ordinary, 6)}, 4, []int{1, 2, 3, 4}},
		{"a turn is not broken off", []slotRequest{wait(ordinary, 0), serving(ordinary, 1), serving(ordinary, 2), serving(ordinary, 1), wait(ordinary, 1)}, 3, []int{1, 2, 3}},
		{"a turn that is over is", []slotRequest{serving(ordinary, 3), wait(ordinary, 9), wait(ordinary, 9), wait(ordinary, 9)}, 3, []int{1, 2, 3}},
		{"unless none waits", []slotRequest{serving(ordinary, 3), serving(ordinary, 3), wait(ordinary, 9), serving(ordinary, 4)}, 3, []int{0, 1, 2}},
		{"urgent ones first, a quarter for each other rank",
			[]slotRequest{wait(ordinary, 0), wait(ordinary, 0), wait(preferred, 0), wait(preferred, 0), wait(urgent, 8), wait(urgent, 8), wait(urgent, 8)}, 4, []int{0, 2, 4, 5}},
		{"what a rank leaves goes down",
			[]slotRequest{wait(ordinary, 0), wait(ordinary, 0), wait(ordinary, 0), wait(preferred, 0), wait(urgent, 8), wait(ordinary, 1)}, 4, []int{0, 1, 3, 4}},
		{"what a rank leaves goes up",
			[]slotRequest{wait(ordinary, 0), wait(urgent, 0), wait(urgent, 0), wait(urgent, 0), wait(urgent, 0), wait(urgent, 1)}, 4, []int{0, 1, 2, 3}},
		{"two seats are not shared between ranks", []slotRequest{wait(urgent, 5), wait(ordinary, 3), wait(preferred, 4)}, 2, []int{1, 2}},
	} {
		got := rotate(c.all, c.seats, turn)
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// queue plays windows over tasks that come, go and change their rank, and checks the
// seating of each.
type queue struct {
	t     *testing.T
	turn  int
	all   []slotRequest
	began []uint64 // the window since which it has not been counted
}

func (c *queue) add(r priority, window uint64) {
	c.all, c.began = append(c.all, slotRequest{rank: r, waitingSince: window}), append(c.began, max(window, 1)-1)
}

func (c *queue) remove(i int) {
	c.all, c.began = slices.Delete(c.all, i, i+1), slices.Delete(c.began, i, i+1)
}

// play chooses for one window and checks that as many are counted as possible, and each
// rank's share.
func (c *queue) play(window uint64, seats int) {
	c.t.Helper()
	chosen := rotate(c.all, seats, c.turn)
	counted := make([]bool, len(c.all))
	var n, have [numRanks]int
	for _, i := range chosen {
		if counted[i] {
			c.t.Fatalf("window %d: %d is chosen twice", window, i)
		}
		counted[i] = true
		have[c.all[i].rank]++
	}
	for _, m := range c.all {
		n[m.rank]++
	}
	if want := max(0, min(seats, len(c.all))); len(chosen) != want {
		c.t.Fatalf("window %d: %d of %d counted on %d seats", window, len(chosen), len(c.all), seats)
	}
	if share, ok := guaranteedSlots(seats); ok {
		for r := range n {
			if have[r] < min(n[r], share[r]) {
				c.t.Fatalf("window %d: %d of %d of rank %d on %d seats, its share is %d", window, have[r], n[r], r, seats, share[r])
			}
		}
	}
	for i := range c.all {
		c.all[i] = c.all[i].next(counted[i], window, c.turn)
		if counted[i] {
			c.began[i] = window
		}
	}
}

// FuzzTakeTurns: a task that stays is counted again within the stated bound for the
// largest sizes its rank and the others ever had, whatever tasks come and go.
func FuzzTakeTurns(f *testing.F) {
	f.Add(uint64(1), uint8(10), uint8(4), uint8(3))
	f.Add(uint64(2), uint8(200), uint8(1), uint8(5))
	f.Add(uint64(3), uint8(40), uint8(2), uint8(1))
	f.Add(uint64(4), uint8(255), uint8(64), uint8(3))
	f.Fuzz(func(t *testing.T, seed uint64, tasks, seats, turn uint8) {
		if seats == 0 || turn == 0 || turn > 20 {
			return
		}
		rnd := rand.New(rand.NewPCG(seed, 1))
		c := &queue{t: t, turn: int(turn)}
		for range tasks {
			c.add(priority(rnd.IntN(int(numRanks))), 0)
		}
		var most [numRanks]int // largest size of each rank so far
		for window := uint64(1); window < 300; window++ {
			// Some leave and as many new ones of the same rank enter.
			for range rnd.IntN(4) {
				if len(c.all) > 1 {
					i := 1 + rnd.IntN(len(c.all)-1) // the first one stays
					r := c.all[i].rank
					c.remove(i)
					c.add(r, window)
				}
			}
			var n [numRanks]int
			for _, m := range c.all {
				n[m.rank]++
			}
			for r := range n {
				most[r] = max(most[r], n[r])
			}
			c.play(window, int(seats))
			for i, m := range c.all {
				if waited, bound := int(window-c.began[i]), longestWait(most, m.rank, int(seats), int(turn)); waited >= bound {
					t.Fatalf("window %d: a task of rank %d was not counted for %d windows; bound %d, ranks %v, %d seats, turns of %d", window, m.rank, waited, bound, most, seats, turn)
				}
			}
		}
	})
}

// A task keeps its turn for as long as an anomaly takes, and has the next one within
// the stated time.
func TestTurnsAreWholeAndComeBack(t *testing.T) {
	const turn, seats, tasks = 3, 4, 20
	c := &queue{t: t, turn: turn}
	for range tasks {
		c.add(ordinary, 0)
	}
	run, runs := make([]int, tasks), map[int]int{}
	for window := uint64(1); window <= 150; window++ {
		c.play(window, seats)
		for i := range c.all {
			switch {
			case c.began[i] == window:
				run[i]++
			case run[i] > 0:
				runs[run[i]]++
				run[i] = 0
			}
		}
	}
	if len(runs) != 1 || runs[turn] < 150*seats/turn-seats-tasks {
		t.Errorf("turns by length: %v, want all of %d", runs, turn)
	}
	if got := longestWait([numRanks]int{ordinary: tasks}, ordinary, seats, turn); got != 16 {
		t.Errorf("bound %d, want 19 turns of 3 on four seats, and one", got)
	}
}
