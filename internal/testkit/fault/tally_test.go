package fault

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// row sums up the points of one scenario.
type row struct {
	points, kills, agents, capped, wrong, left int
	late                                       float64 // the latest, s
}

// tally adds up results.
type tally struct {
	want, points, faults int
	started, said        time.Time
	rows                 [scenarios]row
	hits                 [phases][3]int // lives of enforce, of the agent, restores
}

func newTally(want int) *tally { return &tally{want: want, started: time.Now()} }

func (t *tally) add(w io.Writer, r result) {
	t.points++
	row := &t.rows[r.Scenario]
	row.points++
	row.kills += len(r.Kills) + len(r.Restores)
	row.wrong += len(r.Wrong)
	row.left += len(r.Left)
	row.late = max(row.late, r.Late)
	if r.Capped {
		row.capped++
	}
	if r.Life == lifeAgent {
		row.agents += len(r.Kills)
	}
	for _, p := range r.Kills {
		t.hits[p][map[string]int{lifeEnforce: 0, lifeAgent: 1}[r.Life]]++
	}
	for _, p := range r.Restores {
		t.hits[p][2]++
	}
	if r.Err != "" {
		t.faults++
	}
	if r.bad() {
		fmt.Fprintf(w, "point %d (%s, %s, %s; again with -only %d), killed at %v %v: wrong %q, left over %q, error %q\n%s\n",
			r.N, r.Scenario, r.Life, r.Back, r.N, r.Kills, r.Restores, r.Wrong, r.Left, r.Err, r.Log)
	}
	if time.Since(t.said) > 10*time.Second {
		t.said = time.Now()
		sum := t.sum()
		fmt.Fprintf(w, "%d of %d points, %d kills, %d wrong, %d left over, %s\n", t.points, t.want, sum.kills, sum.wrong, sum.left, time.Since(t.started).Round(time.Second))
	}
}

func (t *tally) played() int { return t.points }

func (t *tally) sum() (sum row) {
	for _, r := range t.rows {
		sum.points += r.points
		sum.kills += r.kills
		sum.agents += r.agents
		sum.capped += r.capped
		sum.wrong += r.wrong
		sum.left += r.left
		sum.late = max(sum.late, r.late)
	}
	return sum
}

func (t *tally) print(w io.Writer) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "\nscenario\tpoints\tkills\tof quell-agent\tlimits changed at the kill\twrong\tleft over\tback after, s at most\t")
	line := func(name string, r row) {
		fmt.Fprintf(tab, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.2f\t\n", name, r.points, r.kills, r.agents, r.capped, r.wrong, r.left, r.late)
	}
	for s, r := range t.rows {
		line(scenario(s).String(), r)
	}
	line("all", t.sum())
	fmt.Fprintln(tab, "\nkilled at\tlibrary\tquell-agent\tin a restore\t")
	for p, n := range t.hits {
		fmt.Fprintf(tab, "%s\t%d\t%d\t%d\t\n", phase(p), n[0], n[1], n[2])
	}
	_ = tab.Flush()
	sum := t.sum()
	fmt.Fprintf(w, "\n%d kills at %d points in %s: %d wrong restores, %d left-over caps, %d failures of programs; all back at most %.2f s after the later of deadline and next start\n",
		sum.kills, t.points, time.Since(t.started).Round(time.Second), sum.wrong, sum.left, t.faults, sum.late)
}

// enough is the number of points from which every phase must have been hit.
const enough = 200

func (t *tally) verdict() error {
	if sum := t.sum(); sum.wrong+sum.left+t.faults > 0 {
		return fmt.Errorf("%d wrong, %d left over, %d failures", sum.wrong, sum.left, t.faults)
	}
	for p, n := range t.hits {
		if t.points >= enough && (n[0] == 0 || n[1] == 0) {
			return fmt.Errorf("no kill in phase: %s; the run does not cover all phases", phase(p))
		}
	}
	return nil
}
