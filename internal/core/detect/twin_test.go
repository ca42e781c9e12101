package detect

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// twin is the naive detector: it keeps every reading and computes each finding from
// scratch, as the paper and the contract specify it. It identifies tasks by their inodes,
// which must be small.
type twin struct {
	p    Params
	sig  sample.Signal
	rows []twinRow
	// looked counts windows that were moved back to good intervals.
	looked int
}

type twinRow struct {
	at       sample.Millis
	readings []*Reading // by inode; nil if there was none
}

// of returns the task's reading, or an empty one if there was none.
func (r twinRow) of(n uint64) *Reading {
	if n >= uint64(len(r.readings)) || r.readings[n] == nil {
		return &Reading{Cost: math.NaN()}
	}
	return r.readings[n]
}

func (w *twin) observe(at sample.Millis, readings []Reading) {
	row := twinRow{at, nil}
	for i := range readings {
		n := int(readings[i].Task.Key.Inode)
		for len(row.readings) <= n {
			row.readings = append(row.readings, nil)
		}
		row.readings[n] = &readings[i]
	}
	w.rows = append(w.rows, row)
}

func (w *twin) newest() twinRow { return w.rows[len(w.rows)-1] }

// judged returns the task's reading of row i if it was compared with a spec and the task
// has not restarted since.
func (w *twin) judged(i int, n uint64) (*Reading, bool) {
	r := w.rows[i].of(n)
	if r.Flags&(sample.Split|sample.Capped) != 0 || math.IsNaN(r.Cost) ||
		w.p.Switches.Bounds && !w.sig.Sane(r.Cost) || r.Cost < 0 || math.IsInf(r.Cost, 1) || !w.sig.Active(r.CPU, r.Rate, r.Cost) || r.Spec == nil || r.Spec.State != spec.Ready {
		return r, false
	}
	for _, row := range w.rows[i+1:] {
		if row.of(n).Flags&sample.Restarted != 0 {
			return r, false
		}
	}
	return r, true
}

func (w *twin) threshold(r *Reading) float64 { return w.p.Threshold(w.sig, *r.Spec) }

func (w *twin) outlier(i int, n uint64) bool {
	r, ok := w.judged(i, n)
	return ok && r.Cost > w.threshold(r)
}

// within returns the rows of the last d milliseconds.
func (w *twin) within(d sample.Millis) (rows []int) {
	for i, row := range w.rows {
		if row.at > w.newest().at-d {
			rows = append(rows, i)
		}
	}
	return rows
}

// anomalies returns the tasks that have one with the newest interval.
func (w *twin) anomalies() (victims []uint64) {
	for n := range uint64(len(w.newest().readings)) {
		if w.outlier(len(w.rows)-1, n) && len(w.bad(n)) >= w.p.Outliers {
			victims = append(victims, n)
		}
	}
	return victims
}

func (w *twin) bad(n uint64) (rows []int) {
	for _, i := range w.within(sample.Millis(w.p.OutlierWindow.Milliseconds())) {
		if w.outlier(i, n) {
			rows = append(rows, i)
		}
	}
	return rows
}

// correlation is section 4.2 literally: align, normalise, add up.
func (w *twin) correlation(pairs []int, victim, suspect uint64, t float64) float64 {
	var c, u []float64
	total := 0.0
	for _, i := range pairs {
		r, _ := w.judged(i, victim)
		c = append(c, r.Cost)
		u = append(u, w.rows[i].of(suspect).Pressure)
		total += u[len(u)-1]
	}
	if total == 0 {
		return 0
	}
	sum := 0.0
	for i := range c {
		if c[i] > t {
			sum += u[i] / total * (1 - t/c[i])
		} else if c[i] < t {
			sum += u[i] / total * (c[i]/t - 1)
		}
	}
	return sum
}

