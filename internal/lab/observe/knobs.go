package observe

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
)

// knob is a setting of the machine that a study may change for its duration.
type knob struct {
	files   string // pattern
	allowed []string
	help    string
}

// irqbalanceFile represents the state of irqbalance; no such file exists. SIGSTOP stops
// the daemon, SIGCONT continues it.
const irqbalanceFile = "/proc/irqbalance"

func knobs() map[string]knob {
	onOff := []string{"0", "1"}
	return map[string]knob{
		"governor":         {cpus + "/cpu[0-9]*/cpufreq/scaling_governor", nil, "cpufreq governor of all CPUs"},
		"no_turbo":         {cpus + "/intel_pstate/no_turbo", onOff, "1 switches turbo off (intel_pstate)"},
		"boost":            {cpus + "/cpufreq/boost", onOff, "0 switches turbo off (acpi-cpufreq, amd-pstate)"},
		"smt":              {cpus + "/smt/control", []string{"on", "off"}, "simultaneous multithreading"},
		"numa_balancing":   {sysctl + "/kernel/numa_balancing", []string{"0", "1", "2"}, "automatic NUMA balancing"},
		"thp":              {mm + "/transparent_hugepage/enabled", []string{"always", "madvise", "never"}, "transparent huge pages"},
		"thp_defrag":       {mm + "/transparent_hugepage/defrag", []string{"always", "defer", "defer+madvise", "madvise", "never"}, "defragmentation for transparent huge pages"},
		"ksm":              {mm + "/ksm/run", onOff, "kernel samepage merging"},
		"aslr":             {sysctl + "/kernel/randomize_va_space", []string{"0", "1", "2"}, "address space randomisation"},
		"autogroup":        {sysctl + "/kernel/sched_autogroup_enabled", onOff, "scheduling by session"},
		"nmi_watchdog":     {sysctl + "/kernel/nmi_watchdog", onOff, "NMI watchdog; it uses one hardware counter"},
		"timer_migration":  {sysctl + "/kernel/timer_migration", onOff, "timers move to busy CPUs"},
		"swappiness":       {sysctl + "/vm/swappiness", nil, "0 to 200"},
		"zone_reclaim":     {sysctl + "/vm/zone_reclaim_mode", nil, "reclaim before another memory node is used"},
		"perf_max_sample":  {sysctl + "/kernel/perf_cpu_time_max_percent", nil, "share of CPU that perf's interrupts may take"},
		"rt_runtime":       {sysctl + "/kernel/sched_rt_runtime_us", nil, "µs of a second that realtime tasks may take; -1 all"},
		"dirty_writeback":  {sysctl + "/vm/dirty_writeback_centisecs", nil, "how often dirty pages are written back"},
		"workqueue_cpus":   {"/sys/devices/virtual/workqueue/cpumask", nil, "CPUs of unbound kernel workers, hexadecimal"},
		"irqbalance":       {irqbalanceFile, []string{"running", "stopped"}, "the daemon that moves interrupts; stopped by SIGSTOP"},
		"mglru":            {mm + "/lru_gen/enabled", nil, "multi-generational LRU"},
		"compaction":       {sysctl + "/vm/compaction_proactiveness", nil, "0 to 100; memory compaction in the background"},
		"stat_interval":    {sysctl + "/vm/stat_interval", nil, "seconds between updates of vmstat"},
		"watchdog_cpumask": {sysctl + "/kernel/watchdog_cpumask", nil, "CPUs that have a soft-lockup watchdog"},
		prefetch:           {msrFiles, []string{"on", "off"}, "hardware prefetchers, all of each core: registers of Intel's and AMD's (from family 19h on) CPUs"},
	}
}

// KnobNames are the knobs that a study's preconditions may set and its factors may vary.
func KnobNames() []string { return slices.Sorted(maps.Keys(knobs())) }

// Knobs gives the enforcer access to a machine's files: it implements enforce.Files. A
// file that lists its choices ("always [madvise] never") reads as the chosen one. The
// files' directories are not cgroups and always have the same inode: after a reboot none
// of their changes is left to restore.
type Knobs struct{ Host *host.Host }

// ReadValue implements enforce.Files.
func (k Knobs) ReadValue(file string) (string, error) {
	switch {
	case file == irqbalanceFile:
		return balancer{k.Host}.state(), nil
	case isMSR(file):
		r, err := prefetchers(k.Host)
		if err != nil {
			return "", err
		}
		return r.read(k.Host, file)
	}
	text, err := k.Host.ReadValue(file)
	if err != nil {
		return "", err
	}
	return chosen(text), nil
}

// WriteValue implements enforce.Files.
func (k Knobs) WriteValue(file, value string) error {
	switch {
	case file == irqbalanceFile:
		return balancer{k.Host}.set(value)
	case isMSR(file):
		r, err := prefetchers(k.Host)
		if err != nil {
			return err
		}
		return r.write(k.Host, file, value)
	}
	return k.Host.WriteValue(file, value)
}

// Inode implements enforce.Files.
func (k Knobs) Inode(dir string) (uint64, error) {
	if dir != path.Dir(irqbalanceFile) {
		if _, err := k.Host.Inode(dir); err != nil {
			return 0, err // e.g. a CPU that was unplugged
		}
	}
	return 1, nil
}

// BootID implements enforce.Files.
func (k Knobs) BootID() (string, error) { return k.Host.BootID() }

// Hold implements enforce.Files: no other process uses up a study's descriptors.
func (k Knobs) Hold(...string) error { return nil }

// Release implements enforce.Files.
func (k Knobs) Release(...string) {}

// Held implements enforce.Files.
func (k Knobs) Held(string) bool { return false }

