package agent

import (
	"errors"
	"fmt"
	"strings"

	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// scheduler decides which tasks each source counts.
type scheduler struct {
	base
	all     []*sourceState
	sources []*sourceState // of all, those that count tasks
	number  uint64         // of windows opened
}

// sourceState is a source, and what is known of it as of the newest window.
type sourceState struct {
	counter.Source                       // nil if it measures the machine
	machine        counter.MachineSource // nil if it counts tasks
	info           counter.Info
	signal         sample.Signal
	tax            overhead
	totals         counter.Totals

	// How its seats were assigned:
	eligible []*task // tasks that it could count
	capacity int     // seats that it has for them; claimed if they suffice
	taken    int
	wait     int // number of windows within which every claimant is counted
	// coverage is the share of their windows in which those claimants were counted; 1
	// if there are none.
	coverage float64
}

func newScheduler(b base) *scheduler {
	sc := &scheduler{base: b}
	add := func(s *sourceState, info counter.Info) {
		s.info, s.coverage = info, 1
		s.signal, _ = sample.LookupSignal(info.Signal)
		sc.all = append(sc.all, s)
	}
	for _, s := range b.Sources {
		add(&sourceState{Source: s}, s.Info())
	}
	sc.sources = sc.all
	for _, s := range b.MachineSources {
		add(&sourceState{machine: s}, s.Info())
	}
	return sc
}

// start starts counting.
func (s *sourceState) start() error {
	if s.machine != nil {
		return s.machine.Start()
	}
	return s.Start()
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
func (sc *scheduler) budget(need int) budget {
	if sc.Descriptors == nil {
		return budget{free: -1, keep: true}
	}
	open, limit, err := sc.Descriptors()
	sc.health.degrade("counting file descriptors", err)
	if err != nil {
		return budget{free: -1, keep: true}
	}
	held := 0
	for _, t := range sc.tasks.order {
		if t.ended {
			continue
		}
		held += t.cgroup.OpenFiles()
		for i, s := range sc.sources {
			if t.seats[i].counting {
				held += s.info.IdleFDs
			}
		}
	}
	b := budget{limit: limit, free: max(0, limit-reserve(limit)-max(0, open-held))}
	b.keep = need+keptFiles*len(sc.tasks.byKey) <= b.free
	return b
}

// schedule decides, before a window opens, which tasks each source counts in it.
// Counters are opened here and not when a task is found, so that a task that ends
// before the next window costs none.
func (sc *scheduler) schedule(roles map[sample.TaskKey]plan.Role) {
	sc.number++
	sc.tasks.settle() // no task in it has ended
	rankAll(sc.tasks.order, roles)
	each, need := 0, 0
	for i, s := range sc.sources {
		s.info = s.Info() // the CPUs may have changed
		s.eligible = s.eligible[:0]
		all := s.countsSuspects()
		for _, t := range sc.tasks.order {
			if (all || t.judges(s.info.Signal)) && !t.seats[i].unsupported {
				s.eligible = append(s.eligible, t)
			}
		}
		if n := len(s.eligible); n > 0 {
			each += s.info.WindowFDs
			need += s.info.WindowFDs * n
		}
	}
	b := sc.budget(need)
	for _, t := range sc.tasks.order {
		if err := t.cgroup.KeepOpen(b.keep); err != nil {
			t.notes[noteUsage] = err.Error()
		}
	}
	for i, s := range sc.sources {
		seats := len(s.eligible)
		if s.info.WindowFDs > 0 && b.free >= 0 && need > b.free {
			seats = min(seats, b.free/each)
		}
		if s.info.MaxTasks > 0 {
			seats = min(seats, s.info.MaxTasks)
		}
		sc.seatSource(i, s, seats)
	}
	sc.health.degrade("file descriptors", b.shortage(need, each, sc.sources))
}

// countsSuspects reports whether a source follows also tasks that its signal does not
// judge: only the source knows which tasks they share its resource with, or which tasks
// they serve.
func (s *sourceState) countsSuspects() bool {
	return s.info.Accounts || !s.signal.Domain.OfCPUs()
}

// shortage says how many descriptors are missing and how to fix that.
func (b budget) shortage(need, each int, sources []*sourceState) error {
	if b.free < 0 || need <= b.free {
		return nil
	}
	var text []string
	for _, s := range sources {
		if s.capacity < len(s.eligible) {
			text = append(text, fmt.Sprintf("%s %d of %d", s.info.Signal, s.capacity, len(s.eligible)))
		}
	}
	// The reserve is 64 and a sixteenth of the limit.
	want := (b.limit + need - b.free) * 16 / 15
	return fmt.Errorf("the limit of %d is too low to count every task in every window (%d for each): tasks take turns, %s at once; raise the limit (LimitNOFILE) to %d",
		b.limit, each, strings.Join(text, ", "), want+want/8)
}

// rankAll ranks the tasks by how much their cost is needed.
func rankAll(tasks []*task, roles map[sample.TaskKey]plan.Role) {
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
func (sc *scheduler) seatSource(i int, s *sourceState, seats int) {
	turn := max(1, sc.Config.Detect.Outliers)
	n := len(s.eligible)
	s.capacity, s.taken, s.wait = seats, 0, min(1, n)
	var chosen []bool // nil: all
	if seats < n {
		chosen, s.wait = choose(i, s, seats, turn)
	}
	var windows, counted uint64
	full := false // further attempts would fail for the same reason
	for j, t := range s.eligible {
		st := &t.seats[i]
		if !st.counting && !full && (chosen == nil || chosen[j]) {
			var limit *counter.FDLimitError
			err := sc.seatTask(i, t)
			full = errors.As(err, &limit)
		}
		st.slotRequest = st.slotRequest.next(st.counting, sc.number, turn)
		st.windows++
		if st.counting && !s.tax.paused {
			s.taken++
			st.countedWindows++
		}
		windows, counted = windows+st.windows, counted+st.countedWindows
	}
	s.coverage = 1
	if windows > 0 {
		s.coverage = float64(counted) / float64(windows)
	}
}

// choose selects the tasks that are counted if there are too few seats, and returns in how
// many windows each is counted at least once. Tasks that lose their seat free it at once.
func choose(i int, s *sourceState, seats, turn int) (chosen []bool, wait int) {
	all := make([]slotRequest, len(s.eligible))
	var n [numRanks]int
	for j, t := range s.eligible {
		all[j] = t.seats[i].slotRequest
		n[all[j].rank]++
	}
	chosen = make([]bool, len(all))
	for _, j := range rotate(all, seats, turn) {
		chosen[j] = true
	}
	for r := range n {
		if w := longestWait(n, priority(r), seats, turn); n[r] > 0 {
			wait = max(wait, w)
		}
	}
	for j, t := range s.eligible {
		if st := &t.seats[i]; st.counting && !chosen[j] {
			s.Remove(t.Key, 0)
			st.counting = false
		}
	}
	return chosen, wait
}

// seatTask makes a source follow a task.
func (sc *scheduler) seatTask(i int, t *task) error {
	s, st := sc.sources[i], &t.seats[i]
	err := s.Add(t.target())
	st.counting = err == nil
	if err == nil {
		st.lastErr = ""
		return nil
	}
	if st.lastErr == "" {
		sc.stats.addFailed[s.info.Signal]++
		sc.Log.Debug("task not counted", "task", t.Name, "signal", s.info.Signal, "reason", err)
	}
	st.lastErr = err.Error()
	var missing *counter.NotSupportedError
	st.unsupported = errors.Is(err, counter.ErrNoPerfDir) || errors.As(err, &missing)
	return err
}

// removeFromSources stops following a task in all sources; what they counted in the open window
// becomes its final readings.
func (sc *scheduler) removeFromSources(t *task) {
	t.final = map[sample.SignalName]counter.Reading{}
	for i, s := range sc.sources {
		if !t.seats[i].counting {
			continue
		}
		t.seats[i].counting = false
		if r, ok := s.Remove(t.Key, t.usageNow.CPU-t.usageStart.CPU); ok {
			t.final[s.info.Signal] = r
		}
	}
}

// updateOverheads computes what each source would cost in the next window, from the context
// switches of the window that has ended, or before the first one of all time since the machine
// was booted, which lasted wall seconds; cpus is how many are online.
func (sc *scheduler) updateOverheads(from, to host.CPUTimes, wall float64, cpus int) {
	if from.Switches == 0 || to.Switches < from.Switches || wall <= 0 {
		return // the rate is not known: nothing changes
	}
	rate := float64(to.Switches-from.Switches) / wall
	duty := min(1, sc.Config.Sampling.Duration.Seconds()/sc.Config.Sampling.Period.Seconds())
	limit := sc.Config.Sampling.MaxOverhead
	for _, s := range sc.sources {
		s.tax.paused = s.tax.paused && sc.number > 1 // the rate since the boot decides on the first window only
		s.tax = s.tax.next(s.info.SwitchOverhead, rate, cpus, duty, limit)
		var err error
		if s.tax.paused {
			err = pausedError(s.info.Signal, s.info.SwitchOverhead, limit)
		}
		sc.health.degrade("overhead of "+string(s.info.Signal), err)
	}
}
