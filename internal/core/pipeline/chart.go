package pipeline

import (
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/stat"
)

// Chart is the course of an incident: the victim's cost and the main suspects'
// pressure over time, in the units of its signal.
type Chart struct {
	Times      []sample.Millis `json:"times"`       // ends of intervals
	VictimCost []stat.Float    `json:"victim_cost"` // one for each of Times; NaN where it was not judged
	Usage      []Track         `json:"suspect_usage"`
}

// Track is one suspect's line in a Chart.
type Track struct {
	Task  sample.TaskName `json:"task"`
	Usage []stat.Float    `json:"usage"` // one for each of Chart.Times; NaN where there was none
}

const (
	// maxPoints bounds a chart: the newest are kept.
	maxPoints = 512
	// firstSuspects is how many of an incident's first suspects have a track. The task
	// that an analysis names first gets one too, up to maxNamed tracks, and so does each
	// task that is capped for the incident.
	firstSuspects = 5
	maxNamed      = 12
)

// chart is a Chart that grows. Points are appended and never changed, so that a Chart can share them.
type chart struct {
	Chart
	signal sample.SignalName
	victim sample.TaskKey
	tasks  []sample.TaskKey // of Usage
	rounds int              // rounds of the incident whose suspects have tracks
}

// charts are those of the open incidents, by ID; nil if none are kept.
type charts map[string]*chart

// of returns an incident's current chart, and forgets it if the incident is closed.
func (c charts) of(inc *plan.Incident) Chart {
	v := c[inc.ID].value()
	if inc.Closed != 0 {
		delete(c, inc.ID)
	}
	return v
}

func (c *chart) value() Chart {
	if c == nil {
		return Chart{}
	}
	v := c.Chart
	v.Usage = slices.Clone(v.Usage)
	return v
}

// chart updates an open incident's chart with its suspects. The chart begins with the
// detector's window.
func (p *Pipeline) chart(inc *plan.Incident) {
	window := p.window(inc.Signal)
	c := p.charts[inc.ID]
	if c == nil {
		c = &chart{signal: inc.Signal, victim: inc.Victim.Key}
		p.charts[inc.ID] = c
		for _, at := range window(inc.Victim.Key) {
			c.Times, c.VictimCost = append(c.Times, at.At), append(c.VictimCost, stat.Float(at.Cost))
		}
		for _, s := range inc.Suspects[:min(len(inc.Suspects), firstSuspects)] {
			c.track(s.Task, window)
		}
	}
	if a := inc.Now(); a.Antagonists > 0 && len(c.tasks) < maxNamed {
		c.track(a.Suspects[0].Task, window)
	}
	for ; c.rounds < len(inc.Rounds); c.rounds++ {
		for _, capped := range inc.Rounds[c.rounds].Tasks() {
			c.track(capped.Suspect, window)
		}
	}
}

// track adds a line for a task that has none.
func (c *chart) track(t sample.Task, window func(sample.TaskKey) []detect.Point) {
	if slices.Contains(c.tasks, t.Key) {
		return
	}
	history := window(t.Key)
	usage := make([]stat.Float, len(c.Times))
	for i, at := range c.Times {
		usage[i] = stat.Float(math.NaN())
		for _, p := range history {
			if p.At == at {
				usage[i] = stat.Float(p.Pressure)
			}
		}
	}
	c.tasks = append(c.tasks, t.Key)
	c.Usage = append(c.Usage, Track{t.Name, usage})
}

// extend adds an interval to the charts of its signal's open incidents. The chart of a
// closed incident that was not yet given to the host is complete.
func (c charts) extend(iv *Interval, verdicts []detect.Verdict) {
	index := plan.NewIndex(iv.readings)
	for id, one := range c {
		if one.signal == iv.signal.Name && iv.pipeline.IsOpen(id) {
			one.extend(iv, index, verdicts)
		}
	}
}

func (c *chart) extend(iv *Interval, index *plan.Index, verdicts []detect.Verdict) {
	if n := len(c.Times); n > 0 && c.Times[n-1] >= iv.at {
		return
	}
	drop := 0
	if len(c.Times) == maxPoints {
		drop = 1
	}
	cost := math.NaN()
	if i := index.Of(c.victim); i >= 0 && verdicts[i].Judged {
		cost = iv.readings[i].Cost
	}
	c.Times, c.VictimCost = append(c.Times[drop:], iv.at), append(c.VictimCost[drop:], stat.Float(cost))
	for n, k := range c.tasks {
		pressure := math.NaN()
		if i := index.Of(k); i >= 0 {
			pressure = iv.readings[i].Pressure
		}
		c.Usage[n].Usage = append(c.Usage[n].Usage[drop:], stat.Float(pressure))
	}
}