// analyse returns the finding on a victim, with every suspect in order.
// known holds the newest reading of every task.
func (w *twin) analyse(victim uint64, known []*Reading) Finding {
	v := known[victim]
	f := Finding{At: w.newest().at, Victim: *v.Task, Result: Result{Threshold: w.threshold(v)}}
	bad := w.bad(victim)
	f.First, f.Bad = w.rows[bad[0]].at, len(bad)
	var since, free, under []float64 // all; bad and no task limited; a task limited
	n := 0
	for i := range w.rows {
		r, ok := w.judged(i, victim)
		if !ok || w.rows[i].at < f.First {
			continue
		}
		since = append(since, r.Cost)
		switch capped := func(r *Reading) bool { return r != nil && r.Flags&sample.Capped != 0 }; {
		case slices.ContainsFunc(w.rows[i].readings, capped):
			under = append(under, r.Cost)
		case slices.Contains(bad, i):
			free = append(free, r.Cost)
		}
	}
	switch {
	case len(free) == 0:
		since = under
	case len(under) > 0:
		since = free
	}
	pairs, good := w.split(victim, w.within(sample.Millis(w.p.Window.Milliseconds())))
	if good == 0 && w.p.Switches.LookBack {
		if moved := w.lookBack(victim); moved != nil {
			pairs, good = w.split(victim, moved)
			w.looked++
		}
	}
	f.Pairs = len(pairs)
	for _, c := range since {
		f.Cost += c / float64(len(since))
	}
	class := make([]int, len(known))
	for i, r := range known {
		k := uint64(i)
		if k == victim || r == nil {
			continue
		}
		s := Suspect{Task: *r.Task, Correlation: w.correlation(pairs, victim, k, f.Threshold)}
		both, pressed := 0, 0.0
		for _, i := range pairs {
			if w.outlier(i, victim) {
				pressed += w.rows[i].of(k).Pressure / float64(len(pairs)-good)
			}
			s.Usage += w.rows[i].of(k).Pressure / float64(len(pairs))
			if w.p.Switches.CoVictim && w.outlier(i, victim) && w.outlier(i, k) {
				both++
			}
		}
		inside := func(a, b sample.Task) bool { return strings.HasPrefix(string(a.Name), string(b.Name)+"/") }
		switch {
		case w.p.Switches.CappedApart && r.Flags&sample.Capped != 0:
			s.Excluded = "capped already"
		case inside(*v.Task, *r.Task):
			s.Excluded = "contains the victim"
		case inside(*r.Task, *v.Task):
			s.Excluded = "is part of the victim"
		case w.p.Switches.Reach && r.Reach != nil && v.Reach != nil && !r.Reach.Intersects(v.Reach):
			s.Excluded = fmt.Sprintf("shares no %s with the victim", w.sig.Domain)
		case w.p.Switches.LeastPressure && s.Correlation >= w.p.Correlation && pressed < w.p.LeastPressure:
			s.Excluded = "used almost nothing in the victim's bad intervals"
		case w.p.Switches.PhaseChange && good > 0 && s.Correlation >= w.p.Correlation && !w.moved(pairs, victim, k, 3):
			s.Excluded = "used no more in the victim's bad intervals than in its good ones"
		}
		class[k] = 2
		switch {
		case s.Excluded != "":
			class[k] = 3
		case s.Correlation >= w.p.Correlation:
			class[k], n = 0, n+1
			if w.p.Switches.CoVictim && both > 0 && 2*both >= len(pairs)-good {
				class[k], s.CoVictim = 1, true
			}
		}
		f.Suspects = append(f.Suspects, s)
	}
	slices.SortFunc(f.Suspects, func(a, b Suspect) int {
		return cmp.Or(cmp.Compare(class[a.Key.Inode], class[b.Key.Inode]), cmp.Compare(b.Correlation, a.Correlation))
	})
	f.Kind, f.Antagonists = Neighbour, n
	if f.Change = w.change(pairs, victim, known, n); f.Change != "" && good > 0 {
		f.Kind, f.Antagonists = PhaseChange, 0
	} else if f.Change = ""; n == 0 {
		f.Kind = Nobody
	} else if w.p.Switches.Indeterminate && good == 0 {
		f.Kind, f.Antagonists = Indeterminate, 0
	}
	return f
}

// split returns those of the rows in which the victim was judged, and the number of good
// ones.
func (w *twin) split(victim uint64, rows []int) (pairs []int, good int) {
	for _, i := range rows {
		if _, ok := w.judged(i, victim); ok {
			pairs = append(pairs, i)
			if !w.outlier(i, victim) {
				good++
			}
		}
	}
	return pairs, good
}

