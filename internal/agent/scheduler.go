package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// slot is the state of a task for one source.
type slot struct {
	slotRequest
	counting    bool   // the source follows the task
	lastErr     string // why the last attempt to follow it failed; "" if it succeeded
	unsupported bool   // every further attempt would fail too
	// Windows in which the task was present, and those of them in which it was counted:
	// their ratio is the task's coverage in time.
	windows, countedWindows uint64
}

// allocation is how a source's seats were assigned for the newest window.
type allocation struct {
	signal   sample.SignalName
	eligible int // tasks that it could count
	capacity int // seats that it has for them; claimed if they suffice
	taken    int
	wait     int // number of windows within which every claimant is counted
	// coverage is the share of their windows in which those claimants were counted; 1
	// if there are none.
	coverage float64
}

// reserve is how many descriptors are reserved for everything except tasks: clients of
// the socket and of /metrics, walks, logs, progress files while they are read.
func reserve(limit int) int { return 64 + limit/16 }

// keptFiles is how many files are kept open per task: usage, throttling and pressure.
const keptFiles = 3

// budget is how many descriptors tasks may use.
type budget struct {
	free  int  // for tasks, -1: no limit
	limit int  // RLIMIT_NOFILE
	keep  bool // all tasks can keep their files
}

// budget computes how many descriptors the process may open for tasks, after those that
// it has open for other purposes.
func (a *Agent) budget(need int) budget {
	if a.Descriptors == nil {
		return budget{free: -1, keep: true}
	}
	open, limit, err := a.Descriptors()
	a.degrade("counting file descriptors", err)
	if err != nil {
		return budget{free: -1, keep: true}
	}
	held := 0
	for _, t := range a.roster.order {
		if t.ended {
			continue
		}
		held += t.cgroup.OpenFiles()
		for i, s := range a.Sources {
			if t.seats[i].counting {
				held += s.Info().IdleFDs
			}
		}
	}
	b := budget{limit: limit, free: max(0, limit-reserve(limit)-max(0, open-held))}
	b.keep = need+keptFiles*len(a.tasks) <= b.free
	return b
}

// schedule decides, before a window opens, which tasks each source counts in it.
// Counters are opened here and not when a task is found, so that a task that ends
// before the next window costs none.
func (a *Agent) schedule() {
	a.window.number++
	a.roster.settle() // no task in it has ended
	a.rankAll(a.roster.order)
	if a.eligible == nil {
		a.eligible = make([][]*task, len(a.Sources))
	}
	claims, each, need := a.eligible, 0, 0
	for i, s := range a.Sources {
		info := s.Info()
		claims[i] = claims[i][:0]
		all := countsSuspects(&info)
		for _, t := range a.roster.order {
			if (all || t.judges(info.Signal)) && !t.seats[i].unsupported {
				claims[i] = append(claims[i], t)
			}
		}
		window := info.WindowFDs
		if window > 0 && len(claims[i]) > 0 {
			each += window
			need += window * len(claims[i])
		}
	}
	b := a.budget(need)
	for _, t := range a.roster.order {
		if err := t.cgroup.KeepOpen(b.keep); err != nil {
			t.notes[noteUsage] = err.Error()
		}
	}
	a.allocations = a.allocations[:0]
	for i, s := range a.Sources {
		info, seats := s.Info(), len(claims[i])
		if info.WindowFDs > 0 && b.free >= 0 && need > b.free {
			seats = min(seats, b.free/each)
		}
		if info.MaxTasks > 0 {
			seats = min(seats, info.MaxTasks)
		}
		a.allocations = append(a.allocations, a.seatSource(i, info.Signal, claims[i], seats))
	}
	for _, s := range a.MachineSources { // they count no task
		a.allocations = append(a.allocations, allocation{signal: s.Info().Signal, coverage: 1})
	}
	a.degrade("file descriptors", b.shortage(need, each, a.allocations))
}

// countsSuspects reports whether a source follows also tasks that its signal does not
// judge: only the source knows which tasks they share its resource with, or which tasks
// they serve.
func countsSuspects(info *counter.Info) bool {
	sig, ok := sample.LookupSignal(info.Signal)
	return ok && (info.Accounts || !sig.Domain.OfCPUs())
}

// shortage says how many descriptors are missing and how to fix that.
func (b budget) shortage(need, each int, seatings []allocation) error {
	if b.free < 0 || need <= b.free {
		return nil
	}
	var text []string
	for _, g := range seatings {
		if g.capacity < g.eligible {
			text = append(text, fmt.Sprintf("%s %d of %d", g.signal, g.capacity, g.eligible))
		}
	}
	// The reserve is 64 and a sixteenth of the limit.
	want := (b.limit + need - b.free) * 16 / 15
	return fmt.Errorf("the limit of %d is too low to count every task in every window (%d for each): tasks take turns, %s at once; raise the limit (LimitNOFILE) to %d",
		b.limit, each, strings.Join(text, ", "), want+want/8)
}

