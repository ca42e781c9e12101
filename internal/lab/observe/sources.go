package observe

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

const (
	cpus   = "/sys/devices/system/cpu"
	mm     = "/sys/kernel/mm"
	sysctl = "/proc/sys"

	multihit = "cpu.vulnerability.itlb_multihit"
)

// sources are all items that Describe reads. The set of installed packages is recorded as
// passing: it does not make a different machine, because the programs that a study runs
// have hashes of their own.
func sources() []source {
	return []source{
		singleItem("cpu.platform", false, func(h *host.Host) (string, error) { p, err := h.Platform(); return string(p), err }),
		singleItem("cpu.model", false, func(h *host.Host) (string, error) { return cpuinfo(h, "model name", "CPU part") }),
		singleItem("cpu.microcode", false, func(h *host.Host) (string, error) { return cpuinfo(h, "microcode") }),
		singleItem("cpu.topology", false, topology),
		file("cpu.online", cpus+"/online"),
		file("cpu.isolated", cpus+"/isolated"),
		file("cpu.smt", cpus+"/smt/control"),
		distinct("cpu.governor", cpus+"/cpu[0-9]*/cpufreq/scaling_governor"),
		distinct("cpu.driver", cpus+"/cpu[0-9]*/cpufreq/scaling_driver"),
		distinct("cpu.min_khz", cpus+"/cpu[0-9]*/cpufreq/scaling_min_freq"),
		distinct("cpu.max_khz", cpus+"/cpu[0-9]*/cpufreq/scaling_max_freq"),
		distinct("cpu.energy_preference", cpus+"/cpu[0-9]*/cpufreq/energy_performance_preference"),
		singleItem("cpu.turbo", false, turbo),
		singleItem("cpu.prefetching", false, prefetching),
		file("cpu.idle_driver", cpus+"/cpuidle/current_driver"),
		file("cpu.idle_governor", cpus+"/cpuidle/current_governor_ro"),
		singleItem("cpu.idle_states", false, idleStates),
		each("cpu.vulnerability", cpus+"/vulnerabilities/*", "").without(multihit),
		// It says "VMX disabled" while no guest of KVM runs (itlb_multihit_show_state in Linux's bugs.c).
		file(multihit, cpus+"/vulnerabilities/itlb_multihit").asTransient(),
		distinct("cpu.rapl_limits_uw", "/sys/class/powercap/*/constraint_0_power_limit_uw"),
		file("machine.product", "/sys/class/dmi/id/product_name"),
		file("machine.firmware", "/sys/class/dmi/id/bios_version"),
		file("machine.hypervisor", "/sys/hypervisor/type"),
		file("machine.name", sysctl+"/kernel/hostname"),

		file("kernel.release", sysctl+"/kernel/osrelease"),
		file("kernel.version", sysctl+"/kernel/version"),
		singleItem("kernel.cmdline", false, kernelParameters),
		singleItem("kernel.hz", false, func(h *host.Host) (string, error) { return kernelOption(h, "CONFIG_HZ") }),
		singleItem("kernel.irq_time_accounting", false, func(h *host.Host) (string, error) { return kernelOption(h, "CONFIG_IRQ_TIME_ACCOUNTING") }),
		file("kernel.preempt", "/sys/kernel/debug/sched/preempt"),
		file("kernel.clocksource", "/sys/devices/system/clocksource/clocksource0/current_clocksource"),
		file("kernel.tainted", sysctl+"/kernel/tainted").asTransient(),
		file("sched.autogroup", sysctl+"/kernel/sched_autogroup_enabled"),
		file("sched.features", "/sys/kernel/debug/sched/features"),
		file("sched.base_slice_ns", "/sys/kernel/debug/sched/base_slice_ns"),
		file("sched.cfs_slice_us", sysctl+"/kernel/sched_cfs_bandwidth_slice_us"),
		file("sched.rt_runtime_us", sysctl+"/kernel/sched_rt_runtime_us"),
		file("sched.timer_migration", sysctl+"/kernel/timer_migration"),
		file("kernel.nmi_watchdog", sysctl+"/kernel/nmi_watchdog"),
		file("kernel.perf_event_paranoid", sysctl+"/kernel/perf_event_paranoid"),
		file("kernel.aslr", sysctl+"/kernel/randomize_va_space"),
		file("kernel.boot_id", sysctl+"/kernel/random/boot_id").asTransient(),

		singleItem("memory.total", false, memoryTotal),
		singleItem("memory.now", true, func(h *host.Host) (string, error) { return meminfo(h, "MemTotal") }),
		singleItem("memory.swap_total", false, func(h *host.Host) (string, error) { return meminfo(h, "SwapTotal") }),
		singleItem("memory.swap_used", true, swapUsed),
		file("memory.swappiness", sysctl+"/vm/swappiness"),
		file("memory.overcommit", sysctl+"/vm/overcommit_memory"),
		file("memory.thp", mm+"/transparent_hugepage/enabled"),
		file("memory.thp_defrag", mm+"/transparent_hugepage/defrag"),
		file("memory.ksm", mm+"/ksm/run"),
		file("memory.zone_reclaim", sysctl+"/vm/zone_reclaim_mode"),
		file("memory.hugepages", sysctl+"/vm/nr_hugepages"),
		file("numa.nodes", "/sys/devices/system/node/online"),
		file("numa.balancing", sysctl+"/kernel/numa_balancing"),

		singleItem("cgroup.kind", false, cgroupKind),
		file("irq.default_affinity", "/proc/irq/default_smp_affinity"),
		singleItem("irq.affinities", true, func(h *host.Host) (string, error) {
			return common(h, places(h, "/proc/irq/[0-9]*/smp_affinity_list"), "no interrupts")
		}),
		singleItem("irq.balancer", false, irqbalanceState),

		disks("disk.model", "device/model"),
		disks("disk.firmware", "device/firmware_rev"),
		disks("disk.scheduler", "queue/scheduler"),
		disks("disk.rotational", "queue/rotational"),
		each("net.mtu", "/sys/class/net/e*", "mtu"),
		each("net.speed", "/sys/class/net/e*", "speed"),
		singleItem("net.queues", false, netQueues),
		singleItem("net.offloads", false, func(*host.Host) (string, error) {
			return "", errors.New("not in any file: see ethtool -k (offloads) and ethtool -g (rings)")
		}),
		each("temperature", "/sys/class/thermal/thermal_zone*", "temp").asTransient(),

		singleItem("os.name", false, osName),
		singleItem("os.packages", true, packages),
	}
}