// chosen returns the word in brackets, or the whole text if there is none.
func chosen(text string) string {
	_, rest, ok := strings.Cut(text, "[")
	word, _, closed := strings.Cut(rest, "]")
	if !ok || !closed || strings.ContainsAny(word, " \n") {
		return text
	}
	return word
}

// KnobError reports that a machine has no such knob, or one that cannot be changed.
type KnobError struct {
	Name   string
	Reason string // what the machine does not have or does not permit
	Remedy string // "" where there is no remedy
	Err    error  // nil where no access was tried
}

func (e *KnobError) Error() string {
	text := fmt.Sprintf("set %s: %s", e.Name, e.Reason)
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *KnobError) Unwrap() error { return e.Err }

// Set journals and makes the changes that a study wants: knob to value. It makes all of
// them or none, and returns the IDs of its changes, in order. A knob that already has the
// wanted value is not written. The enforcer uses Knobs for its files; its RestoreAll,
// also in a later process, restores everything. A *KnobError reports that this machine
// has no such knob.
func (k Knobs) Set(e *enforce.Enforcer, now, until sample.Millis, settings map[string]string, who string) ([]string, error) {
	var changes []enforce.Change
	names := slices.Sorted(maps.Keys(settings))
	for _, name := range names {
		c, err := k.changes(name, settings[name])
		if err != nil {
			return nil, err
		}
		changes = append(changes, c...)
	}
	var made []string
	var err error
	for _, c := range changes {
		c.From, c.Until, c.Who, c.Why = now, until, who, "set by a lab study"
		if err = e.Apply(now, c); err != nil {
			err = fmt.Errorf("set %s: %w", c.Task, err)
			break
		}
		made = append(made, c.ID)
	}
	for _, name := range names {
		if err == nil {
			err = k.verifyAllCPUs(name, settings[name])
		}
	}
	if err != nil {
		return nil, errors.Join(err, Unset(e, now, made, "another change failed"))
	}
	return made, nil
}

// Unset undoes changes that Set made, the last first.
func Unset(e *enforce.Enforcer, now sample.Millis, made []string, why string) error {
	var errs []error
	for _, id := range slices.Backward(made) {
		_, err := e.Undo(now, id, why)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// changes returns the changes that a setting needs: one for each directory.
func (k Knobs) changes(name, want string) ([]enforce.Change, error) {
	if err := CheckKnob(name, want); err != nil {
		return nil, err
	}
	files := places(k.Host, knobs()[name].files)
	if knobs()[name].files == irqbalanceFile {
		files = []string{irqbalanceFile}
	}
	if len(files) == 0 {
		none := &KnobError{Name: name, Reason: "this machine has no " + knobs()[name].files}
		if name == prefetch {
			none.Remedy = "modprobe msr"
		}
		return nil, none
	}
	if name == prefetch {
		r, err := prefetchers(k.Host)
		if err != nil {
			return nil, err
		}
		files, want = coreFiles(k.Host, files), r.value(want)
	}
	var all []enforce.Change
	for _, file := range files {
		old, err := k.ReadValue(file)
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
		if old == want || old == noBalancer && want == "stopped" {
			continue
		}
		if old == noBalancer {
			return nil, &KnobError{Name: name, Reason: "irqbalance does not run on this machine"}
		}
		dir := path.Dir(file)
		inode, err := k.Inode(dir)
		if err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
		all = append(all, enforce.Change{ID: "lab-knob " + file, Dir: dir, Inode: inode, Task: sample.TaskName(name),
			Writes: []host.Write{{File: file, Old: old, New: want}}})
	}
	return all, nil
}

// Check returns the error with which this machine does not take a setting.
func (k Knobs) Check(name, want string) error {
	_, err := k.changes(name, want)
	return err
}

// CheckKnob returns an error if a setting is not valid.
func CheckKnob(name, want string) error {
	one, ok := knobs()[name]
	switch {
	case !ok:
		return fmt.Errorf("unknown knob %q: want one of %s", name, strings.Join(KnobNames(), ", "))
	case one.allowed != nil && !slices.Contains(one.allowed, want):
		return fmt.Errorf("%q: want one of %s", want, strings.Join(one.allowed, ", "))
	case want == "" || strings.ContainsAny(want, "\n[]"):
		return fmt.Errorf("%q: want a value", want)
	}
	return nil
}

// noBalancer is the state where irqbalance does not exist.
const noBalancer = "none"

// balancer is the daemon irqbalance.
type balancer struct{ host *host.Host }

// pids are the daemon's processes.
func (b balancer) pids() (running, stopped []int) {
	for _, p := range places(b.host, "/proc/[0-9]*/stat") {
		stat, err := host.ReadProcessStat(b.host.Path(p))
		if err != nil || stat.Name != "irqbalance" {
			continue
		}
		pid, err := strconv.Atoi(path.Base(path.Dir(p)))
		if err != nil {
			continue
		}
		if stat.State == 'T' {
			stopped = append(stopped, pid)
		} else {
			running = append(running, pid)
		}
	}
	return running, stopped
}

func (b balancer) state() string {
	running, stopped := b.pids()
	switch {
	case len(running) > 0:
		return "running"
	case len(stopped) > 0:
		return "stopped"
	}
	return noBalancer
}

// patience is how long a signal may take to become visible.
const patience = 2 * time.Second

func (b balancer) set(state string) error {
	running, stopped := b.pids()
	pids, signal := running, unix.SIGSTOP
	if state == "running" {
		pids, signal = stopped, unix.SIGCONT
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, signal); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal irqbalance (pid %d): %w", pid, err)
		}
	}
	for end := time.Now().Add(patience); b.state() != state && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return nil
}
