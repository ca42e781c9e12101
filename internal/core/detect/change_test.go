package detect

import (
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Each limit of the rule from both sides. Three good intervals, three bad ones at cost 4;
// the victim's usage varies by 1 %, so that standard errors are small.
func TestTheLimitsOfAPhaseChange(t *testing.T) {
	for _, c := range []struct {
		name      string
		signal    sample.SignalName
		good, bad float64 // the victim's usage in good and bad intervals
		intervals int     // number of bad ones
		hog       float64 // its additional usage in the bad intervals
		want      Change
	}{
		{"a quarter more work", sample.CPI, 0.4, 4 * 0.4 * 1.27, 3, 0, MoreWork},
		{"not quite a quarter", sample.CPI, 0.4, 4 * 0.4 * 1.23, 3, 0, ""},
		{"more usage is no more work where the cost is per work", sample.CPI, 0.4, 0.8, 3, 0, ""},
		{"but is where the cost is a wait", sample.RunQ, 0.4, 0.8, 3, 0, MoreWork},
		{"more work next to a task that moved", sample.CPI, 0.4, 4 * 0.4 * 1.27, 3, 1, MoreWork},
		{"a fifth less usage", sample.CPI, 1, 0.78, 3, 0, LessCPU},
		{"not quite a fifth", sample.CPI, 1, 0.82, 3, 0, ""},
		{"less usage next to a task that moved a little", sample.CPI, 1, 0.78, 3, 0.11, ""},
		{"five intervals in a row", sample.CPI, 1, 1, 5, 0, NewLevel},
		{"four", sample.CPI, 1, 1, 4, 0, ""},
		{"five next to a task that moved a little", sample.CPI, 1, 1, 5, 0.11, ""},
		{"five next to a task that hardly moved", sample.CPI, 1, 1, 5, 0.09, NewLevel},
		{"more requests, each of which takes longer", sample.IO, 100, 127, 3, 0, MoreWork},
		{"fewer requests, because each takes longer", sample.IO, 100, 25, 3, 0, ""},
		{"five next to a task with a few requests more", sample.IO, 100, 100, 5, 11, ""},
		{"five next to a task with hardly any more", sample.IO, 100, 100, 5, 9, NewLevel},
	} {
		t.Run(c.name, func(t *testing.T) {
			var rows [][]Reading
			for i := range 3 + c.intervals {
				cost, usage, hog := 1.0, c.good, 1.0
				if i >= 3 {
					cost, usage, hog = 4, c.bad, 1+c.hog
				}
				r := victim(1, cost)
				r.CPU = usage * (1 + 0.01*float64(i%2))
				r.Pressure, r.Rate = r.CPU, 100
				rows = append(rows, []Reading{r, suspect(2, hog)})
			}
			f := last(t, findings(New(only(t, Switches{PhaseChange: true})), signal(t, c.signal), rows...))
			if f.Change != c.want || (f.Kind == PhaseChange) != (c.want != "") || f.Kind == PhaseChange && f.Antagonists != 0 {
				t.Errorf("%s, change %q, %d antagonists; want %q", f.Kind, f.Change, f.Antagonists, c.want)
			}
		})
	}
}

// A limit that lasts in all intervals that are compared, such as an operator's of a day, is no change of another
// task; one that began among them hides what its task would have used.
func TestALimitThatLastsIsNoChange(t *testing.T) {
	for from, want := range map[int]Change{0: NewLevel, 2: ""} {
		rows := rowsOf([]float64{1, 1, 1, 4, 4, 4, 4, 4}, []float64{1, 1, 1, 1, 1, 1, 1, 1})
		for _, row := range rows[from:] {
			row[1].Flags = sample.Capped
		}
		f := last(t, findings(New(only(t, Switches{PhaseChange: true})), signal(t, sample.CPI), rows...))
		if f.Change != want {
			t.Errorf("limited from interval %d on: %s, change %q; want %q", from, f.Kind, f.Change, want)
		}
	}
}