// rankAll ranks the tasks by how much their cost is needed.
func (a *Agent) rankAll(tasks []*task) {
	roles := a.pipeline.Roles()
	for _, t := range tasks {
		r := ordinary
		switch {
		case roles[t.Key] == plan.Victim:
			r = urgent
		case t.MayBeHelped() || roles[t.Key] == plan.Suspect:
			r = preferred
		}
		for i := range t.seats {
			t.seats[i].rank = r
		}
	}
}

// seatSource assigns the seats of one source to the tasks in turns.
func (a *Agent) seatSource(i int, sig sample.SignalName, claims []*task, seats int) allocation {
	turn := max(1, a.config.Detect.Outliers)
	g := allocation{signal: sig, eligible: len(claims), capacity: seats, wait: min(1, len(claims))}
	var chosen []bool // nil: all
	if seats < len(claims) {
		chosen, g.wait = a.choose(i, claims, seats, turn)
	}
	var windows, counted uint64
	full := false // further attempts would fail for the same reason
	for j, t := range claims {
		st := &t.seats[i]
		if !st.counting && !full && (chosen == nil || chosen[j]) {
			var limit *counter.FDLimitError
			err := a.seatTask(i, t)
			full = errors.As(err, &limit)
		}
		st.slotRequest = st.slotRequest.next(st.counting, a.window.number, turn)
		st.windows++
		if st.counting && !a.taxes[i].paused {
			g.taken++
			st.countedWindows++
		}
		windows, counted = windows+st.windows, counted+st.countedWindows
	}
	g.coverage = 1
	if windows > 0 {
		g.coverage = float64(counted) / float64(windows)
	}
	return g
}

// choose selects the tasks that are counted if there are too few seats, and returns in how
// many windows each is counted at least once. Tasks that lose their seat free it at once.
func (a *Agent) choose(i int, claims []*task, seats, turn int) (chosen []bool, wait int) {
	all := make([]slotRequest, len(claims))
	var n [numRanks]int
	for j, t := range claims {
		all[j] = t.seats[i].slotRequest
		n[all[j].rank]++
	}
	chosen = make([]bool, len(claims))
	for _, j := range rotate(all, seats, turn) {
		chosen[j] = true
	}
	for r := range n {
		if w := longestWait(n, priority(r), seats, turn); n[r] > 0 {
			wait = max(wait, w)
		}
	}
	for j, t := range claims {
		if st := &t.seats[i]; st.counting && !chosen[j] {
			a.Sources[i].Remove(t.Key, 0)
			st.counting = false
		}
	}
	return chosen, wait
}

// seatTask makes a source follow a task.
func (a *Agent) seatTask(i int, t *task) error {
	s, st := a.Sources[i], &t.seats[i]
	err := s.Add(a.target(t))
	st.counting = err == nil
	if err == nil {
		st.lastErr = ""
		return nil
	}
	if st.lastErr == "" {
		a.stats.addFailed[s.Info().Signal]++
		a.Log.Debug("task not counted", "task", t.Name, "signal", s.Info().Signal, "reason", err)
	}
	st.lastErr = err.Error()
	var missing *counter.NotSupportedError
	st.unsupported = errors.Is(err, counter.ErrNoPerfDir) || errors.As(err, &missing)
	return err
}

// removeFromSources stops following a task in all sources; what they counted in the open window
// becomes its final readings.
func (a *Agent) removeFromSources(t *task) {
	t.final = map[sample.SignalName]counter.Reading{}
	for i, s := range a.Sources {
		if !t.seats[i].counting {
			continue
		}
		t.seats[i].counting = false
		if r, ok := s.Remove(t.Key, t.usageNow.CPU-t.usageStart.CPU); ok {
			t.final[s.Info().Signal] = r
		}
	}
}

// signals is Parts.Signals with the result of the newest window.
func (a *Agent) signals() []api.SignalStatus {
	all := slices.Clone(a.Signals)
	for _, g := range a.allocations {
		j := slices.IndexFunc(all, func(s api.SignalStatus) bool { return s.Signal == g.signal })
		if j >= 0 {
			all[j].Tasks, all[j].Counted, all[j].Within, all[j].Coverage = g.eligible, g.taken, g.wait, g.coverage
		}
	}
	return all
}

// note says what is not known of a task, and why.
func (a *Agent) note(t *task) string {
	var said []string
	for _, n := range t.notes {
		if n != "" {
			said = append(said, n)
		}
	}
	for i, s := range a.Sources {
		switch st := &t.seats[i]; {
		case st.lastErr != "":
			said = append(said, string(s.Info().Signal)+": "+st.lastErr)
		case st.countedWindows < st.windows:
			said = append(said, fmt.Sprintf("%s: counted in %d of %d windows", s.Info().Signal, st.countedWindows, st.windows))
		}
	}
	return strings.Join(said, "; ")
}
