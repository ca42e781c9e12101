package evaluation

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	corestat "github.com/quell-dev/quell/internal/core/stat"
)

// Capped is what samples say of capped tasks and of their victims.
type Capped struct {
	// Caps is the number of measured caps with samples of the capped task before, under and
	// after them; Threads are the medians over them, as multiples of those before.
	Caps    int            `json:"caps"`
	Under   incident.Value `json:"threads_under_by_before"`
	After   incident.Value `json:"threads_after_by_before"`
	Case    *Case          `json:"case,omitempty"`
	Misses  incident.Value `json:"misses_correlation"` // of relative misses per instruction with relative cost (figure 15c)
	MissesN int            `json:"misses_caps"`        // true positives with both
}

// Case is one capped task, the one whose number of threads changed most (figure 12b).
type Case struct {
	Machine string        `json:"machine"`
	Task    string        `json:"task"`
	Victim  string        `json:"victim"`
	From    sample.Millis `json:"from"`
	Ended   sample.Millis `json:"ended"`
	Points  []CasePoint   `json:"points"`
}

// CasePoint is the state at the end of an interval.
type CasePoint struct {
	At         sample.Millis  `json:"at"`
	CPU        incident.Value `json:"cpu"`         // CPU-s/s of the capped task
	Threads    incident.Value `json:"threads"`     // of the capped task
	VictimCost incident.Value `json:"victim_cost"` // in the unit of the signal
}

const (
	// cappedSQL summarises the samples of victims and capped tasks before (0), under (1) and
	// after (2) caps.
	cappedSQL = `WITH caps AS (SELECT n, role, machine, task, make_timestamptz(began) AS began, make_timestamptz(capped) AS capped,
         make_timestamptz(ended) AS ended, make_timestamptz(until) AS until FROM (VALUES %s) AS v(n, role, machine, task, began, capped, ended, until))
SELECT n, role, CASE WHEN s.ts <= capped THEN 0 WHEN s.ts <= ended THEN 1 ELSE 2 END,
       sum(llc_misses) FILTER (instructions > 0), sum(instructions) FILTER (llc_misses IS NOT NULL), avg(threads)
FROM samples s JOIN caps c ON c.machine = s.machine AND c.task = s.task AND s.ts >= c.began AND s.ts <= c.until
WHERE ts > {from} AND ts <= {to} AND s.task IN (%s) GROUP BY 1, 2, 3`
	caseSQL = `SELECT epoch_ms(ts), avg(cpu) FILTER (task = %[2]s), avg(threads) FILTER (task = %[2]s), avg(cost) FILTER (task = %[3]s AND signal = %[4]s)
FROM samples WHERE machine = %[1]s AND task IN (%[2]s, %[3]s) AND ts > {from} AND ts <= {to} GROUP BY ts ORDER BY ts`

	// The time around a cap that is looked at.
	beforeCap = 15 * time.Minute
	afterCap  = 45 * time.Minute
	// capsAtOnce and bytesAtOnce bound the caps of one statement, which is at most 1 MB long by
	// default (limits.body_kb).
	capsAtOnce, bytesAtOnce = 2000, 512 << 10
	// capBytes is what a cap takes in it in addition to its names, which are there twice at most.
	capBytes = 250
)

// phases are sums before, under and after a cap.
type phases struct{ misses, instructions, threads [3]float64 }

func newPhases() *phases {
	nan := math.NaN()
	return &phases{threads: [3]float64{nan, nan, nan}}
}

// missRate is the ratio of misses per instruction under the cap to that before; NaN if it is
// not known.
func (p *phases) missRate() float64 {
	return p.misses[1] / p.instructions[1] / (p.misses[0] / p.instructions[0])
}

