package observe

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// part is one part of the run while it is observed.
type part struct {
	name string
	env  lab.Environment
	cpus sample.Set
	host *host.Host

	dirs map[string]string // of its cgroup, by v1 controller; "" is cgroup2
	psi  *host.Cgroup      // nil where it has none of its own in cgroup2
	// Run delay of threads, by their IDs. Threads that have ended keep their value.
	delays map[int]time.Duration
	ended  time.Duration

	events  []*eventCounter
	signals []string
	missing map[string]string
	waited  runqWait           // for the signal runq
	costs   map[string]float64 // of the signals that sources count, in the window
	tallied []tallied          // in a run with steps
}

// tallied is what a part's events had counted at a time after the run's start.
type tallied struct {
	at     time.Duration
	totals map[string]float64
}

// runqWait is how long a part's threads waited for a CPU and how long they had
// one, over the steady window.
type runqWait struct {
	on         bool
	delay, cpu time.Duration // at the window's beginning, then in it
	err        error
}

// runqName is the signal that needs no event: run-queue wait ÷ CPU time, from schedstat.
// Unlike the agent's signal it includes waits behind the part's own threads, so both are
// equal only for parts with one thread.
const runqName = string(sample.RunQ)

// eventCounter is an event of a part.
type eventCounter struct {
	name        string
	always      bool // it also counts outside the window
	tallies     []*counter.EventCounter
	total       float64 // since it was opened, or in the window
	atOpen      float64
	coverage    float64
	windowTotal float64 // in the window
	done        bool
}

// signal is one of quell's own cost signals, as a ratio of two events of the same part
// and window, exactly as the agent counts it.
type signal struct {
	cost, work string
	scale      float64 // converts the ratio to the signal's unit
}

func eventSignals() map[string]signal {
	return map[string]signal{
		string(sample.CPI): {"cycles", "instructions", 1},
		string(sample.CPS): {"task-clock", "raw_syscalls:sys_enter", 1e-9},
	}
}

// everySecond are the events that are in the samples of each second, with the prefixes of
// their names there.
var everySecond = map[string]string{"context-switches": "sched.switches.", "migrations": "sched.migrations."}

// always are the events counted in addition to those that a study asks for. They are the
// kernel's own and cost very little.
var always = []string{"context-switches", "migrations", "page-faults", "task-clock"}

func newPart(name string, env lab.Environment, cpus sample.Set, o *Options) *part {
	p := &part{name: name, env: env, cpus: cpus, host: o.Host, delays: map[int]time.Duration{}, missing: map[string]string{}, costs: map[string]float64{}}
	threads, err := env.Threads()
	if err != nil || len(threads) == 0 {
		threads = nil
	}
	p.dirs = cgroups(o.Host, threads)
	if unified := p.dirs[""]; unified != "" {
		if rel, err := filepath.Rel(o.Host.Layout().Unified, unified); err == nil {
			if p.psi, err = o.Host.OpenCgroup(sample.Unified, "/"+rel); err != nil {
				p.psi = nil
			}
		}
	}
	wanted := slices.Clone(always)
	ask := slices.Clone(o.Observe.Events)
	for _, name := range o.Observe.Signals {
		if name == runqName {
			p.signals, p.waited.on = append(p.signals, name), true
		} else if s, ok := eventSignals()[name]; ok {
			p.signals = append(p.signals, name)
			ask = append(ask, s.cost, s.work)
		} else if sourceSignals()[name] == nil { // counted for all parts at once
			p.setMissing(name, "the lab counts "+strings.Join(signalNames(), ", ")+" only; quell-agent records other signals")
		}
	}
	for _, name := range ask {
		if !slices.Contains(wanted, name) {
			wanted = append(wanted, name)
		}
	}
	for _, name := range wanted {
		c, err := p.open(name, threads)
		if err != nil {
			p.missing[name] = reason(err)
			continue
		}
		p.events = append(p.events, c)
	}
	return p
}

// reason is why an event is not counted, with the remedy if one is known.
func reason(err error) string {
	var e *counter.NotSupportedError
	if errors.As(err, &e) && e.Remedy != "" {
		return e.Error() + "; what to do: " + e.Remedy
	}
	return err.Error()
}

