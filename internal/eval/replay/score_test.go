package replay

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

func TestJudge(t *testing.T) {
	labels := []trace.Label{
		{Machine: "m", Victim: "/v", Antagonist: "/a", From: 1000, To: 2000, Cause: "cache"},
		{Machine: "m", Victim: "/v", Antagonist: "/b", From: 1500, To: 3000, Cause: "cpu"}, // the same episode
		{Machine: "m", Victim: "/v", Antagonist: "/a", From: 9000, To: 9500},
		{Machine: "m", Victim: "/w", Antagonist: "/a", From: 1000, To: 2000},
		{Machine: "m", Victim: "/x", From: 1000, To: 2000, Cause: "quota"}, // caused by no task
	}
	accuse := func(machine string, victim, suspect sample.TaskName, began, at sample.Millis) Accusation {
		return Accusation{Machine: machine, Victim: victim, Suspect: suspect, Statement: Statement{Began: began, At: at}}
	}
	s := Judge(labels, nil, []Accusation{
		accuse("m", "/v", "/c", 1100, 1200), // wrong, and the episode's first
		accuse("m", "/v", "/b", 1100, 1400), // before the label begins
		accuse("m", "/v", "/b", 1600, 1700), // right
		accuse("m", "/v", "/a", 1900, 2400), // right: true when the anomaly began
		accuse("m", "/x", "/a", 1100, 1200), // wrong: its own quota
		accuse("n", "/w", "/a", 1100, 1200), // another machine
		accuse("m", "/v", "/a", 9100, 9200), // right
	})
	if s.Precision.K != 3 || s.Precision.N != 7 || s.Recall.K != 2 || s.Recall.N != 3 || s.Top1.K != 1 || s.Top1.N != 2 {
		t.Errorf("precision %+v, recall %+v, top-1 %+v", s.Precision, s.Recall, s.Top1)
	}
	if len(s.Found) != 2 || s.Found[0].After() != 200*time.Millisecond || s.Found[1].After() != 700*time.Millisecond {
		t.Errorf("found %+v", s.Found)
	}
	if len(s.Wrong()) != 4 || len(s.Verdicts) != 7 || len(s.Missed) != 1 || s.Missed[0].Victim != "/w" {
		t.Errorf("wrong %+v, missed %+v", s.Wrong(), s.Missed)
	}
	if e := Episodes(labels); len(e) != 3 || len(e[0].Antagonists) != 2 || e[0].To != 3000 || len(e[0].Causes) != 2 {
		t.Errorf("%+v", e)
	}
	// By cause: k and n of precision, recall and top-1.
	if diff := cmp.Diff([]string{" 1/1 1/2 1/1", "cache+cpu 2/4 1/1 0/1", "none 0/1 0/0 0/0", "quota 0/1 0/0 0/0"}, byCause(s)); diff != "" {
		t.Error(diff)
	}
}

// byCause writes the counts of each cause, by name.
func byCause(s Score) (rows []string) {
	for _, c := range s.ByCause {
		rows = append(rows, fmt.Sprintf("%s %d/%d %d/%d %d/%d", c.Cause, c.Precision.K, c.Precision.N, c.Recall.K, c.Recall.N, c.Top1.K, c.Top1.N))
	}
	slices.Sort(rows)
	return rows
}

func TestEpisodes(t *testing.T) {
	label := func(antagonist sample.TaskName, from, to sample.Millis) trace.Label {
		return trace.Label{Victim: "/v", Antagonist: antagonist, From: from, To: to}
	}
	for _, c := range []struct {
		name   string
		labels []trace.Label
		want   string
	}{
		{"apart", []trace.Label{label("/a", 1, 2), label("/a", 3, 4)}, "1-2[/a] 3-4[/a]"},
		{"touching", []trace.Label{label("/b", 2, 3), label("/a", 1, 2)}, "1-2[/a] 2-3[/b]"},
		{"overlapping", []trace.Label{label("/a", 1, 3), label("/b", 2, 5), label("/c", 4, 6)}, "1-6[/a /b /c]"},
		{"one inside another", []trace.Label{label("/a", 1, 9), label("/b", 2, 3), label("/a", 8, 10)}, "1-10[/a /b]"},
		{"at one time", []trace.Label{label("/a", 2, 2), label("/b", 2, 2)}, "2-2[/a /b]"},
		{"caused by no task", []trace.Label{label("", 1, 9)}, ""},
		{"other victims", []trace.Label{label("/a", 1, 9), {Victim: "/w", Antagonist: "/a", From: 1, To: 9}, {Machine: "m", Victim: "/v", Antagonist: "/a", From: 1, To: 9}},
			"1-9[/a] 1-9[/a] 1-9[/a]"},
	} {
		var got []string
		for _, e := range Episodes(c.labels) {
			got = append(got, fmt.Sprintf("%d-%d%s", e.From, e.To, e.Antagonists))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", c.name, got, c.want)
		}
	}
}

