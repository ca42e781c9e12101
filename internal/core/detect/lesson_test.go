package detect

import (
	"math"
	"slices"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Tasks come and go, most often during trouble. A task without samples in the window, or
// with unusable ones only, is unknown: it must cause no crash, must not be accused, and
// must not prevent the accusation of the antagonist.
func TestWhoHasNoSamplesInTheWindowIsAccusedOfNothing(t *testing.T) {
	cpi := signal(t, sample.CPI)
	costs := []float64{1, 4, 4, 4}
	for _, c := range []struct {
		name   string
		change func(i int, row []Reading) []Reading // of task 2, which runs together with the antagonist, task 3
		listed bool
	}{
		{"never seen", func(_ int, row []Reading) []Reading { return slices.Delete(row, 1, 2) }, false},
		{"came with the last interval and did nothing", func(i int, row []Reading) []Reading {
			if i < 3 {
				return slices.Delete(row, 1, 2)
			}
			return row
		}, true},
		{"was there before the trouble only", func(i int, row []Reading) []Reading {
			if i > 0 {
				return slices.Delete(row, 1, 2)
			}
			row[1].Pressure, row[1].CPU = 1, 1
			return row
		}, true},
		{"never ran", func(_ int, row []Reading) []Reading { return row }, true},
		{"never counted", func(_ int, row []Reading) []Reading {
			row[1].Cost, row[1].Flags = math.NaN(), sample.Split
			return row
		}, true},
	} {
		for _, rule := range []Method{CPI2, Quell} {
			t.Run(string(rule)+" "+c.name, func(t *testing.T) {
				rows := rowsOf(costs, []float64{0, 0, 0, 0}, []float64{0, 2, 2, 2})
				for i := range rows {
					rows[i] = c.change(i, rows[i])
				}
				f := last(t, findings(New(paper(t, rule)), cpi, rows...))
				if f.Kind != Neighbour || f.Antagonists != 1 || f.Suspects[0].Key.Inode != 3 {
					t.Errorf("found %+v; want task 3 accused alone", f)
				}
				if listed := slices.Contains(f.order(), 2); listed != c.listed {
					t.Errorf("suspects %v; task 2 listed: %v, want %v", f.order(), listed, c.listed)
				}
				if c.listed {
					if s := f.of(t, 2); !(s.Correlation <= 0) || !(s.Usage >= 0) {
						t.Errorf("task 2: %+v; want a correlation of 0 or less", s)
					}
				}
			})
		}
	}
}

// Between an anomaly and its analysis a tick can pass in which the suspect or the victim
// ends.
func TestWhoIsGoneBeforeTheAnalysisIsForgotten(t *testing.T) {
	cpi := signal(t, sample.CPI)
	rows := rowsOf([]float64{1, 4, 4, 4}, []float64{0, 2, 2, 2}, []float64{0, 1, 1, 1})
	queued := func() *Detector {
		d := New(paper(t, Quell))
		for i, row := range rows {
			d.Observe(cpi, sample.Millis(i+1)*minute, row)
		}
		return d
	}
	d := queued()
	d.Forget(rows[0][1].Task.Key)
	f := last(t, drain(d, 4*minute))
	if f.Kind != Neighbour || !slices.Equal(f.order(), []uint64{3}) {
		t.Errorf("without the suspect that is gone: %+v", f)
	}
	if p := d.Window(cpi.Name, rows[0][1].Task.Key); p != nil {
		t.Errorf("it still has a window: %v", p)
	}
	d = queued()
	d.Forget(rows[0][0].Task.Key)
	if all := drain(d, 4*minute); len(all) != 0 {
		t.Errorf("findings on a victim that is gone: %+v", all)
	}
}
