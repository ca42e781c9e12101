package evaluation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Cluster has the figures that need samples of many machines. They are of one span of time.
type Cluster struct {
	From sample.Millis `json:"from"`
	To   sample.Millis `json:"to"`
	// Machines were those with samples in the hour up to At.
	Machines int           `json:"machines"`
	At       sample.Millis `json:"at"`
	Tasks    Quantiles     `json:"tasks_a_machine"`   // figure 1
	Threads  Quantiles     `json:"threads_a_machine"` // N is 0 if threads are not counted
	Course   *Course       `json:"course,omitempty"`  // figure 5
	Costs    []JobCost     `json:"costs"`             // figure 7
	Capped   Capped        `json:"capped"`            // figures 12b and 15c
	// LeftOut are machines of which not all incidents could be read.
	LeftOut []LeftOut `json:"left_out,omitempty"`
}

// key identifies an incident.
type key struct{ machine, id string }

// state is an incident at its first accusation, or without one at its beginning.
type state struct {
	at             sample.Millis
	accuses        bool
	kind           detect.Kind
	victim, accuse sample.JobName
	found          found
}

// OfCluster evaluates the tables of a store between two times: incidents as they were when a
// task was first accused, all caps, and samples. Whatever the store's size, it keeps some
// hundred bytes for an incident. done, if not nil, is told which part was read.
func OfCluster(ctx context.Context, ask Ask, from, to sample.Millis, done func(part string)) (*Evaluation, error) {
	t := &tables{ctx, ask, from, to, nil}
	e := &Evaluation{cluster: &Cluster{From: from, To: to}}
	var caps []cappedTask
	for _, part := range []struct {
		name string
		read func() error
	}{
		{"incidents", func() error { return e.readStates(t) }},
		{"caps", func() (err error) { caps, err = e.readRounds(t); return err }},
		{"machines", func() error { return e.readMachines(t) }},
		{"costs", func() error { return e.readCosts(t) }},
		{"samples under caps", func() error { return e.readCapped(t, caps) }},
	} {
		if done != nil {
			done(part.name)
		}
		if err := part.read(); err != nil {
			return nil, err
		}
	}
	e.cluster.LeftOut = t.left
	return e, nil
}

// readStates reads the incidents. Only those that have not ended are kept from one page to the
// next.
func (e *Evaluation) readStates(t *tables) error {
	open, ended := map[key]state{}, map[key]bool{}
	settle := func() {
		for _, k := range sortedKeys(ended) {
			e.addState(open[k])
			delete(open, k)
		}
		clear(ended)
	}
	err := t.pagesOf(week, []statement{{plainSQL, e.addPlain}, {statesSQL, func(row []json.RawMessage) error {
		var k key
		var kind, class string
		var busy, cpus, correlation *float64
		var cost, mean float64
		var closed bool
		s := state{}
		if err := scan(row, &k.machine, &k.id, &s.at, &kind, &class, &s.victim, &s.accuse, &s.accuses, &correlation, &cost, &mean, &busy, &cpus, &closed); err != nil {
			return err
		}
		if s.kind.UnmarshalText([]byte(kind)) != nil {
			return nil // of a newer version
		}
		s.found = found{band: bandOfClass(class), busy: valueOf(busy), cpus: valueOf(cpus), identified: s.accuses, correlation: valueOf(correlation), degradation: cost / mean}
		had, known := open[k]
		if !known || s.accuses && !had.accuses || s.accuses == had.accuses && s.at < had.at {
			open[k] = s
		}
		if closed {
			ended[k] = true
		}
		return nil
	}}}, settle)
	for _, k := range sortedKeys(open) {
		e.addState(open[k])
	}
	return err
}

// addPlain adds incidents that name no antagonist, a row of plainSQL.
func (e *Evaluation) addPlain(row []json.RawMessage) error {
	var name, class string
	var correlation, degradation, busy, cpus []float64
	if err := scan(row, &name, &class, &correlation, &degradation, &busy, &cpus); err != nil {
		return err
	}
	if len(degradation) != len(correlation) || len(busy) != len(correlation) || len(cpus) != len(correlation) {
		return errors.New("lists of different lengths")
	}
	var kind detect.Kind
	if kind.UnmarshalText([]byte(name)) != nil || !kind.MayBeANeighbour() {
		return nil // of a newer version, or of no neighbour
	}
	known := func(v, least float64) float64 {
		if v < least {
			return math.NaN()
		}
		return v
	}
	for i := range correlation {
		e.found = append(e.found, found{band: bandOfClass(class), correlation: known(correlation[i], -1), degradation: degradation[i], busy: known(busy[i], 0), cpus: known(cpus[i], 0)})
	}
	return nil
}

// addState adds an incident.
func (e *Evaluation) addState(s state) {
	if !s.kind.MayBeANeighbour() {
		return
	}
	e.found = append(e.found, s.found)
	if s.accuses && s.accuse != "" {
		e.pair(s.victim, s.accuse).accused++
	}
}

// cappedTask is a cap whose samples are looked up.
type cappedTask struct {
	machine, victim, suspect string // names of tasks as in the tables
	signal                   string
	began, from, ended       sample.Millis
	round                    int // index among the measured caps
}

