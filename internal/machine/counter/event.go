package counter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Event is one thing that perf counts. Its name is that of perf(1), or "llc-misses",
// which is the closest event on this kind of CPU.
type Event struct {
	event
	lost []event // ways to count it that are worse than event, best first
}

// cacheEvent returns one of perf_event_open(2)'s cache events for misses on reads.
func cacheEvent(name string, cache uint64) event {
	return event{name, unix.PERF_TYPE_HW_CACHE, cache |
		unix.PERF_COUNT_HW_CACHE_OP_READ<<8 | unix.PERF_COUNT_HW_CACHE_RESULT_MISS<<16}
}

// plainEvents returns the events that need no lookup.
func plainEvents() []event {
	hardware := func(name string, config uint64) event { return event{name, unix.PERF_TYPE_HARDWARE, config} }
	software := func(name string, config uint64) event { return event{name, unix.PERF_TYPE_SOFTWARE, config} }
	return []event{
		hardware("cycles", unix.PERF_COUNT_HW_CPU_CYCLES),
		hardware("ref-cycles", unix.PERF_COUNT_HW_REF_CPU_CYCLES),
		hardware("instructions", unix.PERF_COUNT_HW_INSTRUCTIONS),
		hardware("cache-references", unix.PERF_COUNT_HW_CACHE_REFERENCES),
		hardware("cache-misses", unix.PERF_COUNT_HW_CACHE_MISSES),
		hardware("branches", unix.PERF_COUNT_HW_BRANCH_INSTRUCTIONS),
		hardware("branch-misses", unix.PERF_COUNT_HW_BRANCH_MISSES),
		hardware("stalled-cycles-frontend", unix.PERF_COUNT_HW_STALLED_CYCLES_FRONTEND),
		hardware("stalled-cycles-backend", unix.PERF_COUNT_HW_STALLED_CYCLES_BACKEND),
		cacheEvent("l1d-misses", unix.PERF_COUNT_HW_CACHE_L1D),
		cacheEvent("l1i-misses", unix.PERF_COUNT_HW_CACHE_L1I),
		cacheEvent("dtlb-misses", unix.PERF_COUNT_HW_CACHE_DTLB),
		cacheEvent("itlb-misses", unix.PERF_COUNT_HW_CACHE_ITLB),
		cacheEvent("node-misses", unix.PERF_COUNT_HW_CACHE_NODE),
		taskClock,
		software("context-switches", unix.PERF_COUNT_SW_CONTEXT_SWITCHES),
		software("migrations", unix.PERF_COUNT_SW_CPU_MIGRATIONS),
		software("page-faults", unix.PERF_COUNT_SW_PAGE_FAULTS),
		software("major-faults", unix.PERF_COUNT_SW_PAGE_FAULTS_MAJ),
		software("alignment-faults", unix.PERF_COUNT_SW_ALIGNMENT_FAULTS),
	}
}

const (
	llcMissesName = "llc-misses"
	l2MissesName  = "l2-misses"
)

// EventNames returns the names that LookupEvent knows, apart from tracepoints.
func EventNames() []string {
	names := []string{llcMissesName, l2MissesName, memoryReadsName}
	for _, e := range plainEvents() {
		names = append(names, e.name)
	}
	slices.Sort(names)
	return names
}

// ErrUnknownEvent says that no event has the given name.
var ErrUnknownEvent = errors.New("unknown event")

// LookupEvent finds an event: one of EventNames, a tracepoint with a colon
// ("sched:sched_switch", "kvm:kvm_exit"), or a PMU's ("cpu/event=0x24,umask=0x3f/"). Only opening it shows whether this machine
// counts it. Errors: ErrUnknownEvent, *NotSupportedError.
func LookupEvent(name string) (Event, error) {
	if strings.Contains(name, "/") && !strings.Contains(name, ":") {
		h, err := host.Open("/")
		if err != nil {
			return Event{}, err
		}
		e, err := pmuEvent(h, name)
		return Event{event: e}, err
	}
	if system, point, ok := strings.Cut(name, ":"); ok {
		if strings.ContainsAny(name, "/.") || system == "" || point == "" {
			return Event{}, fmt.Errorf("look up event %q: %w", name, ErrUnknownEvent)
		}
		e, err := tracepoint(system + "/" + point)
		e.name = name
		return Event{event: e}, err
	}
	switch name {
	case llcMissesName:
		// llcMisses()[0] is not used as it is: on AMD the generic event counts another
		// cache, and a study's figure must not be named after something else.
		level := cacheEvent(name, unix.PERF_COUNT_HW_CACHE_LL)
		generic := event{name, unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CACHE_MISSES}
		if intel() {
			return Event{event: level, lost: []event{generic}}, nil
		}
		return Event{event: level}, nil
	case l2MissesName, memoryReadsName:
		if e, ok := vendorEvent(platform(), name); ok {
			return Event{event: e}, nil
		}
		// The kernel's generic cache-misses counts misses of the L2 on AMD's Zen
		// (arch/x86/events/amd/core.c, amd_zen_perfmon_event_map), and on no other CPU.
		if name != l2MissesName || !zen() {
			return Event{}, &NotSupportedError{What: "event " + name, Reason: "its code is not known for this CPU", Remedy: "give it as cpu/event=…,umask=…/ from the CPU's manual"}
		}
		return Event{event: event{name, unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CACHE_MISSES}}, nil
	}
	for _, e := range plainEvents() {
		if e.name == name {
			return Event{event: e}, nil
		}
	}
	return Event{}, fmt.Errorf("look up event %q: %w; want one of %s, a tracepoint as system:name, or PMU/event=…/", name, ErrUnknownEvent, strings.Join(EventNames(), ", "))
}