// asTransient marks a source as changing by itself.
func (s source) asTransient() source { s.transient = true; return s }

// without leaves an item out.
func (s source) without(name string) source {
	read := s.read
	s.read = func(h *host.Host) map[string]value {
		all := read(h)
		delete(all, name)
		return all
	}
	return s
}

// disks is an item of all disks, in the form of distinct: what is sda now may be sdb after the next
// boot. It leaves out what can be removed, e.g. the virtual disks of a server's management, and what
// is no device, e.g. loop and nbd.
func disks(name, below string) source {
	return singleItem(name, false, func(h *host.Host) (string, error) {
		var files []string
		for _, device := range places(h, "/sys/block/*/device") {
			dir := path.Dir(device)
			if readValue(h, dir+"/removable").text != "1" {
				files = append(files, path.Join(dir, below))
			}
		}
		return common(h, files, "no disk has "+below)
	})
}

func cpuinfo(h *host.Host, keys ...string) (string, error) {
	text, err := h.ReadValue("/proc/cpuinfo")
	if err != nil {
		return "", cause(err)
	}
	count := map[string]bool{}
	for line := range strings.Lines(text) {
		key, v, _ := strings.Cut(line, ":")
		if slices.Contains(keys, strings.TrimSpace(key)) {
			count[strings.TrimSpace(v)] = true
		}
	}
	if len(count) == 0 {
		return "", fmt.Errorf("no %s in /proc/cpuinfo", keys[0])
	}
	var all []string
	for v := range count {
		all = append(all, v)
	}
	slices.Sort(all)
	return strings.Join(all, ", "), nil
}

// kernelParameters are those of the kernel alone, without what is for init: reports are passed on,
// and that says nothing of the machine's speed (kernel-parameters.rst).
func kernelParameters(h *host.Host) (string, error) {
	text, err := h.ReadValue("/proc/cmdline")
	if err != nil {
		return "", cause(err)
	}
	all := strings.Fields(text)
	if i := slices.Index(all, "--"); i >= 0 {
		all = all[:i]
	}
	return strings.Join(slices.DeleteFunc(all, func(p string) bool {
		return strings.HasPrefix(p, "init=") || strings.HasPrefix(p, "rdinit=")
	}), " "), nil
}