// lookBack returns the window around the end of the victim's last good period.
func (w *twin) lookBack(victim uint64) (rows []int) {
	var goods, bads []int
	for _, i := range w.within(sample.Millis(max(w.p.Window, w.p.LookBack).Milliseconds())) {
		if _, ok := w.judged(i, victim); !ok {
			continue
		} else if w.outlier(i, victim) {
			bads = append(bads, i)
		} else {
			goods, bads = append(goods, i), nil
		}
	}
	if len(goods) == 0 {
		return nil
	}
	first := goods[max(0, len(goods)-5)]
	for i := first; i < len(w.rows) && w.rows[i].at < w.rows[bads[0]].at.Add(w.p.Window); i++ {
		rows = append(rows, i)
	}
	return rows
}

// compare is the textbooks' two-sample comparison: the means in good and bad pairs and the
// standard error of their difference.
func (w *twin) compare(pairs []int, victim uint64, of func(i int) float64) (good, bad, err float64) {
	var x [2][]float64
	for _, i := range pairs {
		if w.outlier(i, victim) {
			x[1] = append(x[1], of(i))
		} else {
			x[0] = append(x[0], of(i))
		}
	}
	var mean, squares, n [2]float64
	for side := range x {
		n[side] = float64(len(x[side]))
		for _, v := range x[side] {
			mean[side] += v / n[side]
		}
		for _, v := range x[side] {
			squares[side] += (v - mean[side]) * (v - mean[side])
		}
	}
	if n[0] == 0 || n[1] == 0 || n[0]+n[1] < 3 {
		return mean[0], mean[1], math.Inf(1)
	}
	return mean[0], mean[1], math.Sqrt((squares[0] + squares[1]) / (n[0] + n[1] - 2) * (1/n[0] + 1/n[1]))
}

func (w *twin) pressure(n uint64) func(int) float64 {
	return func(i int) float64 { return w.rows[i].of(n).Pressure }
}

func (w *twin) moved(pairs []int, victim, k uint64, errors float64) bool {
	good, bad, err := w.compare(pairs, victim, w.pressure(k))
	return bad-good > errors*err && bad-good >= w.p.LeastPressure
}

// change implements the rule of docs/design/0004-phase-change.md.
func (w *twin) change(pairs []int, victim uint64, known []*Reading, accused int) Change {
	if !w.p.Switches.PhaseChange {
		return ""
	}
	good, bad, err := w.compare(pairs, victim, func(i int) float64 { return w.pressure(victim)(i) / w.rows[i].of(victim).Cost })
	if bad-good > 2*err && bad >= 1.25*good {
		return MoreWork
	}
	if accused > 0 {
		return ""
	}
	for k, r := range known {
		if r == nil || uint64(k) == victim || r.Task.Name == OutsideName && !w.p.Switches.Outside || r.Reach != nil && known[victim].Reach != nil && w.p.Switches.Reach && !r.Reach.Intersects(known[victim].Reach) {
			continue
		}
		a, b := string(r.Task.Name)+"/", string(known[victim].Task.Name)+"/"
		capped := func(i int) bool { return w.rows[i].of(uint64(k)).Flags&sample.Capped != 0 }
		held := slices.ContainsFunc(pairs, capped) && slices.ContainsFunc(pairs, func(i int) bool { return !capped(i) })
		if !strings.HasPrefix(a, b) && !strings.HasPrefix(b, a) && (held || w.moved(pairs, victim, uint64(k), 2)) {
			return ""
		}
	}
	if good, bad, err = w.compare(pairs, victim, w.pressure(victim)); good-bad > 2*err && bad <= 0.8*good {
		return LessCPU
	}
	for _, i := range pairs[max(0, len(pairs)-5):] {
		if !w.outlier(i, victim) {
			return ""
		}
	}
	if len(pairs) < 5 {
		return ""
	}
	return NewLevel
}

// history is a random machine: a few tasks of every kind over some intervals.
type history struct {
	params Params
	at     []sample.Millis
	rows   [][]Reading
}

