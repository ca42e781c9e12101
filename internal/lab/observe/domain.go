package observe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/xen"
	"github.com/quell-dev/quell/internal/machine/host"
)

// domains measure every part as Xen's tools measure a domain, over the steady window. Its
// methods may be called on nil.
type domains struct {
	host         *host.Host
	envs         []lab.Environment
	opened, over []domain

	// Of Xen's domains, which have no threads here.
	recording *xen.Recording // nil: none runs
	trace     *xen.Trace
}

// xenDomain is an environment that is a domain of Xen, by its number.
type xenDomain interface {
	Domain() (xen.Tools, int)
}

// ofXen returns an environment as a domain of Xen, nil if it is none.
func ofXen(e lab.Environment) xenDomain {
	if placed, ok := e.(interface{ Unwrap() lab.Environment }); ok {
		e = placed.Unwrap()
	}
	x, _ := e.(xenDomain)
	return x
}

// domain is one reading of a part. Measures that are not available are not in values.
type domain struct {
	values  map[string]float64
	threads map[int]thread
}

type thread struct {
	running, waiting   time.Duration
	executions, wakeup float64
	guest              time.Duration
}

// window reads all parts at the beginning and at the end of the steady window.
func (d *domains) window(open bool) error {
	if d == nil {
		return nil
	}
	var all []domain
	errs := []error{d.record(open)}
	for _, e := range d.envs {
		one, err := d.read(e)
		all, errs = append(all, one), append(errs, err)
	}
	if open {
		d.opened = all
	} else {
		d.over = all
	}
	return errors.Join(errs...)
}

// add adds the measures to the parts' events.
func (d *domains) add(parts []result.Part) {
	if d == nil {
		return
	}
	for i := range min(len(parts), len(d.opened), len(d.over)) {
		if parts[i].Events == nil {
			parts[i].Events = map[string]float64{}
		}
		maps.Copy(parts[i].Events, d.over[i].since(d.opened[i]))
		x := ofXen(d.envs[i])
		if x == nil || d.trace == nil {
			continue
		}
		if d.trace.Lost > 0 { // counts would be too low, by an unknown part
			if parts[i].Missing == nil {
				parts[i].Missing = map[string]string{}
			}
			parts[i].Missing[result.DomainRunning] = fmt.Sprintf("xentrace lost %d records", d.trace.Lost)
			continue
		}
		_, id := x.Domain()
		d.traced(id, parts[i].Events)
	}
}

// record begins or ends a record of Xen's domains, if some part is one.
func (d *domains) record(open bool) (err error) {
	i := slices.IndexFunc(d.envs, func(e lab.Environment) bool { return ofXen(e) != nil })
	switch {
	case i < 0:
	case open:
		tools, _ := ofXen(d.envs[i]).Domain()
		d.recording, err = tools.Record(context.Background())
	case d.recording != nil:
		d.trace, err = d.recording.Stop()
		d.recording = nil
	}
	return err
}

// close ends a record that still runs.
func (d *domains) close() error {
	if d == nil {
		return nil
	}
	return d.record(false)
}

// traced adds what Xen's records say of a domain.
func (d *domains) traced(id int, events map[string]float64) {
	span := d.trace.Span.Seconds()
	events[result.DomainSpan] = span
	if one := d.trace.Domain(id); one != nil {
		n := float64(len(one.VCPUs))
		maps.Copy(events, map[string]float64{
			result.DomainThreads: n, result.DomainRunning: n * one.Running * span, result.DomainWaiting: n * one.Runnable * span,
			result.DomainExecutions: float64(one.Executions), result.DomainEntries: float64(one.Events), result.DomainGrants: float64(one.Grants),
		})
	}
	if driver := d.trace.Domain(0); driver != nil {
		n := float64(len(driver.VCPUs))
		maps.Copy(events, map[string]float64{result.DriverThreads: n, result.DriverRunning: n * driver.Running * span, result.DriverWaiting: n * driver.Runnable * span})
	}
}