// readCapped reads the samples around the measured caps, which are sorted by time.
func (e *Evaluation) readCapped(t *tables, caps []cappedTask) error {
	victims, suspects := make([]*phases, len(caps)), make([]*phases, len(caps))
	for i := range caps {
		victims[i], suspects[i] = newPhases(), newPhases()
	}
	most := capsAtOnce
	for first := 0; first < len(caps); {
		last, size := first, 0
		for last < len(caps) && last-first < most && size < bytesAtOnce && caps[last].from.Sub(caps[first].from) < day {
			c := &caps[last]
			size += capBytes + 2*(len(c.machine)+len(c.victim)+len(c.suspect))
			last++
		}
		err := readPhases(t, caps, first, last, victims, suspects)
		if errors.Is(err, ErrLimit) && last-first > 1 {
			most = (last - first) / 2
			continue
		}
		if err != nil {
			return err
		}
		first = last
	}
	c := &e.cluster.Capped
	var under, after []float64
	chosen, change := -1, 0.0
	for i := range caps {
		e.rounds[caps[i].round].misses = victims[i].missRate()
		th := &suspects[i].threads
		u, a := th[1]/th[0], th[2]/th[0]
		if math.IsNaN(u) || math.IsNaN(a) {
			continue
		}
		under, after = append(under, u), append(after, a)
		if u > change {
			chosen, change = i, u
		}
	}
	c.Caps, c.Under, c.After = len(under), median(under), median(after)
	c.Misses, c.MissesN = e.missesCorrelation()
	if chosen < 0 {
		return nil
	}
	return e.readCase(t, &caps[chosen])
}

func readPhases(t *tables, caps []cappedTask, first, last int, victims, suspects []*phases) error {
	var values, tasks []string // the filter by tasks keeps the join small
	from, to := caps[first].from.Add(-beforeCap), sample.Millis(0)
	for i := first; i < last; i++ {
		c := &caps[i]
		to = max(to, c.ended.Add(afterCap))
		for role, task := range []struct {
			name        string
			from, until sample.Millis
		}{{c.victim, max(c.began, c.from.Add(-beforeCap)), c.ended}, {c.suspect, c.from.Add(-beforeCap), c.ended.Add(afterCap)}} {
			tasks = append(tasks, quote(task.name))
			values = append(values, fmt.Sprintf("(%d, %d, %s, %s, %d, %d, %d, %d)", i, role, quote(c.machine), quote(task.name),
				int64(task.from)*1000, int64(c.from)*1000, int64(c.ended)*1000, int64(task.until)*1000))
		}
	}
	return t.once(fmt.Sprintf(cappedSQL, strings.Join(values, ", "), strings.Join(slices.Compact(slices.Sorted(slices.Values(tasks))), ", ")), from-1, to, func(row []json.RawMessage) error {
		var i, role, phase int
		var misses, instructions, threads *float64
		if err := scan(row, &i, &role, &phase, &misses, &instructions, &threads); err != nil {
			return err
		}
		if i < first || i >= last || phase < 0 || phase > 2 {
			return fmt.Errorf("cap %d, phase %d", i, phase)
		}
		p := victims[i]
		if role == 1 {
			p = suspects[i]
		}
		if misses != nil && instructions != nil {
			p.misses[phase] += *misses
			p.instructions[phase] += *instructions
		}
		if threads != nil {
			p.threads[phase] = *threads
		}
		return nil
	})
}

// missesCorrelation is Pearson's correlation of the relative misses per instruction with the
// relative cost, over the true positives.
func (e *Evaluation) missesCorrelation() (incident.Value, int) {
	var misses, relative []float64
	for i := range e.rounds {
		if r := &e.rounds[i]; r.helped() && !math.IsNaN(r.misses) && !math.IsInf(r.misses, 0) {
			misses, relative = append(misses, r.misses), append(relative, r.relative)
		}
	}
	return incident.Value(corestat.Pearson(relative, misses)), len(misses)
}

func (e *Evaluation) readCase(t *tables, c *cappedTask) error {
	x := &Case{Machine: c.machine, Task: c.suspect, Victim: c.victim, From: c.from, Ended: c.ended}
	sql := fmt.Sprintf(caseSQL, quote(c.machine), quote(c.suspect), quote(c.victim), quote(c.signal))
	err := t.once(sql, c.from.Add(-beforeCap), c.ended.Add(afterCap), func(row []json.RawMessage) error {
		p := CasePoint{}
		var cpu, threads, cost *float64
		if err := scan(row, &p.At, &cpu, &threads, &cost); err != nil {
			return err
		}
		p.CPU, p.Threads, p.VictimCost = incident.Value(valueOf(cpu)), incident.Value(valueOf(threads)), incident.Value(valueOf(cost))
		x.Points = append(x.Points, p)
		return nil
	})
	slices.SortFunc(x.Points, func(a, b CasePoint) int { return int(a.At - b.At) })
	e.cluster.Capped.Case = x
	return err
}