func randomHistory(t testing.TB, rng *rand.Rand) history {
	h := history{params: only(t, Switches{Bounds: rng.IntN(4) > 0, CappedApart: rng.IntN(4) > 0, Reach: rng.IntN(2) == 0, CoVictim: rng.IntN(2) == 0, LeastEffect: rng.IntN(2) == 0, Indeterminate: rng.IntN(2) == 0,
		LeastPressure: rng.IntN(2) == 0, LookBack: rng.IntN(2) == 0, PhaseChange: rng.IntN(2) == 0})}
	h.params.LookBack = time.Duration(5+rng.IntN(20)) * time.Minute
	if rng.IntN(2) == 0 {
		h.params.Window = h.params.OutlierWindow // so that some windows are all bad
	}
	h.params.LeastPressure = 0.5 + rng.Float64()/8 // within the range of the tasks' usage
	h.params.Top, h.params.Pace = 1+rng.IntN(8), 0
	names := []sample.TaskName{"/a", "/a/b", "/a/b/c", "/ab", "/d", "/e", "/f", "/g"}
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	tasks := make([]Reading, 2+rng.IntN(len(names)-1))
	for i := range tasks {
		r := &tasks[i]
		r.Task = task(uint64(1+i), sample.Class(rng.IntN(3)))
		r.Task.Name = names[i]
		if rng.IntN(3) == 0 {
			r.Reach = sample.SetOf(rng.IntN(3), rng.IntN(3))
		}
		if i == 0 || rng.IntN(3) == 0 {
			r.Spec = ready(1, rng.Float64())
		}
	}
	at := sample.Millis(1_000_000)
	for range 3 + rng.IntN(12) {
		at += sample.Millis(1 + rng.IntN(90_000))
		var row []Reading
		for i, r := range tasks {
			if rng.IntN(12) == 0 {
				continue // no reading
			}
			r.CPU, r.Cost = 1, math.NaN()
			if rng.IntN(10) > 0 {
				r.Pressure = rng.ExpFloat64()
			}
			if i == 0 || rng.IntN(4) > 0 {
				r.Cost = 0.3 + 6*rng.Float64()*rng.Float64()
			}
			switch rng.IntN(60) {
			case 0:
				r.Flags = sample.Capped
			case 1:
				r.Flags = sample.Restarted
			case 2:
				r.Flags = sample.Split
			case 3:
				r.CPU = 0.2
			case 4:
				r.Cost = 50
			}
			row = append(row, r)
		}
		h.at, h.rows = append(h.at, at), append(h.rows, row)
	}
	return h
}

// play runs the history through a detector, in the given order of readings.
func (h *history) play(t testing.TB, order func([]Reading), each func(at sample.Millis, row []Reading, found []Finding)) {
	d, sig := New(h.params), signal(t, sample.CPI)
	for i, at := range h.at {
		row := slices.Clone(h.rows[i])
		order(row)
		d.Observe(sig, at, row)
		each(at, h.rows[i], drain(d, at))
	}
}

func asIs([]Reading) {}

func TestDetectorAgreesWithItsNaiveTwin(t *testing.T) {
	const inputs, eps = 5_000, 1e-5 // float32 keeps seven digits
	found, accused, kinds := 0, 0, map[Kind]int{}
	changes, looked := map[Change]int{}, 0
	for seed := uint64(0); found < inputs; seed++ {
		if seed > 2*inputs {
			t.Fatalf("only %d findings", found)
		}
		h := randomHistory(t, rand.New(rand.NewPCG(seed, 7)))
		w := &twin{p: h.params, sig: signal(t, sample.CPI)}
		known := make([]*Reading, 10)
		h.play(t, asIs, func(at sample.Millis, row []Reading, got []Finding) {
			w.observe(at, row)
			for i := range row {
				known[row[i].Task.Key.Inode] = &row[i]
			}
			victims := w.anomalies()
			if len(victims) != len(got) {
				t.Fatalf("seed %d at %d: %d findings, twin %d", seed, at, len(got), len(victims))
			}
			for i, n := range victims {
				want := w.analyse(n, known)
				if why := differ(got[i], want, h.params, eps); why != "" {
					t.Fatalf("seed %d at %d: %s\ngot  %+v\ntwin %+v", seed, at, why, got[i], want)
				}
				found++
				kinds[got[i].Kind]++
				changes[got[i].Change]++
				looked += w.looked
				w.looked = 0
				accused += got[i].Antagonists
			}
		})
	}
	for _, c := range []Change{MoreWork, LessCPU, NewLevel} {
		if changes[c] < inputs/1000 {
			t.Errorf("the inputs hold %d findings of %s", changes[c], c)
		}
	}
	if looked < inputs/1000 {
		t.Errorf("a window was moved back %d times", looked)
	}
	t.Logf("%d findings %v, %d antagonists", found, kinds, accused)
	if kinds[Neighbour] < inputs/10 || kinds[Nobody] < inputs/10 || kinds[Indeterminate] < inputs/100 {
		t.Errorf("the inputs say too little: %v", kinds)
	}
}