// cgroups finds the cgroups, one in each hierarchy, that hold all of the
// threads and not the lab itself.
func cgroups(h *host.Host, threads []int) map[string]string {
	var common map[string]string
	for _, tid := range threads {
		paths := pathsOf(h, strconv.Itoa(tid))
		if paths == nil { // it has ended
			continue
		}
		if common == nil {
			common = paths
			continue
		}
		for controller, p := range common {
			common[controller] = shared(p, paths[controller])
		}
	}
	own := pathsOf(h, "self")
	dirs := map[string]string{}
	layout := h.Layout()
	for controller, p := range common {
		mount, ok := layout.V1[controller]
		if controller == "" {
			mount, ok = layout.Unified, layout.Unified != ""
		}
		if ok && p != "" && shared(p, own[controller]) != p {
			dirs[controller] = filepath.Join(mount, p)
		}
	}
	return dirs
}

// pathsOf reads /proc/PID/cgroup: paths by controller, "" being cgroup2.
func pathsOf(h *host.Host, pid string) map[string]string {
	text, err := h.ReadValue("/proc/" + pid + "/cgroup")
	if err != nil {
		return nil
	}
	return maps.Collect(host.ProcCgroups([]byte(text)))
}

// shared is the longest common path of both.
func shared(a, b string) string {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	n := 0
	for n < len(x) && n < len(y) && x[n] == y[n] {
		n++
	}
	if n <= 1 {
		return "/"
	}
	return strings.Join(x[:n], "/")
}

// open opens an event for the part's cgroup or, where it has no cgroup of its own, for
// its threads.
func (p *part) open(name string, threads []int) (*eventCounter, error) {
	e, err := counter.LookupEvent(name)
	if err != nil {
		return nil, err
	}
	c := &eventCounter{name: name, always: everySecond[name] != "", coverage: 1}
	dir := p.dirs[""]
	if _, ok := p.host.Layout().V1["perf_event"]; ok {
		dir = p.dirs["perf_event"]
	}
	switch {
	case dir != "":
		t, err := e.OpenCgroup(p.host.Path(dir), p.cpus)
		if err != nil {
			return nil, err
		}
		c.tallies = append(c.tallies, t)
	case len(threads) > 0:
		for _, tid := range threads {
			t, err := e.OpenThread(tid)
			if err != nil {
				c.close()
				return nil, err
			}
			c.tallies = append(c.tallies, t)
		}
	default:
		return nil, errNoPart
	}
	if c.always {
		return c, c.toggle(true)
	}
	return c, nil
}

func (c *eventCounter) toggle(on bool) error {
	var all []error
	for _, t := range c.tallies {
		all = append(all, t.Toggle(on))
	}
	return errors.Join(all...)
}

// read adds the counts since the last reading.
func (c *eventCounter) read() error {
	for _, t := range c.tallies {
		n, coverage, err := t.Read()
		if err != nil {
			return err
		}
		c.total += n
		c.coverage = min(c.coverage, coverage)
	}
	return nil
}

func (c *eventCounter) close() {
	for _, t := range c.tallies {
		t.Close()
	}
	c.tallies = nil
}

// scheduling adds the part's context switches and migrations so far, if they are counted.
func (p *part) scheduling(to map[string]float64) {
	for _, c := range p.events {
		if !c.always || c.tallies == nil {
			continue
		}
		if err := c.read(); err != nil {
			p.dropEvent(c, err)
			continue
		}
		to[everySecond[c.name]+p.name] = c.total
	}
}

func (p *part) dropEvent(c *eventCounter, err error) {
	p.missing[c.name] = err.Error()
	c.close()
}

// window starts and stops the counters of the steady window.
func (p *part) window(open bool) error {
	if p.waited.on {
		p.wait(open)
	}
	for _, c := range p.events {
		if c.tallies == nil {
			continue
		}
		var err error
		if !c.always {
			err = c.toggle(open)
		}
		if err == nil {
			err = c.read()
		}
		if err != nil {
			p.dropEvent(c, err)
			continue
		}
		if open {
			c.atOpen, c.coverage = c.total, 1
		} else {
			c.windowTotal, c.done = c.total-c.atOpen, true
		}
	}
	return nil
}

// tally reads all events.
func (p *part) tally(at time.Duration) {
	now := tallied{at, map[string]float64{}}
	for _, c := range p.events {
		if c.tallies == nil {
			continue
		}
		if err := c.read(); err != nil {
			p.dropEvent(c, err)
			continue
		}
		now.totals[c.name] = c.total
	}
	p.tallied = append(p.tallied, now)
}