// since is the difference to an earlier reading.
func (d domain) since(from domain) map[string]float64 {
	out := map[string]float64{}
	for name, v := range d.values {
		if before, ok := from.values[name]; ok && v >= before {
			out[name] = v - before
		}
	}
	n, guest := 0, time.Duration(0)
	for tid, t := range d.threads {
		before, ok := from.threads[tid]
		if !ok || t.running < before.running {
			continue
		}
		n++
		out[result.DomainRunning] += (t.running - before.running).Seconds()
		out[result.DomainWaiting] += (t.waiting - before.waiting).Seconds()
		out[result.DomainExecutions] += t.executions - before.executions
		out[result.DomainWakeups] += t.wakeup - before.wakeup
		guest += t.guest - before.guest
	}
	if out[result.DomainThreads] = float64(n); guest > 0 {
		out[result.DomainGuest] = guest.Seconds()
	}
	return out
}

func (d *domains) read(e lab.Environment) (domain, error) {
	one := domain{values: map[string]float64{}, threads: map[int]thread{}}
	u, err := e.Usage()
	if err != nil {
		return one, fmt.Errorf("read CPU time: %w", err)
	}
	one.values[result.DomainUser], one.values[result.DomainSystem] = u.User.Seconds(), u.System.Seconds()
	if on, ok := e.(interface {
		Traffic() (lab.Traffic, error)
	}); ok {
		t, err := on.Traffic()
		if err != nil {
			return one, err
		}
		one.values[result.DomainSent], one.values[result.DomainReceived], one.values[result.DomainPackets] = float64(t.Sent), float64(t.Received), float64(t.Packets)
	}
	threads, err := e.Threads()
	if err != nil {
		return one, fmt.Errorf("list threads: %w", err)
	}
	for _, tid := range threads {
		if t, ok := d.thread(tid); ok {
			one.threads[tid] = t
		}
	}
	if len(threads) > 0 {
		d.kvm(threads[0], one.values)
	}
	return one, nil
}

// thread reads schedstat (scheduler/sched-stats.rst), status and stat
// (proc_pid_status(5), proc_pid_stat(5)) of a thread; false if it has ended.
func (d *domains) thread(tid int) (thread, bool) {
	dir := fmt.Sprintf("/proc/%d/", tid)
	sched, err := host.ReadSchedstat(d.host.Path(dir + "schedstat"))
	if err != nil {
		return thread{}, false
	}
	t := thread{running: time.Duration(sched.Run), waiting: time.Duration(sched.Wait), executions: float64(sched.Slices)}
	if n, err := lineOf(d.host, dir+"status", "voluntary_ctxt_switches:"); err == nil {
		t.wakeup, _ = strconv.ParseFloat(n, 64)
	}
	if stat, err := host.ReadProcessStat(d.host.Path(dir + "stat")); err == nil {
		t.guest = stat.Guest
	}
	return t, true
}

// kvm reads KVM's counters of the virtual machine that a thread belongs to: debugfs has a
// folder for each machine, named after its process (Documentation/virt/kvm, and
// kvm_vm_stats_desc in the kernel).
func (d *domains) kvm(tid int, values map[string]float64) {
	pid, err := lineOf(d.host, fmt.Sprintf("/proc/%d/status", tid), "Tgid:")
	if err != nil {
		return
	}
	dirs, err := filepath.Glob(d.host.Path("/sys/kernel/debug/kvm/" + pid + "-*"))
	if err != nil || len(dirs) == 0 {
		return
	}
	sum := func(files ...string) (v float64, found bool) {
		for _, f := range files {
			text, err := os.ReadFile(filepath.Join(dirs[0], f))
			if err != nil {
				continue
			}
			if n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err == nil {
				v, found = v+n, true
			}
		}
		return v, found
	}
	if v, ok := sum("irq_injections"); ok {
		values[result.DomainInjected] = v
	}
	if v, ok := sum("io_exits", "mmio_exits", "irq_exits"); ok {
		values[result.DomainKicks] = v
	}
}