// differ returns how a finding differs from the twin's, which lists every suspect; "" if it
// does not. Suspects nearer to each other, or to the bar, than eps may be in either order.
func differ(got, want Finding, p Params, eps float64) string {
	if got.At != want.At || got.Victim != want.Victim || got.First != want.First || got.Bad != want.Bad || got.Pairs != want.Pairs ||
		got.Threshold != want.Threshold || !near(got.Cost, want.Cost, eps*want.Cost) {
		return "the facts"
	}
	close := 0 // suspects that could be on either side of the bar
	for _, s := range want.Suspects {
		if s.Excluded == "" && near(s.Correlation, p.Correlation, eps) {
			close++
		}
	}
	if close == 0 && (got.Change != want.Change || got.Kind != want.Kind || got.Antagonists != want.Antagonists && got.Antagonists != p.Top) {
		return "the accused suspects"
	}
	all := map[sample.TaskKey]Suspect{}
	sizes := map[bool]int{}
	for _, s := range want.Suspects {
		all[s.Key] = s
		sizes[s.Excluded == ""]++
	}
	if len(got.Suspects) != min(sizes[true], p.Top)+min(sizes[false], p.Top) {
		return "how many suspects"
	}
	seen := map[bool]int{}
	for _, s := range got.Suspects {
		x := all[s.Key]
		if !near(s.Correlation, x.Correlation, eps) || !near(s.Usage, x.Usage, eps*(1+x.Usage)) || s.Excluded != x.Excluded ||
			close == 0 && s.CoVictim != x.CoVictim || math.Abs(s.Correlation) > 1 {
			return fmt.Sprintf("suspect %v, twin %v", s, x)
		}
		// The twin's suspect at this place must be equivalent.
		place := seen[s.Excluded == ""]
		if s.Excluded != "" {
			place += sizes[true]
		}
		if x := want.Suspects[place]; close == 0 && !near(s.Correlation, x.Correlation, eps) {
			return fmt.Sprintf("place %d has %v, twin %v", place, s, x)
		}
		seen[s.Excluded == ""]++
	}
	return ""
}

func TestTheOrderOfReadingsChangesNothing(t *testing.T) {
	several := 0
	for seed := range uint64(600) {
		h := randomHistory(t, rand.New(rand.NewPCG(seed, 8)))
		var want, got []string
		note := func(to *[]string) func(sample.Millis, []Reading, []Finding) {
			return func(at sample.Millis, _ []Reading, found []Finding) {
				*to = append(*to, fmt.Sprintf("%d %+v", at, found))
				if len(found) > 1 {
					several++
				}
			}
		}
		h.play(t, asIs, note(&want))
		rng := rand.New(rand.NewPCG(seed, 9))
		h.play(t, func(row []Reading) {
			rng.Shuffle(len(row), func(i, j int) { row[i], row[j] = row[j], row[i] })
		}, note(&got))
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: shuffled\n%v\nas it was\n%v", seed, got, want)
		}
	}
	if several < 60 {
		t.Errorf("only %d instants had more than one victim", several)
	}
}

func TestScalingTheUsageChangesNothing(t *testing.T) {
	found := 0
	for seed := range uint64(1_000) {
		h := randomHistory(t, rand.New(rand.NewPCG(seed, 10)))
		h.params.Top = 100
		h.params.Switches.LeastPressure, h.params.Switches.PhaseChange = false, false // these depend on the scale
		var want []Finding
		h.play(t, asIs, func(_ sample.Millis, _ []Reading, f []Finding) { want = append(want, f...) })
		// Each task by its own power of two, which is exact in float32.
		i := 0
		h.play(t, func(row []Reading) {
			for i := range row {
				row[i].Pressure *= math.Ldexp(1, int(row[i].Task.Key.Inode)*3-12)
			}
		}, func(_ sample.Millis, _ []Reading, f []Finding) {
			for _, got := range f {
				for _, s := range got.Suspects {
					if x := want[i].of(t, s.Key.Inode); x.Correlation != s.Correlation || x.CoVictim != s.CoVictim || x.Excluded != s.Excluded {
						t.Fatalf("seed %d: scaled %+v, was %+v", seed, s, x)
					}
				}
				if got.Kind != want[i].Kind || got.Antagonists != want[i].Antagonists {
					t.Fatalf("seed %d: scaled %+v, was %+v", seed, got, want[i])
				}
				found++
				i++
			}
		})
	}
	if found < 500 {
		t.Errorf("only %d findings", found)
	}
}
