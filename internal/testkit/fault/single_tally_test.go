package fault

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"
)

// faultRow sums up the faults at one site.
type faultRow struct {
	faults, died, left, wrong, errs int
	late                            float64 // s, of living agents and of the timer's run
}

// faultTally adds up single faults.
type faultTally struct {
	want, points, missed int
	started              time.Time
	lateness             time.Duration
	sites                map[string]*faultRow
}

func newFaultTally(want int, lateness time.Duration) *faultTally {
	return &faultTally{want: want, started: time.Now(), lateness: lateness, sites: map[string]*faultRow{}}
}

func (t *faultTally) played() int { return t.points }

func (t *faultTally) add(w io.Writer, r result) {
	t.points++
	site := r.Site
	if site == "" {
		site = "(not reached)"
		t.missed++
	}
	row := t.sites[site]
	if row == nil {
		row = &faultRow{}
		t.sites[site] = row
	}
	row.faults++
	row.left += len(r.Left)
	row.wrong += len(r.Wrong)
	row.late = max(row.late, r.Late)
	if r.Died {
		row.died++
	}
	if r.Err != "" {
		row.errs++
	}
	if r.bad() {
		fmt.Fprintf(w, "point %d (again with -only %[1]d), %s, %s: wrong %q, left over %q, error %q\n%s\n", r.N, site, r.Fault, r.Wrong, r.Left, r.Err, r.Log)
	}
	if t.points%100 == 0 {
		fmt.Fprintf(w, "%d of %d faults, %s\n", t.points, t.want, time.Since(t.started).Round(time.Second))
	}
}

func (t *faultTally) sum() (sum faultRow) {
	for _, r := range t.sites {
		sum.faults += r.faults
		sum.died += r.died
		sum.left += r.left
		sum.wrong += r.wrong
		sum.errs += r.errs
		sum.late = max(sum.late, r.late)
	}
	return sum
}

func (t *faultTally) print(w io.Writer) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tab, "\ncall\tfaults\tagent died\twrong\tleft over\tback after, s at most\t")
	for _, site := range slices.Sorted(maps.Keys(t.sites)) {
		r := t.sites[site]
		fmt.Fprintf(tab, "%s\t%d\t%d\t%d\t%d\t%.2f\t\n", site, r.faults, r.died, r.wrong, r.left, r.late)
	}
	_ = tab.Flush()
	sum := t.sum()
	fmt.Fprintf(w, "\n%d single faults in %s, %d not reached: %d wrong, %d caps past lease + %s or past the timer's run, %d failures of programs\n",
		t.points, time.Since(t.started).Round(time.Second), t.missed, sum.wrong, sum.left, t.lateness, sum.errs)
}

func (t *faultTally) verdict() error {
	sum := t.sum()
	if sum.left+sum.wrong+sum.errs > 0 {
		return fmt.Errorf("%d wrong, %d left over, %d failures", sum.wrong, sum.left, sum.errs)
	}
	if t.points >= enough && t.missed > t.points/2 {
		return fmt.Errorf("%d of %d faults were not reached", t.missed, t.points)
	}
	return nil
}
