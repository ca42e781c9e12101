package observe

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/machine/host"
)

// machine is one reading of all cumulative counters.
type machine struct {
	at      time.Time
	busy    time.Duration // of tasks on the parts' CPUs
	irq     time.Duration
	steal   time.Duration
	lab     time.Duration // CPU time of this process
	usage   []lab.Usage   // of the parts
	delay   []time.Duration
	stalled map[string]time.Duration // by name of the sample
	net     map[string]uint64
	swapIn  uint64 // pages
	swapOut uint64
	oomKill uint64
	joules  float64
	switches,
	moves []float64 // of the parts; nil where not counted
}

// read reads the machine. The CPUs' busy time is read before the parts and after them,
// because the lab itself may have to wait in between.
func (o *Observer) read() (machine, error) {
	m := machine{stalled: map[string]time.Duration{}, net: map[string]uint64{}}
	before, err := o.onCPUs(&m)
	if err != nil {
		return m, err
	}
	m.at = time.Now()
	m.lab = ownTime()
	for _, p := range o.parts {
		u, err := p.env.Usage()
		if err != nil {
			return m, fmt.Errorf("read the CPU time of %s: %w", p.name, err)
		}
		m.usage = append(m.usage, u)
	}
	after, err := o.onCPUs(&m)
	if err != nil {
		return m, err
	}
	m.busy = (before + after) / 2
	for _, p := range o.parts {
		if o.wants("schedstat") {
			m.delay = append(m.delay, p.delay())
		}
		switches, moves := p.scheduling()
		m.switches, m.moves = append(m.switches, switches), append(m.moves, moves)
	}
	if o.wants("psi") {
		o.pressure(m.stalled)
	}
	if o.wants("net") {
		m.net = readNet(o.opt.Host)
	}
	o.energy.read(m.at)
	m.joules = o.energy.total()
	return m, m.memory(o.opt.Host)
}

// ownTime is the CPU time of this process.
func ownTime() time.Duration {
	var r unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &r) // fails for no valid arguments (getrusage(2))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// onCPUs returns how long tasks have run on the parts' CPUs, and records interrupts and
// steal.
func (o *Observer) onCPUs(m *machine) (time.Duration, error) {
	times, err := o.opt.Host.CPUTimes()
	if err != nil {
		return 0, err
	}
	var ticks time.Duration
	m.irq, m.steal = 0, 0
	for _, c := range times.CPUs {
		if o.cpus.Has(c.ID) {
			m.irq += c.IRQ + c.SoftIRQ
			m.steal += c.Steal
			ticks += c.User + c.Nice + c.System
		}
	}
	exact, ok := exactTimes(o.opt.Host)
	if !ok {
		return ticks, nil
	}
	ticks = 0
	for _, n := range o.cpus.Numbers() {
		if n < len(exact) {
			ticks += exact[n]
		}
	}
	return ticks, nil
}

// exactTimes reads cpuacct.usage_percpu (cgroup-v1/cpuacct.rst) of all tasks of the
// machine: one number, in ns, for each possible CPU. Only the root of the hierarchy has a
// release_agent. A container sees another directory as its root; that directory must not
// count as the machine.
func exactTimes(h *host.Host) ([]time.Duration, bool) {
	dir, ok := h.Layout().V1["cpuacct"]
	if !ok {
		return nil, false
	}
	if _, err := os.Stat(h.Path(filepath.Join(dir, "release_agent"))); err != nil {
		return nil, false
	}
	text, err := h.ReadValue(filepath.Join(dir, "cpuacct.usage_percpu"))
	if err != nil {
		return nil, false
	}
	var all []time.Duration
	for word := range strings.FieldsSeq(text) {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return nil, false
		}
		all = append(all, time.Duration(n))
	}
	return all, len(all) > 0
}

// resources are those for which the kernel reports pressure.
var resources = [...]string{"cpu", "memory", "io"}

func (o *Observer) pressure(to map[string]time.Duration) {
	for _, r := range resources {
		if p, err := o.opt.Host.PSI(r); err == nil {
			to["psi."+r+".some"] = p.Some.Total
			if r != "cpu" { // psi.rst: it has no meaning for the machine
				to["psi."+r+".full"] = p.Full.Total
			}
		}
		for _, p := range o.parts {
			if d, ok := p.stalled(r); ok {
				to["psi."+r+".some."+p.name] = d
			}
		}
	}
}