func topology(h *host.Host) (string, error) {
	t, err := h.Topology()
	if err != nil {
		return "", err
	}
	var lines []string
	for _, c := range t.CPUs {
		lines = append(lines, fmt.Sprintf("%d: package %d core %d node %d siblings %s llc %d of %d KiB on %s", c.ID, c.Package, c.Core, c.Node, c.Siblings, c.LLC.ID, c.LLC.Size>>10, c.LLC.CPUs))
	}
	return strings.Join(lines, "\n"), nil
}

// turbo is on or off, from the first driver that reports it.
func turbo(h *host.Host) (string, error) {
	if v := readValue(h, cpus+"/intel_pstate/no_turbo"); v.err == nil {
		return map[string]string{"0": "on", "1": "off"}[v.text], nil
	}
	if v := readValue(h, cpus+"/cpufreq/boost"); v.err == nil {
		return map[string]string{"1": "on", "0": "off"}[v.text], nil
	}
	return "", errors.New("neither intel_pstate nor cpufreq reports it")
}

func idleStates(h *host.Host) (string, error) {
	var words []string
	for _, p := range places(h, cpus+"/cpu0/cpuidle/state*") {
		name, off := readValue(h, p+"/name"), readValue(h, p+"/disable")
		word := name.text
		if off.text != "0" {
			word += " (disabled)"
		}
		words = append(words, word)
	}
	if len(words) == 0 {
		return "", errors.New("no cpuidle for CPU 0")
	}
	return strings.Join(words, ", "), nil
}

// lineOf returns what follows KEY= or KEY: in a file.
func lineOf(h *host.Host, file, key string) (string, error) {
	text, err := h.ReadValue(file)
	if err != nil {
		return "", cause(err)
	}
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, key); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("no %s in %s", strings.TrimRight(key, ":="), file)
}

func meminfo(h *host.Host, key string) (string, error) { return lineOf(h, "/proc/meminfo", key+":") }

// memoryTotal is unknown in a domain of Xen: xl takes what a new guest needs from the first domain, and
// gives it nothing back (xl.conf(5), autoballoon).
func memoryTotal(h *host.Host) (string, error) {
	if kind, err := h.ReadValue("/sys/hypervisor/type"); err == nil && kind == "xen" {
		return "", errors.New("a domain's memory changes with that of others; see memory.now")
	}
	return meminfo(h, "MemTotal")
}

func swapUsed(h *host.Host) (string, error) {
	n, err := swapBytes(h)
	return fmt.Sprintf("%d kB", int64(n)>>10), err
}

func cgroupKind(h *host.Host) (string, error) {
	l := h.Layout()
	if l.Kind == host.None {
		return "", errors.New("no cgroup hierarchy is mounted")
	}
	hier, ok := l.CPU()
	where := "nowhere"
	if ok {
		where = map[sample.Hierarchy]string{sample.Unified: "in cgroup2", sample.V1CPU: "in v1"}[hier]
	}
	return fmt.Sprintf("%s, cpu %s, cgroup2 has: %s", l.Kind, where, strings.Join(l.Controllers, " ")), nil
}

// irqbalanceState is the state of irqbalance, which moves interrupts during a run.
func irqbalanceState(h *host.Host) (string, error) { return balancer{h}.state(), nil }

func netQueues(h *host.Host) (string, error) {
	count := map[string]int{}
	for _, p := range places(h, "/sys/class/net/e*/queues/*") {
		kind, _, _ := strings.Cut(path.Base(p), "-")
		count[path.Base(path.Dir(path.Dir(p)))+" "+kind]++
	}
	var words []string
	for name, n := range count {
		words = append(words, fmt.Sprintf("%s %d", name, n))
	}
	if len(words) == 0 {
		return "", errors.New("no network interface")
	}
	slices.Sort(words)
	return strings.Join(words, ", "), nil
}

func osName(h *host.Host) (string, error) {
	name, err := lineOf(h, "/etc/os-release", "PRETTY_NAME=")
	return strings.Trim(name, `"`), err
}

// packages names the set of installed packages by a hash of their versions.
func packages(h *host.Host) (string, error) {
	text, err := h.ReadValue("/var/lib/dpkg/status")
	if err != nil {
		return "", errors.New("no dpkg; other package managers are not supported")
	}
	sum, n := sha256.New(), 0
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "Package: ") {
			n++
		}
		if strings.HasPrefix(line, "Package: ") || strings.HasPrefix(line, "Version: ") || strings.HasPrefix(line, "Status: ") {
			sum.Write([]byte(line))
		}
	}
	return fmt.Sprintf("dpkg, %d packages, %s", n, hex.EncodeToString(sum.Sum(nil))[:16]), nil
}