// readRounds reads the caps.
func (e *Evaluation) readRounds(t *tables) ([]cappedTask, error) {
	type newest struct {
		at        sample.Millis
		kind      detect.Kind
		band      Band
		mean, dev float64
		victim    sample.JobName
		task      cappedTask
		rounds    []*plan.Round
	}
	all := map[key]newest{}
	err := t.pages(week, roundsSQL, nil, func(row []json.RawMessage) error {
		var k key
		var kind, class string
		var rounds *string
		var n newest
		if err := scan(row, &k.machine, &k.id, &n.at, &kind, &n.task.signal, &class, &n.victim, &n.task.victim, &n.task.began, &n.mean, &n.dev, &rounds); err != nil {
			return err
		}
		if rounds == nil || n.kind.UnmarshalText([]byte(kind)) != nil || json.Unmarshal([]byte(*rounds), &n.rounds) != nil || n.at < all[k].at {
			return nil // a document that no agent of this version wrote, or an older state
		}
		n.band, n.task.machine = bandOfClass(class), k.machine
		all[k] = n
		return nil
	})
	var caps []cappedTask
	for _, k := range sortedKeys(all) {
		n := all[k]
		if !n.kind.MayBeANeighbour() {
			continue
		}
		for _, r := range n.rounds {
			if r == nil || !e.addRound(n.band, n.victim, n.mean, n.dev, r) {
				continue
			}
			if r.From < n.task.began || r.Ended < r.From || r.Ended > n.at {
				continue // the document of a machine whose root lies; such a time may be none that SQL has
			}
			c := n.task
			c.suspect, c.from, c.ended, c.round = r.Suspect.Name.Text(), r.From, r.Ended, len(e.rounds)-1
			caps = append(caps, c)
		}
	}
	slices.SortStableFunc(caps, func(a, b cappedTask) int { return cmp.Compare(a.from, b.from) })
	return caps, err
}

const (
	// machinesSQL counts tasks and threads of each machine over an hour, and the ticks of the task that has most, with the
	// time (ms) from the first to the last of them. Signals of the machine itself, and the CPU time outside any task, are
	// of no task.
	machinesSQL = `SELECT machine, count(*), sum(threads), max(ticks), arg_max(span, 10000000 * ticks - span) FROM (
  SELECT machine, task, avg(threads) AS threads, count(DISTINCT ts) AS ticks, epoch_ms(max(ts)) - epoch_ms(min(ts)) AS span FROM samples
  WHERE ts > {from} AND ts <= {to} AND signal NOT IN ('probe', 'steal') AND task <> '(other)' GROUP BY machine, task
) GROUP BY machine`
	newestSQL = `SELECT epoch_ms(max(ts)) FROM samples WHERE ts > {from} AND ts <= {to}`
	// marksSQL lists the runs of agents: their names, the number of the newest batch of samples, and
	// when it came.
	marksSQL = `SELECT boot, batch, epoch_ms(last_seen) FROM machines WHERE stream = 'samples' AND last_seen > {from}`
)

// readMachines reads how many tasks and threads machines had in the newest hour (figure 1),
// and the machine-days that were watched.
func (e *Evaluation) readMachines(t *tables) error {
	c := e.cluster
	for to := t.to; to > t.from && c.At == 0; to = to.Add(-day) {
		from := max(t.from, to.Add(-day))
		err := t.once(newestSQL, from, to, func(row []json.RawMessage) error { return scan(row, &c.At) })
		if err != nil {
			return err
		}
	}
	if c.At == 0 {
		return nil // no samples
	}
	var tasks, threads, lengths []float64 // lengths of ticks, ms
	err := t.once(machinesSQL, max(t.from, c.At.Add(-time.Hour)), c.At, func(row []json.RawMessage) error {
		var machine string
		var n, ticks, span float64
		var sum *float64
		if err := scan(row, &machine, &n, &sum, &ticks, &span); err != nil {
			return err
		}
		if tasks = append(tasks, n); ticks > 1 {
			lengths = append(lengths, span/(ticks-1))
		}
		if sum != nil {
			threads = append(threads, *sum)
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.Machines, c.Tasks, c.Threads = len(tasks), quantiles("", "tasks", tasks), quantiles("", "threads", threads)
	if tick := float64(median(lengths)); tick > 0 {
		return e.readDays(t, sample.Millis(tick))
	}
	return nil
}

// readDays sums the time that agents watched, as their marks say: a run that has sent n
// batches has watched for the last n ticks before it was last seen. Of many tasks a tick has several
// batches; but no run has watched since before it began.
func (e *Evaluation) readDays(t *tables, tick sample.Millis) error {
	return t.once(marksSQL, t.from, t.to, func(row []json.RawMessage) error {
		var boot string
		var batch, seen sample.Millis
		if err := scan(row, &boot, &batch, &seen); err != nil {
			return err
		}
		from, to := max(t.from, seen-batch*tick, began(boot)), min(t.to, seen)
		e.Days += float64(max(0, to-from)) / float64(day.Milliseconds())
		return nil
	})
}

// began is when a run began, by its agent's clock, as its name says (bus.OpenUplink); 0 if it does not.
func began(boot string) sample.Millis {
	at, _, dated := strings.Cut(boot, "-")
	ms, err := strconv.ParseInt(at, 36, 64)
	if !dated || err != nil {
		return 0
	}
	return sample.Millis(ms)
}

func bandOfClass(class string) Band {
	if class == sample.LatencySensitive.String() {
		return Production
	}
	return NonProduction
}

func valueOf(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

func sortedKeys[V any](all map[key]V) []key {
	keys := make([]key, 0, len(all))
	for k := range all {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b key) int { return cmp.Or(cmp.Compare(a.machine, b.machine), cmp.Compare(a.id, b.id)) })
	return keys
}
