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
	swapIn  uint64        // pages
	swapOut uint64
	oomKill uint64
	joules  float64
	totals  map[string]float64 // by name of the sample whose rate it is
}

// read reads the machine. The CPUs' busy time is read before the parts and after them,
// because the lab itself may have to wait in between.
func (o *Observer) read() (machine, error) {
	m := machine{totals: map[string]float64{}}
	before, err := o.onCPUs(&m)
	if err != nil {
		return m, err
	}
	m.at = time.Now()
	m.lab = ownTime()
	if o.wants("cpu") {
		m.totals["cpu.lab"] = m.lab.Seconds()
	}
	for _, p := range o.parts {
		u, err := p.env.Usage()
		if err != nil {
			return m, fmt.Errorf("read the CPU time of %s: %w", p.name, err)
		}
		m.usage = append(m.usage, u)
		if o.wants("cpu") {
			m.totals["cpu."+p.name] = u.Total().Seconds()
			m.totals["cpu.user."+p.name] = u.User.Seconds()
			m.totals["cpu.system."+p.name] = u.System.Seconds()
			m.totals["cpu.throttled."+p.name] = u.Throttled.Seconds()
		}
	}
	after, err := o.onCPUs(&m)
	if err != nil {
		return m, err
	}
	m.busy = (before + after) / 2
	for _, p := range o.parts {
		if o.wants("schedstat") {
			m.totals["sched.delay."+p.name] = p.delay().Seconds()
		}
		p.scheduling(m.totals)
	}
	if o.wants("psi") {
		o.pressure(m.totals)
	}
	if o.wants("net") {
		maps.Copy(m.totals, readNet(o.opt.Host))
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

func (o *Observer) pressure(to map[string]float64) {
	for _, r := range resources {
		if p, err := o.opt.Host.PSI(r); err == nil {
			to["psi."+r+".some"] = p.Some.Total.Seconds()
			if r != "cpu" { // psi.rst: it has no meaning for the machine
				to["psi."+r+".full"] = p.Full.Total.Seconds()
			}
		}
		for _, p := range o.parts {
			if d, ok := p.stalled(r); ok {
				to["psi."+r+".some."+p.name] = d.Seconds()
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
	page := float64(os.Getpagesize())
	m.totals["swap.in"], m.totals["swap.out"] = float64(m.swapIn)*page, float64(m.swapOut)*page
	return nil
}

// readNet reads /proc/net/dev (proc(5)): all interfaces except lo.
func readNet(h *host.Host) map[string]float64 {
	all := map[string]float64{}
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
				all["net."+name+"."+what] = float64(n)
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
	for name, to := range b.totals {
		from, ok := a.totals[name]
		// The counters of an interface that was made anew begin at 0.
		if ok && (to >= from || !strings.HasPrefix(name, "net.")) {
			v[name] = (to - from) / span
		}
	}
	if o.wants("cpu") {
		d := o.between(a, b)
		name := "cpu.foreign"
		if len(o.parts) == 0 {
			name = "cpu.busy"
		}
		v[name], v["cpu.steal"], v["cpu.irq"] = d.foreign, d.steal, d.irq
	}
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
	foreign := b.busy - a.busy
	if o.confined {
		foreign -= b.lab - a.lab
	}
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