// The repeated statements of one incident count in each episode during which it is open,
// according to the statements in that episode.
func TestOneIncidentOfSeveralEpisodes(t *testing.T) {
	labels := []trace.Label{
		{Victim: "/v", Antagonist: "/a", From: 1000, To: 2000, Cause: "llc"},
		{Victim: "/v", Antagonist: "/b", From: 2005, To: 3000, Cause: "membw"},
		{Victim: "/v", Antagonist: "/a", From: 3005, To: 4000, Cause: "llc"},
		{Victim: "/v", From: 4500, To: 4600, Cause: "phase"},
	}
	left := []trace.Stretch{{Victim: "/v", From: 4005, To: 4400}, {Victim: "/v", From: 4500, To: 4600}, {Victim: "/w", From: 0, To: 10000}}
	for _, c := range []struct {
		name string
		said map[sample.TaskName][]Statement // by suspect
		want []string
		left int
	}{
		{"the second episode's is said in the second",
			map[sample.TaskName][]Statement{"/a": {{Began: 1000, At: 1100}, {Began: 1800, At: 1900}}, "/b": {{Began: 2005, At: 2100}}},
			[]string{"llc 1/1 1/2 1/1", "membw 1/1 1/1 1/1"}, 0},
		{"the first's is said on, a little too long",
			map[sample.TaskName][]Statement{"/a": {{Began: 1000, At: 1100}, {Began: 1900, At: 2050}}},
			[]string{"llc 1/1 1/2 1/1", "membw 0/0 0/1 0/0"}, 0},
		{"the first's is said on for long",
			map[sample.TaskName][]Statement{"/a": {{Began: 1000, At: 1100}, {Began: 2010, At: 2110}, {Began: 2110, At: 2310}}},
			[]string{"llc 1/1 1/2 1/1", "membw 0/1 0/1 0/1"}, 0},
		{"it is said in all three",
			map[sample.TaskName][]Statement{"/a": {{Began: 1000, At: 1100}, {Began: 2100, At: 2200}, {Began: 3100, At: 3200}, {Began: 3200, At: 3300}}},
			[]string{"llc 2/2 2/2 2/2", "membw 0/1 0/1 0/1"}, 0},
		{"of an innocent, in, left out, and outside",
			map[sample.TaskName][]Statement{"/c": {{Began: 900, At: 950}, {Began: 1000, At: 1100}, {Began: 4100, At: 4200}, {Began: 4550, At: 4580}, {Began: 5000, At: 5100}}},
			[]string{"llc 0/1 0/2 0/1", "membw 0/0 0/1 0/0", "none 0/1 0/0 0/0", "phase 0/1 0/0 0/0"}, 1},
		{"what was right is said on outside", map[sample.TaskName][]Statement{"/a": {{Began: 3100, At: 3200}, {Began: 5000, At: 5100}}},
			[]string{"llc 1/1 1/2 1/1", "membw 0/0 0/1 0/0"}, 0},
		{"what was left out is said on outside", map[sample.TaskName][]Statement{"/a": {{Began: 4100, At: 4200}, {Began: 5000, At: 5100}, {Began: 5000, At: 5200}}},
			[]string{"llc 0/0 0/2 0/0", "membw 0/0 0/1 0/0", "none 0/1 0/0 0/0"}, 1},
		{"of an antagonist, mostly where it is left out",
			map[sample.TaskName][]Statement{"/a": {{Began: 3990, At: 4100}}},
			[]string{"llc 1/1 1/2 1/1", "membw 0/0 0/1 0/0"}, 0},
		{"of an innocent, mostly where it is left out",
			map[sample.TaskName][]Statement{"/c": {{Began: 3990, At: 4100}}},
			[]string{"llc 0/0 0/2 0/0", "membw 0/0 0/1 0/0"}, 1},
		{"of an innocent, mostly before", map[sample.TaskName][]Statement{"/c": {{Began: 3700, At: 4050}}},
			[]string{"llc 0/1 0/2 0/1", "membw 0/0 0/1 0/0"}, 0},
	} {
		var all []Accusation
		for suspect, said := range c.said {
			all = append(all, Accusation{Incident: "1", Victim: "/v", Suspect: suspect, Statement: said[0], Again: said[1:]})
		}
		s := Judge(labels, left, all)
		if diff := cmp.Diff(c.want, byCause(s)); diff != "" || s.LeftOut != c.left {
			t.Errorf("%s: %d left out, %s", c.name, s.LeftOut, diff)
		}
	}
}

// 7 of 10: the two-sided interval in the table of Clopper and Pearson's paper.
func TestShare(t *testing.T) {
	s := Share{K: 7, N: 10}.plus(Share{})
	if s.Value() != 0.7 || s.Low < 0.3475 || s.Low > 0.3476 || s.High < 0.9332 || s.High > 0.9333 {
		t.Errorf("%+v", s)
	}
	if s := (Share{N: 5}).plus(Share{}); s.Low != 0 || s.High < 0.52 || s.High > 0.53 {
		t.Errorf("%+v", s)
	}
}

// The bounds are the 2nd and 9th of 10, 6th and 15th of 20 (Conover, table A3).
func TestMedian(t *testing.T) {
	for _, c := range []struct{ n, median, low, high int }{{1, 0, 0, 0}, {5, 2, 0, 4}, {6, 3, 0, 5}, {10, 5, 1, 8}, {20, 10, 5, 14},
		{1000, 500, 468, 531}, {1200, 600, 565, 634}, {5000, 2500, 2430, 2569}} { // counted with exact fractions
		var s Score
		for i := range c.n {
			s.Found = append(s.Found, Found{First: Verdict{Accusation: Accusation{Statement: Statement{At: sample.Millis(i)}}}})
		}
		median, low, high, ok := s.Median()
		if !ok || int(median.Milliseconds()) != c.median || int(low.Milliseconds()) != c.low || int(high.Milliseconds()) != c.high {
			t.Errorf("%d: %d in [%d, %d]", c.n, median, low, high)
		}
	}
	if _, _, _, ok := (&Score{}).Median(); ok {
		t.Error("a median without findings")
	}
}
