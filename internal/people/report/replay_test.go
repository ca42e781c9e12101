package report

import (
	"bytes"
	"encoding/xml"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/replay"
	"github.com/quell-dev/quell/internal/format/trace"
)

// played is a recording in which a task with a hostile name hurts another.
func played(t *testing.T) *Replay {
	t.Helper()
	o, err := replay.Default(detect.Quell)
	if err != nil {
		t.Fatal(err)
	}
	o.Costs = true
	p := replay.New(o)
	add := func(at int, task string, class sample.Class, cpu, cost float64) {
		p.Add(&sample.Sample{TS: sample.At(time.Unix(1_700_000_000, 0).Add(time.Duration(at) * time.Minute)), Machine: "m", Job: sample.JobName(task),
			Task: sample.TaskName("/" + task), Signal: sample.CPI, Class: class, Coverage: 1, CPU: float32(cpu), Cost: float32(cost)})
	}
	for at := range 220 {
		cost, used := 1.5+0.01*float64(at*at%13), 0.05
		if at >= 150 && at < 170 && at/3%2 == 0 {
			cost, used = 4, 3
		}
		add(at, "web", sample.LatencySensitive, 1, cost)
		add(at, "<script>alert(1)</script>", sample.Batch, used, math.NaN())
	}
	r := &Replay{Result: p.Finish(), Notes: []string{"a note"}}
	score := replay.Judge([]trace.Label{{Machine: "m", Victim: "/web", Antagonist: "/nobody", From: 1, To: 2, Cause: "cache"}}, nil, r.Result.Accusations)
	r.Score = &score
	r.Summary = r.Result.Summary(r.Score)
	return r
}

func TestReplayHTML(t *testing.T) {
	r := played(t)
	if len(r.Result.Accusations) != 1 {
		t.Fatalf("%+v", r.Result.Accusations)
	}
	var b bytes.Buffer
	if err := ReplayHTML(&b, r, Style{}); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, bad := range []string{"<script", "http://", "https://", "NaN", "Inf"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	for _, want := range []string{"usage of /&lt;script&gt;", "Costs of jobs", "GEV", "Episodes without a correct accusation", "Wrong accusations", "a note", "threshold", "By cause", "<td>0 of 1, 0.000 [0.000, 0.975]</td>"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	drawings := regexp.MustCompile(`(?s)<svg .*?</svg>`).FindAllString(page, -1)
	if len(drawings) < 4 {
		t.Errorf("%d drawings", len(drawings))
	}
	for _, svg := range drawings {
		if err := xml.Unmarshal([]byte(svg), new(struct{})); err != nil {
			t.Errorf("%v in %.200s", err, svg)
		}
	}
}

func TestReplayText(t *testing.T) {
	r := played(t)
	var b bytes.Buffer
	if err := ReplayText(&b, r, 1, Style{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"accusations 1", "precision   0.000", "recall      0.000 [0.000, 0.975]: 0 of 1", "top-1       none of none", "cache  -                             0 of 1, 0.000 [0.000, 0.975]  -\n", "none   0 of 1, 0.000 [0.000, 0.975]  -", "note        a note", "latency-sensitive", "neighbour"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in\n%s", want, b.String())
		}
	}
	b.Reset()
	empty := &Replay{Result: &replay.Result{}}
	if err := ReplayText(&b, empty, 1, Style{}); err != nil || !strings.Contains(b.String(), "0 of 0 rows were compared with a spec") {
		t.Errorf("%v, %s", err, b.String())
	}
	if err := ReplayHTML(&b, empty, Style{}); err != nil || !strings.Contains(b.String(), "There were none.") {
		t.Errorf("%v, %s", err, b.String())
	}
}

func TestIncidentsThatAccuseComeFirst(t *testing.T) {
	one := func(id string, antagonists int) *incident.Record {
		return &incident.Record{Incident: plan.Incident{ID: id, Analysis: plan.Analysis{Result: detect.Result{Antagonists: antagonists}}}}
	}
	list := accusingFirst([]*incident.Record{one("a", 0), one("b", 2), one("c", 0), one("d", 1)})
	order := ""
	for _, inc := range list {
		order += inc.ID
	}
	if order != "bdac" {
		t.Error(order)
	}
}