func intel() bool { return vendor("GenuineIntel") }
func zen() bool   { return vendor("AuthenticAMD") }

func vendor(is string) bool { return strings.HasPrefix(platform(), is) }

// platform is the type of this machine's CPUs, "" if it is unknown.
func platform() string {
	h, err := host.Open("/")
	if err != nil {
		return ""
	}
	p, err := h.Platform()
	if err != nil {
		return ""
	}
	return string(p)
}

// Name returns the name that it was looked up by.
func (e Event) Name() string { return e.name }

// EventCounter counts one event, summed over what it was opened on. It is used from one
// goroutine.
type EventCounter struct {
	fds  []int
	last []sample.Count
}

// OpenCgroup counts an event in a cgroup and those below it, on the given CPUs, from
// Toggle on; dir is in the hierarchy that perf uses. CPUs that are offline are left
// out. Errors: host.ErrGone, *NotSupportedError.
func (e Event) OpenCgroup(dir string, cpus sample.Set) (*EventCounter, error) {
	at, err := openCgroup(dir)
	if err != nil {
		return nil, err
	}
	defer at.close()
	for _, way := range append([]event{e.event}, e.lost...) {
		var t *EventCounter
		if t, err = openTally(way, at.fd, cpus.Numbers(), unix.PERF_FLAG_PID_CGROUP, 0); err == nil {
			return t, nil
		}
	}
	return nil, newGroups(linux{}, cpus).explain("event "+e.name, at, err)
}

// OpenThread counts an event in a thread and in all threads that it starts later, on
// any CPU.
func (e Event) OpenThread(tid int) (*EventCounter, error) {
	var err error
	for _, way := range append([]event{e.event}, e.lost...) {
		var t *EventCounter
		if t, err = openTally(way, tid, []int{-1}, 0, unix.PerfBitInherit); err == nil {
			return t, nil
		}
	}
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("count %s in thread %d: %w", e.name, tid, err)
	}
	return nil, notSupported("event "+e.name, err)
}

func openTally(e event, pid int, cpus []int, flags int, bits uint64) (*EventCounter, error) {
	t := &EventCounter{}
	for _, cpu := range cpus {
		attr := e.attr()
		attr.Bits |= bits
		// The group read format cannot be inherited.
		attr.Read_format = unix.PERF_FORMAT_TOTAL_TIME_ENABLED | unix.PERF_FORMAT_TOTAL_TIME_RUNNING
		fd, err := unix.PerfEventOpen(attr, pid, cpu, -1, flags|unix.PERF_FLAG_FD_CLOEXEC)
		if errors.Is(err, unix.ENODEV) && len(cpus) > 1 {
			continue
		}
		if err != nil {
			t.Close()
			return nil, err
		}
		t.fds = append(t.fds, fd)
	}
	if len(t.fds) == 0 {
		return nil, unix.ENODEV
	}
	t.last = make([]sample.Count, len(t.fds))
	return t, nil
}

// Toggle starts or stops counting.
func (t *EventCounter) Toggle(on bool) error {
	var all []error
	for _, fd := range t.fds {
		all = append(all, linux{}.toggle(fd, on))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("toggle event: %w", err)
	}
	return nil
}

// Read returns what was counted since the last Read, scaled up for the time in which
// other events had the counters, and the coverage: the share of the time, weighted by
// where the task ran, that was really counted. At a coverage of 0 the count says
// nothing. A task that did not run at all is fully counted, as 0.
func (t *EventCounter) Read() (count, coverage float64, err error) {
	var enabled, running, unseen uint64
	for i, fd := range t.fds {
		var buf [24]byte
		n, err := unix.Read(fd, buf[:])
		if err == nil && n != len(buf) {
			err = fmt.Errorf("%d bytes, want %d", n, len(buf))
		}
		if err != nil {
			return 0, 0, fmt.Errorf("read event: %w", err)
		}
		word := func(i int) uint64 { return binary.NativeEndian.Uint64(buf[8*i:]) }
		now := sample.Count{Value: word(0), Enabled: word(1), Running: word(2)}
		d := now.Since(t.last[i])
		t.last[i] = now
		count += d.Value
		enabled, running = enabled+d.Enabled, running+d.Running
		if d.Uncounted {
			unseen += d.Enabled
		}
	}
	if enabled == 0 {
		return count, 1, nil
	}
	if unseen < enabled {
		// A CPU on which the event never had a counter is assumed to be like the
		// others.
		count *= float64(enabled) / float64(enabled-unseen)
	}
	return count, min(1, float64(running)/float64(enabled)), nil
}

// Close closes the event's descriptors.
func (t *EventCounter) Close() {
	for _, fd := range t.fds {
		unix.Close(fd)
	}
	t.fds = nil
}