// memory reads the counters of swapping and OOM kills in /proc/vmstat (proc(5)).
func (m *machine) memory(h *host.Host) error {
	text, err := h.ReadValue("/proc/vmstat")
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseUint(value, 10, 64)
		switch {
		case err != nil:
		case name == "pswpin":
			m.swapIn = n
		case name == "pswpout":
			m.swapOut = n
		case name == "oom_kill":
			m.oomKill = n
		}
	}
	return nil
}

// readNet reads /proc/net/dev (proc(5)): all interfaces except lo.
func readNet(h *host.Host) map[string]uint64 {
	all := map[string]uint64{}
	text, err := h.ReadValue("/proc/self/net/dev")
	if err != nil {
		return all
	}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		f := strings.Fields(rest)
		if name = strings.TrimSpace(name); !ok || name == "lo" || len(f) < 12 {
			continue
		}
		for what, column := range map[string]int{"rx_bytes": 0, "rx_packets": 1, "rx_dropped": 3, "tx_bytes": 8, "tx_packets": 9, "tx_dropped": 11} {
			if n, err := strconv.ParseUint(f[column], 10, 64); err == nil {
				all["net."+name+"."+what] = n
			}
		}
	}
	return all
}

// values are the rates between two readings.
func (o *Observer) values(v map[string]float64, a, b machine) {
	span := b.at.Sub(a.at).Seconds()
	if span <= 0 {
		return
	}
	rate := func(from, to time.Duration) float64 { return (to - from).Seconds() / span }
	if o.wants("cpu") {
		for i, p := range o.parts {
			u, w := a.usage[i], b.usage[i]
			v["cpu."+p.name] = rate(u.Total(), w.Total())
			v["cpu.user."+p.name] = rate(u.User, w.User)
			v["cpu.system."+p.name] = rate(u.System, w.System)
			v["cpu.throttled."+p.name] = rate(u.Throttled, w.Throttled)
		}
		d := o.between(a, b)
		v["cpu.foreign"], v["cpu.steal"], v["cpu.irq"] = d.foreign, d.steal, d.irq
		v["cpu.lab"] = rate(a.lab, b.lab)
	}
	for i := range min(len(a.delay), len(b.delay)) {
		v["sched.delay."+o.parts[i].name] = rate(a.delay[i], b.delay[i])
	}
	for i, p := range o.parts {
		if p.isCounted("context-switches") {
			v["sched.switches."+p.name] = (b.switches[i] - a.switches[i]) / span
		}
		if p.isCounted("migrations") {
			v["sched.migrations."+p.name] = (b.moves[i] - a.moves[i]) / span
		}
	}
	for name := range maps.Keys(b.stalled) {
		if from, ok := a.stalled[name]; ok {
			v[name] = rate(from, b.stalled[name])
		}
	}
	for name, n := range b.net {
		if from, ok := a.net[name]; ok {
			if d, restarted := sample.Monotonic(n, from); !restarted {
				v[name] = float64(d) / span
			}
		}
	}
	page := float64(os.Getpagesize())
	v["swap.in"], v["swap.out"] = float64(b.swapIn-a.swapIn)*page/span, float64(b.swapOut-a.swapOut)*page/span
	if o.energy.fresh() {
		v["energy.watts"] = (b.joules - a.joules) / span
	}
}

// shares of the parts' CPUs between two readings.
type shares struct{ foreign, steal, irq float64 }

func (o *Observer) between(a, b machine) shares {
	capacity := b.at.Sub(a.at).Seconds() * float64(o.cpus.Len())
	if capacity <= 0 {
		return shares{}
	}
	foreign := b.busy - a.busy - (b.lab - a.lab)
	for i := range o.parts {
		foreign -= b.usage[i].Total() - a.usage[i].Total()
	}
	return shares{
		foreign: max(0, foreign.Seconds()) / capacity,
		steal:   (b.steal - a.steal).Seconds() / capacity,
		irq:     (b.irq - a.irq).Seconds() / capacity,
	}
}

var errNoPart = errors.New("no process runs in this part")