// inSteps are the events between the cuts of each step, where readings before and after
// both are less than 2 s from each other.
func (p *part) inSteps(steps []study.Step) (all []map[string]float64) {
	at := func(name string, t time.Duration) (float64, bool) {
		for i := 1; i < len(p.tallied); i++ {
			a, b := p.tallied[i-1], p.tallied[i]
			if t < a.at || t > b.at || b.at <= a.at || b.at-a.at > 2*time.Second {
				continue
			}
			before, ok := a.totals[name]
			after, ok2 := b.totals[name]
			return before + (after-before)*(t-a.at).Seconds()/(b.at-a.at).Seconds(), ok && ok2
		}
		return 0, false
	}
	for _, s := range steps {
		one := map[string]float64{}
		for _, c := range p.events {
			from, ok := at(c.name, s.From+s.Settle)
			to, ok2 := at(c.name, s.To-s.Trail)
			if ok && ok2 {
				one[c.name] = to - from
			}
		}
		all = append(all, one)
	}
	return all
}

// wait reads how long the part has waited and run. Its CPU time is exact while it is
// stopped, otherwise exact to one tick.
func (p *part) wait(open bool) {
	w, delay := &p.waited, p.delay()
	u, err := p.env.Usage()
	if w.err = errors.Join(w.err, err); open {
		w.delay, w.cpu = delay, u.Total()
		return
	}
	w.delay, w.cpu = delay-w.delay, u.Total()-w.cpu
}

// leastCoverage is the smallest share of the window in which an event must have had a
// counter for its count to be valid.
const leastCoverage = 0.1

// counts are the events of the steady window, with signal.NAME for the signals that the
// study asks for, and the reasons why others are missing. Where an event shared its
// counter with others, NAME/coverage is the share of the time in which it had the
// counter.
func (p *part) counts() (events map[string]float64, missing map[string]string) {
	events, missing = map[string]float64{}, p.missing
	for _, c := range p.events {
		switch {
		case !c.done:
		case c.coverage < leastCoverage:
			missing[c.name] = fmt.Sprintf("counted for only %.0f %% of the time: select fewer events", c.coverage*100)
		default:
			events[c.name] = c.windowTotal
			if c.coverage < 0.9999 {
				events[c.name+"/coverage"] = c.coverage
			}
		}
	}
	for _, name := range p.signals {
		s := eventSignals()[name]
		if w := &p.waited; name == runqName {
			if w.err == nil && w.cpu > 0 {
				events[signalName(name)] = w.delay.Seconds() / w.cpu.Seconds()
			} else {
				p.setMissing(name, "CPU time could not be read or was 0")
			}
		} else if work := events[s.work]; work > 0 && events[s.cost] > 0 {
			events[signalName(name)] = events[s.cost] / work * s.scale
		} else {
			p.setMissing(name, s.cost+" or "+s.work+" was not counted or was 0")
		}
	}
	for name, cost := range p.costs {
		events[signalName(name)] = cost
	}
	if len(missing) == 0 {
		missing = nil
	}
	if len(events) == 0 {
		events = nil
	}
	return events, missing
}

// stalled is the total pressure of the part's own cgroup on a resource.
func (p *part) stalled(resource string) (time.Duration, bool) {
	if p.psi == nil {
		return 0, false
	}
	d, err := p.psi.Stalled(resource)
	return d, err == nil
}

// delay is how long the part's threads were ready and waited for a CPU: the second field
// of schedstat (scheduler/sched-stats.rst). Threads that began and ended between two
// readings are not counted.
func (p *part) delay() time.Duration {
	threads, err := p.env.Threads()
	if err != nil {
		threads = nil
	}
	there := make(map[int]time.Duration, len(threads))
	sum := time.Duration(0)
	for _, tid := range threads {
		if s, err := host.ReadSchedstat(p.host.Path(fmt.Sprintf("/proc/%d/schedstat", tid))); err == nil {
			there[tid] = time.Duration(s.Wait)
			sum += there[tid]
		}
	}
	for tid, d := range p.delays {
		if now, ok := there[tid]; !ok || now < d {
			p.ended += d
		}
	}
	p.delays = there
	return p.ended + sum
}

func (p *part) close() {
	for _, c := range p.events {
		c.close()
	}
	if p.psi != nil {
		_ = p.psi.Close() // only read from
		p.psi = nil
	}
}

// holds reports whether a process with the given cgroups belongs to the part.
func (p *part) holds(pid int, paths map[string]string) bool {
	layout := p.host.Layout()
	for controller, dir := range p.dirs {
		mount := layout.V1[controller]
		if controller == "" {
			mount = layout.Unified
		}
		own := strings.TrimPrefix(dir, strings.TrimSuffix(mount, "/"))
		if at, ok := paths[controller]; ok {
			return shared(own, at) == own
		}
	}
	threads, err := p.env.Threads()
	return err == nil && slices.Contains(threads, pid)
}
