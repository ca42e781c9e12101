package detect

import (
	"math"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// series is the data of one signal for all tasks over the window: a row per interval, a
// column (slot) per task, so that an analysis reads memory sequentially. Tasks that only sleep
// have slots beyond the columns, and take no memory in rows.
type series struct {
	signal  sample.Signal
	index   map[sample.TaskKey]int
	tasks   []taskState // by slot: first those with columns, then those that only slept
	columns int
	free    []int  // unused columns
	rows    []*row // oldest first
	spare   []*row
	memory  memory // what is older than rows, if it is kept
}

// taskState is the state of one task.
type taskState struct {
	task  sample.Task
	reach sample.Set
	flags sample.Flags // of its newest reading
	used  bool
	*past // nil without a column
}

// past is the state of a task that did more than sleep.
type past struct {
	spec  spec.Spec
	limit float64
	level recentCost // of the costs that are judged
	mild  bool       // limit is lower than usual, because of its level
	unit  unit       // of its own work, in the signal of a queue
	bad   []mark     // of the last OutlierWindow
	// counted: its cost was counted, and is reliable, in the interval that ended at lastCounted,
	// the newest such one.
	counted     bool
	lastCounted sample.Millis
	// trialRequested is when a trial of suspect was requested on this task's behalf; 0 if there was
	// none or a suspect was accused since.
	trialRequested sample.Millis
	trialSuspect   sample.TaskKey
	// heldBy is Reading.HeldBy of the newest interval that a quota explains.
	heldBy string
	// accounts are of the tasks that were served while it waited.
	accounts accounts
}

type mark struct {
	at    sample.Millis
	cause cause
}

type row struct {
	at       sample.Millis
	cost     []float32 // 0 if not counted; reliable where the cause is judged or early
	cause    []cause
	pressure []float32
	misses   []float32 // Reading.Misses; shorter than the others where they are not counted
	held     bool      // some task was limited; it may have ended since
}

func newSeries(sig sample.Signal) *series {
	return &series{signal: sig, index: map[sample.TaskKey]int{}}
}

// begin starts the row of an interval and drops those at or before end; nil if the interval is not
// after the last one. If remembered is before end, dropped rows after remembered move to memory.
func (s *series) begin(at, end, remembered sample.Millis) *row {
	if n := len(s.rows); n > 0 && at <= s.rows[n-1].at {
		return nil
	}
	drop := 0
	for drop < len(s.rows) && s.rows[drop].at <= end {
		drop++
	}
	if remembered < end {
		for _, r := range s.rows[:drop] {
			s.memory.keep(r)
		}
		s.memory.drop(remembered)
	}
	s.spare = append(s.spare, s.rows[:drop]...)
	s.rows = append(s.rows[:0], s.rows[drop:]...)
	var r *row
	if n := len(s.spare); n > 0 {
		r, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		r = &row{}
	}
	clear(r.cost)
	clear(r.cause)
	clear(r.pressure)
	clear(r.misses)
	r.at, r.held = at, false
	r.grow(s.columns)
	s.rows = append(s.rows, r)
	return r
}

// usage, causeOf and costOf are the values of a task, which need not have a column.
func (r *row) usage(slot int) float32  { return valueAt(r.pressure, slot) }
func (r *row) causeOf(slot int) cause  { return valueAt(r.cause, slot) }
func (r *row) costOf(slot int) float32 { return valueAt(r.cost, slot) }

func valueAt[T any](column []T, slot int) (v T) {
	if slot < len(column) {
		v = column[slot]
	}
	return v
}

// anyLimited reports whether a task was limited.
func (r *row) anyLimited() bool { return r.held && slices.Contains(r.cause, limited) }

// limitBegins reports whether quell began to limit a task in the i-th row.
func limitBegins(rows []*row, i, slot int) bool {
	return rows[i].causeOf(slot) == limited && (i == 0 || rows[i-1].causeOf(slot) != limited)
}

// othersBegin reports whether quell began to limit another task in the i-th row too.
func othersBegin(rows []*row, i, slot int) bool {
	for k := range rows[i].cause {
		if k != slot && limitBegins(rows, i, k) {
			return true
		}
	}
	return false
}

// limitsLast reports whether tasks are limited, each of them in all rows, as by an operator for a day.
func (s *series) limitsLast() bool {
	newest := s.rows[len(s.rows)-1]
	for slot, c := range newest.cause {
		if c == limited && slices.ContainsFunc(s.rows, func(r *row) bool { return r.causeOf(slot) != limited }) {
			return false
		}
	}
	return newest.anyLimited()
}

func (r *row) grow(n int) {
	for len(r.cost) < n {
		r.cost = append(r.cost, 0)
		r.cause = append(r.cause, absent)
		r.pressure = append(r.pressure, 0)
	}
}

// miss sets a task's misses.
func (r *row) miss(slot int, perInstruction float64) {
	for len(r.misses) <= slot {
		r.misses = append(r.misses, 0)
	}
	r.misses[slot] = float32(perInstruction)
}

// slot returns the task's slot; that of a new task has no column. The guess is the
// probable slot: the order of tasks mostly stays the same.
func (s *series) slot(t *sample.Task, guess int) int {
	if guess < len(s.tasks) && s.tasks[guess].used && s.tasks[guess].task.Key == t.Key {
		return guess
	}
	if i, ok := s.index[t.Key]; ok {
		return i
	}
	s.tasks = append(s.tasks, taskState{task: *t, used: true})
	s.index[t.Key] = len(s.tasks) - 1
	return len(s.tasks) - 1
}

// quiet reports whether a reading is that of a task without a column: nothing of it is stored.
func (s *series) quiet(r *Reading) bool {
	return !(r.Pressure > 0) && !(r.Misses > 0) && r.Flags&sample.Capped == 0 &&
		(math.IsNaN(r.Cost) || r.Cost == 0 && !s.signal.Active(r.CPU, r.Rate, r.Cost))
}

// column gives a task without a column one, and returns its new slot.
func (s *series) column(slot int) int {
	t := s.tasks[slot]
	t.past = &past{}
	i := s.columns
	if n := len(s.free); n > 0 {
		i, s.free = s.free[n-1], s.free[:n-1]
		s.remove(slot)
	} else {
		s.put(slot, s.tasks[i])
		s.columns++
		for _, r := range s.rows {
			r.grow(s.columns)
		}
	}
	s.put(i, t)
	return i
}

func (s *series) put(slot int, t taskState) {
	s.tasks[slot] = t
	s.index[t.task.Key] = slot
}

// remove removes a slot without a column; the last one takes its place.
func (s *series) remove(slot int) {
	last := len(s.tasks) - 1
	if slot != last {
		s.put(slot, s.tasks[last])
	}
	s.tasks[last] = taskState{}
	s.tasks = s.tasks[:last]
}

// sinceTrial returns the time from the first interval after a task's newest hold to the
// newest interval; false if the hold has not ended, or if no hold began within the duration
// soon after the time asked.
func (s *series) sinceTrial(slot int, asked sample.Millis, soon time.Duration) (time.Duration, bool) {
	end := 0 // the first row after the newest hold
	for i, r := range s.rows {
		switch {
		case r.at <= asked:
		case r.causeOf(slot) == limited:
			end = i + 1
		case end == 0 && r.at.Sub(asked) >= soon:
			return 0, false
		}
	}
	if n := len(s.rows); end > 0 && end < n {
		return s.rows[n-1].at.Sub(s.rows[end].at), true
	}
	return 0, false
}

// reset forgets a task's costs and outliers, but not its usage.
func (s *series) reset(slot int) {
	if slot >= s.columns {
		return
	}
	t := &s.tasks[slot]
	t.bad, t.trialRequested, t.accounts, t.level, t.unit = t.bad[:0], 0, accounts{}, recentCost{}, unit{}
	t.counted = false
	for _, r := range s.rows {
		if r.cause[slot] != limited {
			r.cause[slot], r.cost[slot] = absent, 0
		}
	}
	s.memory.forget(slot, false)
}

// forget frees the task's slot.
func (s *series) forget(k sample.TaskKey) {
	i, ok := s.index[k]
	if !ok {
		return
	}
	delete(s.index, k)
	if i >= s.columns {
		s.remove(i)
		return
	}
	s.reset(i)
	for _, r := range s.rows {
		r.pressure[i], r.cause[i], r.cost[i] = 0, absent, 0
	}
	s.memory.forget(i, true)
	s.tasks[i] = taskState{}
	s.free = append(s.free, i)
}

// within returns the rows after from up to and including to.
func (s *series) within(from, to sample.Millis) []*row {
	first := 0
	for first < len(s.rows) && s.rows[first].at <= from {
		first++
	}
	last := len(s.rows)
	for last > first && s.rows[last-1].at > to {
		last--
	}
	return s.rows[first:last]
}

// Point is one interval of a task's history.
type Point struct {
	At       sample.Millis
	Cost     float64 // NaN where it does not count (Verdict.Counts)
	Pressure float64
	Misses   float64 // Reading.Misses
}

// Window returns the history of a task over a window and since then, oldest first; nil for a task or
// signal that is not known. The window ends with the newest interval in which no task was limited.
func (d *Detector) Window(sig sample.SignalName, k sample.TaskKey) []Point {
	s := d.series[sig]
	if s == nil {
		return nil
	}
	i, ok := s.index[k]
	if !ok {
		return nil
	}
	newest, free := s.rows[len(s.rows)-1].at, s.rows[len(s.rows)-1].at
	for _, r := range slices.Backward(s.rows) {
		if !r.anyLimited() {
			free = r.at
			break
		}
	}
	rows := s.within(free.Add(-d.params.Window), newest)
	points := make([]Point, len(rows))
	for n, r := range rows {
		points[n] = Point{At: r.at, Cost: math.NaN(), Pressure: float64(r.usage(i))}
		if r.causeOf(i).judged() {
			points[n].Cost = float64(r.cost[i])
		}
		if i < len(r.misses) {
			points[n].Misses = float64(r.misses[i])
		}
	}
	return points
}
