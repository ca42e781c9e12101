package replay

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/trace"
)

func TestJudge(t *testing.T) {
	labels := []trace.Label{
		{Machine: "m", Victim: "/v", Antagonist: "/a", From: 1000, To: 2000, Cause: "cache"},
		{Machine: "m", Victim: "/v", Antagonist: "/b", From: 1500, To: 3000, Cause: "cpu"}, // the same episode
		{Machine: "m", Victim: "/v", Antagonist: "/a", From: 9000, To: 9500},
		{Machine: "m", Victim: "/w", Antagonist: "/a", From: 1000, To: 2000},
		{Machine: "m", Victim: "/x", From: 1000, To: 2000, Cause: "quota"}, // nobody's doing
	}
	accuse := func(machine string, victim, suspect sample.TaskName, began, at sample.Millis) Accusation {
		return Accusation{Machine: machine, Victim: victim, Suspect: suspect, Began: began, At: at}
	}
	s := Judge(labels, []Accusation{
		accuse("m", "/v", "/c", 1100, 1200), // wrong, and the episode's first
		accuse("m", "/v", "/b", 1100, 1400), // before it is true
		accuse("m", "/v", "/b", 1600, 1700), // right
		accuse("m", "/v", "/a", 1900, 2400), // right: of what was true when it began
		accuse("m", "/x", "/a", 1100, 1200), // wrong: its own quota
		accuse("n", "/w", "/a", 1100, 1200), // another machine
		accuse("m", "/v", "/a", 9100, 9200), // right
	}, 0)
	if s.Precision.K != 3 || s.Precision.N != 7 || s.Recall.K != 2 || s.Recall.N != 3 || s.Top1.K != 1 || s.Top1.N != 2 {
		t.Errorf("precision %+v, recall %+v, top-1 %+v", s.Precision, s.Recall, s.Top1)
	}
	if diff := cmp.Diff([]time.Duration{200 * time.Millisecond, 700 * time.Millisecond}, s.After); diff != "" {
		t.Error(diff)
	}
	if len(s.Wrong) != 4 || len(s.Missed) != 1 || s.Missed[0].Victim != "/w" {
		t.Errorf("wrong %+v, missed %+v", s.Wrong, s.Missed)
	}
	if e := Episodes(labels, 0); len(e) != 3 || len(e[0].Antagonists) != 2 || e[0].To != 3000 || len(e[0].Causes) != 2 {
		t.Errorf("%+v", e)
	}
}

func TestEpisodesByGap(t *testing.T) {
	turns := []trace.Label{{Victim: "/v", Antagonist: "/a", From: 1000, To: 2000}, {Victim: "/v", Antagonist: "/a", From: 3000, To: 4000}, {Victim: "/v", Antagonist: "/b", From: 5001, To: 6000}}
	for gap, want := range map[time.Duration]int{0: 3, 999 * time.Millisecond: 3, time.Second: 2, 1001 * time.Millisecond: 1} {
		if got := Episodes(turns, gap); len(got) != want {
			t.Errorf("%v: %+v", gap, got)
		}
	}
}

// 7 of 10: the two-sided interval of Clopper and Pearson's paper's table.
func TestShare(t *testing.T) {
	s := shareOf(7, 10)
	if s.Value() != 0.7 || s.Low < 0.3475 || s.Low > 0.3476 || s.High < 0.9332 || s.High > 0.9333 {
		t.Errorf("%+v", s)
	}
	if s := shareOf(0, 5); s.Low != 0 || s.High < 0.52 || s.High > 0.53 {
		t.Errorf("%+v", s)
	}
}

// The bounds are the 2nd and 9th of 10, 6th and 15th of 20 (Conover, table A3).
func TestMedian(t *testing.T) {
	for _, c := range []struct{ n, median, low, high int }{{1, 0, 0, 0}, {5, 2, 0, 4}, {6, 3, 0, 5}, {10, 5, 1, 8}, {20, 10, 5, 14}} {
		var s Score
		for i := range c.n {
			s.After = append(s.After, time.Duration(i))
		}
		median, low, high, ok := s.Median()
		if !ok || int(median) != c.median || int(low) != c.low || int(high) != c.high {
			t.Errorf("%d: %d in [%d, %d]", c.n, median, low, high)
		}
	}
	if _, _, _, ok := (&Score{}).Median(); ok {
		t.Error("a median of nothing")
	}
}
