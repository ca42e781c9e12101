package detect

import (
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// rowsOf makes one row a minute of the victim's costs and the suspects' usages, suspects
// numbered from 2. A negative usage means no reading.
func rowsOf(costs []float64, usages ...[]float64) [][]Reading {
	rows := make([][]Reading, len(costs))
	for i, c := range costs {
		rows[i] = append(rows[i], victim(1, c))
		for n, u := range usages {
			if u[i] >= 0 {
				rows[i] = append(rows[i], suspect(uint64(n+2), u[i]))
			}
		}
	}
	return rows
}

// The numbers are calculated by hand from the formula of section 4.2, with threshold 2: a
// cost of 1 has weight 1/2 − 1 = −0.5, one of 4 has weight 1 − 2/4 = 0.5.
func TestCorrelationIsTheFormulaOfThePaper(t *testing.T) {
	costs := []float64{1, 4, 2, 4, 1, 4}
	for _, c := range []struct {
		name        string
		usage       []float64
		correlation float64
		mean        float64
	}{
		{"only while the victim suffers", []float64{0, 1, 0, 1, 0, 1}, 0.5, 0.5},
		{"only while it does not", []float64{1, 0, 0, 0, 1, 0}, -0.5, 1.0 / 3},
		{"steady: (3·0.5 − 2·0.5 + 0) ÷ 6", []float64{2, 2, 2, 2, 2, 2}, 0.5 / 6, 2},
		{"at the threshold nothing is said", []float64{0, 0, 3, 0, 0, 0}, 0, 0.5},
		{"weighted by usage: (1·−0.5 + 3·0.5) ÷ 4", []float64{1, 3, 0, 0, 0, 0}, 0.25, 4.0 / 6},
		{"no usage at all", []float64{0, 0, 0, 0, 0, 0}, 0, 0},
		{"usage that is no number", []float64{0, 1, 0, 1, 0, math.NaN()}, 0.5, 2.0 / 6},
		{"usage without end", []float64{0, 1, 0, 1, 0, math.Inf(1)}, 0.5, 2.0 / 6},
		{"readings missing", []float64{-1, 1, -1, -1, -1, 1}, 0.5, 2.0 / 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := last(t, findings(New(paper(t, CPI2)), signal(t, sample.CPI), rowsOf(costs, c.usage)...))
			got := f.of(t, 2)
			if !near(got.Correlation, c.correlation, 1e-6) || !near(got.Usage, c.mean, 1e-6) {
				t.Errorf("correlation %v of usage %v, want %v of %v", got.Correlation, got.Usage, c.correlation, c.mean)
			}
			if f.Pairs != 6 || f.Bad != 3 || (f.Antagonists == 1) != (c.correlation >= 0.35) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// Usage outside the pairs must not take part in the normalisation: the
// victim's two idle intervals, where the suspect is busiest, are no pairs.
func TestPairsAreAlignedBeforeNormalising(t *testing.T) {
	rows := rowsOf([]float64{1, 4, 4, 4, 4, 4}, []float64{1, 1, 100, 1, 100, 1})
	for _, i := range []int{2, 4} {
		rows[i][0].CPU = 0.1
	}
	f := last(t, findings(New(paper(t, CPI2)), signal(t, sample.CPI), rows...))
	if got := f.of(t, 2); f.Pairs != 4 || !near(got.Correlation, (3*0.5-0.5)/4, 1e-6) || got.Usage != 1 {
		t.Errorf("%d pairs, %+v", f.Pairs, got)
	}
}

func TestTheBarIsReachedAtThirtyFiveHundredths(t *testing.T) {
	p := paper(t, CPI2)
	if p.Correlation != 0.35 {
		t.Fatal(p.Correlation)
	}
	rows := rowsOf([]float64{1, 4, 4, 4}, []float64{0, 1, 1, 1}) // exactly 0.5
	for _, c := range []struct {
		bar  float64
		want Kind
	}{{0.5, Neighbour}, {math.Nextafter(0.5, 1), Nobody}} {
		p.Correlation = c.bar
		if f := last(t, findings(New(p), signal(t, sample.CPI), rows...)); f.Kind != c.want {
			t.Errorf("bar %v: %v, want %v", c.bar, f.Kind, c.want)
		}
	}
}

func TestEverySwitchAloneChangesAResult(t *testing.T) {
	cpi, runq := signal(t, sample.CPI), signal(t, sample.RunQ)
	reach := func(n uint64, cpus ...int) func(*Reading) {
		return func(r *Reading) {
			if r.Task.Key.Inode == n {
				r.Reach = sample.SetOf(cpus...)
			}
		}
	}
	change := func(rows [][]Reading, changes ...func(*Reading)) [][]Reading {
		for _, row := range rows {
			for i := range row {
				for _, c := range changes {
					c(&row[i])
				}
			}
		}
		return rows
	}
	costs, usage := []float64{1, 4, 4, 4}, []float64{0, 1, 1, 1}
	for _, c := range []struct {
		name    string
		sw      Switches
		signal  sample.Signal
		rows    [][]Reading
		say     func([]Finding) any
		off, on any
	}{
		{"reach excludes a task that shares nothing", Switches{Reach: true}, runq,
			change(rowsOf(costs, usage), reach(1, 0, 1), reach(2, 2, 3)),
			func(f []Finding) any { return f[0].Suspects[0].Excluded },
			"", "shares no cpu with the victim"},
		{"reach keeps a task that shares something", Switches{Reach: true}, runq,
			change(rowsOf(costs, usage, usage, usage), reach(1, 0, 1), reach(2, 1, 2), reach(3, 5)), // the reach of 4 is not known
			func(f []Finding) any { return f[0].order()[:2] },
			[]uint64{2, 3}, []uint64{2, 4}},
		{"a co-victim ranks behind", Switches{CoVictim: true}, cpi,
			change(rowsOf(costs, []float64{0, 2, 2, 2}, usage), func(r *Reading) {
				if r.Task.Key.Inode == 2 && r.Pressure > 0 {
					r.CPU, r.Cost, r.Spec = 1, 9, ready(1, 0.5)
				}
			}),
			func(f []Finding) any { return []any{f[0].order(), f[0].Suspects[1].CoVictim, f[0].Antagonists} },
			[]any{[]uint64{2, 3}, false, 2}, []any{[]uint64{3, 2}, true, 2}},
		{"an outlier must also matter", Switches{LeastEffect: true}, runq,
			change(rowsOf([]float64{0.01, 0.04, 0.04, 0.04}, usage), func(r *Reading) { r.Spec = ready(0.01, 0.001) }),
			func(f []Finding) any { return len(f) },
			1, 0},
		{"a window that is all bad tells nothing", Switches{Indeterminate: true}, cpi,
			rowsOf([]float64{4, 4, 4}, []float64{1, 1, 1}),
			func(f []Finding) any { return []any{f[0].Kind, f[0].Antagonists, len(f[0].Suspects)} },
			[]any{Neighbour, 1, 1}, []any{Indeterminate, 0, 1}},
		{"one good sample tells something", Switches{Indeterminate: true}, cpi,
			rowsOf([]float64{1, 4, 4, 4}, usage),
			func(f []Finding) any { return []any{f[0].Kind, f[0].Antagonists} },
			[]any{Neighbour, 1}, []any{Neighbour, 1}},
		{"a task that used almost nothing is excluded", Switches{LeastPressure: true}, cpi,
			rowsOf(costs, []float64{0, 0.002, 0.002, 0.002}, []float64{0.3, 0.2, 0.2, 0.2}),
			func(f []Finding) any { return []any{f[0].order(), f[0].Antagonists, f[0].Suspects[1].Excluded} },
			[]any{[]uint64{2, 3}, 1, ""}, []any{[]uint64{3, 2}, 0, "used almost nothing in the victim's bad intervals"}},
		{"a task that used as much as a cap allows is kept", Switches{LeastPressure: true}, cpi,
			rowsOf(costs, []float64{0, 0.1, 0.1, 0.1}),
			func(f []Finding) any { return f[0].Antagonists },
			1, 1},
		{"the own quota is no neighbour", Switches{OwnCauses: true}, cpi,
			change(rowsOf(costs, usage), func(r *Reading) {
				if r.Cost > 2 {
					r.Flags = sample.Throttled
				}
			}),
			func(f []Finding) any { return []any{f[0].Kind, len(f[0].Suspects)} },
			[]any{Neighbour, 1}, []any{OwnQuota, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			off := c.say(findings(New(only(t, Switches{})), c.signal, c.rows...))
			on := c.say(findings(New(only(t, c.sw)), c.signal, c.rows...))
			if !reflect.DeepEqual(off, c.off) || !reflect.DeepEqual(on, c.on) {
				t.Errorf("off: %v, want %v; on: %v, want %v", off, c.off, on, c.on)
			}
		})
	}
}

func TestACoVictimSufferedInHalfOfTheBadIntervals(t *testing.T) {
	for _, c := range []struct {
		badToo int
		want   bool
	}{{0, false}, {1, false}, {2, true}, {4, true}} {
		rows := rowsOf([]float64{1, 4, 4, 4, 4}, []float64{0, 1, 1, 1, 1})
		for i := range rows {
			r := &rows[i][1]
			r.CPU, r.Cost, r.Spec = 1, 1, ready(1, 0.5)
			if i >= 1 && i <= c.badToo {
				r.Cost = 3
			}
		}
		found := false
		for _, f := range findings(New(only(t, Switches{CoVictim: true})), signal(t, sample.CPI), rows...) {
			if f.Victim.Key.Inode != 1 || f.At != 5*minute {
				continue
			}
			found = true
			if got := f.of(t, 2).CoVictim; got != c.want {
				t.Errorf("bad too in %d of 4: co-victim %v, want %v", c.badToo, got, c.want)
			}
		}
		if !found {
			t.Errorf("bad too in %d of 4: nothing found", c.badToo)
		}
	}
}

func TestExcludedSuspectsComeLastWithTheReason(t *testing.T) {
	rename := func(n uint64, name sample.TaskName) func(*Reading) {
		return func(r *Reading) {
			if r.Task.Key.Inode == n {
				r.Task.Name = name
			}
		}
	}
	usage := []float64{0, 1, 1, 1}
	rows := rowsOf([]float64{1, 4, 4, 4}, usage, usage, usage, usage, usage, []float64{1, 1, 1, 1})
	for _, row := range rows {
		for i := range row {
			rename(1, "/pod/web")(&row[i])
			rename(2, "/pod")(&row[i])
			rename(3, "/pod/web/worker")(&row[i])
			rename(4, "/pod/web2")(&row[i])
			rename(5, "/pod")(&row[i])
			rename(6, "/pod/hog")(&row[i])
			rename(7, "/z")(&row[i])
		}
		row[4].Task.Key.Hierarchy = sample.V1CPU // 5: of the same name, but in another hierarchy
	}
	rows[3][5].Flags = sample.Capped
	f := last(t, findings(New(only(t, Switches{CappedApart: true})), signal(t, sample.CPI), rows...))
	want := map[uint64]string{2: "contains the victim", 3: "is part of the victim", 4: "", 5: "", 6: "capped already", 7: ""}
	for n, why := range want {
		if got := f.of(t, n).Excluded; got != why {
			t.Errorf("task %d excluded: %q, want %q", n, got, why)
		}
	}
	if got := f.order(); !slices.Equal(got, []uint64{5, 4, 7, 2, 6, 3}) || f.Antagonists != 2 {
		t.Errorf("order %v, %d antagonists", got, f.Antagonists)
	}
}

// "capped already" depends on the newest interval only: an ended cap has no effect.
func TestASuspectIsExcludedOnlyWhileItIsCapped(t *testing.T) {
	rows := rowsOf([]float64{1, 4, 4, 4}, []float64{0, 1, 1, 1})
	rows[1][1].Flags = sample.Capped
	if f := last(t, findings(New(only(t, Switches{CappedApart: true})), signal(t, sample.CPI), rows...)); f.of(t, 2).Excluded != "" || f.Kind != Neighbour {
		t.Errorf("%+v", f)
	}
}

// TestThePaperRanksEveryTaskAndNothingElse: rule cpi2 ranks a capped suspect as any other, and
// nothing that is no task.
func TestThePaperRanksEveryTaskAndNothingElse(t *testing.T) {
	usage := []float64{0, 1, 1, 1}
	for _, paper := range []bool{true, false} {
		rows := rowsOf([]float64{1, 4, 4, 4}, usage, usage)
		for _, row := range rows {
			*row[2].Task = Outside()
		}
		rows[3][1].Flags = sample.Capped
		sw := Switches{}
		if !paper {
			sw.Outside, sw.CappedApart = true, true
		}
		f := last(t, findings(New(only(t, sw)), signal(t, sample.CPI), rows...))
		var names []string
		for _, s := range f.Suspects {
			names = append(names, string(s.Name)+" "+s.Excluded)
		}
		want := []string{"/task-2 "}
		if !paper {
			want = []string{"(other) ", "/task-2 capped already"}
		}
		if !slices.Equal(names, want) || f.Antagonists != 1 {
			t.Errorf("paper %v: %q, %d antagonists", paper, names, f.Antagonists)
		}
	}
}

func TestOnlyTheTopIsListedOfEach(t *testing.T) {
	p := only(t, Switches{CappedApart: true})
	p.Top = 3
	rows := make([][]Reading, 4)
	for i, c := range []float64{1, 4, 4, 4} {
		rows[i] = []Reading{victim(1, c)}
		for n := range 20 {
			r := suspect(uint64(2+n), float64(n))
			if n >= 10 {
				r.Flags = sample.Capped
			}
			if i == 0 {
				r.Pressure = 1
			}
			rows[i] = append(rows[i], r)
		}
	}
	f := last(t, findings(New(p), signal(t, sample.CPI), rows...))
	if got := f.order(); !slices.Equal(got, []uint64{11, 10, 9, 21, 20, 19}) || f.Antagonists != 3 {
		t.Errorf("order %v, %d antagonists", got, f.Antagonists)
	}
}

func TestEqualSuspectsAreOrderedByUsageThenName(t *testing.T) {
	f := last(t, findings(New(paper(t, CPI2)), signal(t, sample.CPI), rowsOf([]float64{1, 4, 4, 4},
		[]float64{0, 1, 1, 1}, []float64{0, 2, 2, 2}, []float64{0, 1, 1, 1})...))
	if got := f.order(); !slices.Equal(got, []uint64{3, 2, 4}) {
		t.Errorf("order %v", got)
	}
}

func TestNobodyIsAccusedWhereThereIsNobody(t *testing.T) {
	for _, r := range []Method{CPI2, Quell} {
		f := last(t, findings(New(paper(t, r)), signal(t, sample.CPI), rowsOf([]float64{4, 4, 4})...))
		if f.Kind != Nobody || f.Antagonists != 0 || len(f.Suspects) != 0 {
			t.Errorf("%s: %+v", r, f)
		}
	}
}

func TestKindsAreWrittenByName(t *testing.T) {
	for k := range numKinds {
		text, err := json.Marshal(k)
		var back Kind
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || back != k {
			t.Errorf("%s became %v, %v", text, back, err)
		}
	}
	if err := json.Unmarshal([]byte(`"gremlins"`), new(Kind)); err == nil {
		t.Error("an unknown kind was accepted")
	}
}
