package host

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Capability is a feature that quell can use or must do without.
type Capability struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	// Detail says what is present, Reason why it is missing or incomplete,
	// Remedy what a person can do about it; each may be empty.
	Detail string `json:"detail,omitempty"`
	Reason string `json:"reason,omitempty"`
	Remedy string `json:"remedy,omitempty"`
}

// Present and Missing are capabilities that the machine has and lacks.
func Present(name, detail string) Capability {
	return Capability{Name: name, OK: true, Detail: detail}
}

func Missing(name, reason, remedy string) Capability {
	return Capability{Name: name, Reason: reason, Remedy: remedy}
}

// Capabilities checks everything that files tell about the machine and changes
// nothing. What needs a system call to find out (perf, eBPF) is in package counter.
func (h *Host) Capabilities() []Capability {
	topology, topologyErr := h.Topology()
	all := []Capability{
		h.cgroupsCapability(),
		h.quotaCapability(),
		h.cpusetCapability(),
		h.psiCapability(),
		h.cgroupPSICapability(),
		h.resctrlCapability(),
	}
	all = append(all, h.virtualCapabilities()...)
	all = append(all, topologyCapabilities(topology, topologyErr)...)
	return append(all, h.watchdogCapability(), h.paranoidCapability())
}

func (h *Host) cgroupsCapability() Capability {
	if h.layout.Kind == None {
		return Missing("cgroups", "no cgroup hierarchy is mounted", "mount cgroup2 on /sys/fs/cgroup")
	}
	c := Present("cgroups", h.layout.Kind.String())
	if h.layout.Unified != "" {
		c.Detail += ", cgroup2 at " + h.layout.Unified
	}
	if dir, ok := h.layout.V1["cpu"]; ok {
		c.Detail += ", v1 cpu at " + dir
	}
	return c
}

// quotaCapability checks access(2) to a cgroup's limit file, or to the mount
// itself if the top is the only cgroup.
func (h *Host) quotaCapability() Capability {
	const name = "cpu quota"
	hier, ok := h.layout.CPU()
	if !ok {
		return Missing(name, "no mounted hierarchy has the cpu controller", "enable it for cgroup2 or mount the v1 cpu hierarchy")
	}
	file, dir := "cpu.max", h.layout.Unified
	if hier == sample.V1CPU {
		file, dir = "cpu.cfs_quota_us", h.layout.V1["cpu"]
	}
	found := h.first(dir, file)
	if found == "" {
		found = dir
	}
	if err := unix.Access(h.Path(found), unix.W_OK); err != nil {
		return Missing(name, fmt.Sprintf("%s is not writable: %v", found, err),
			"run as root with "+dir+" mounted read-write; without that, quell only observes and advises")
	}
	c := Present(name, fmt.Sprintf("%s of %s", file, hier))
	if hier == sample.Unified {
		c.Reason, c.Remedy = h.uncapped()
	}
	return c
}

// mostUncapped bounds how many cgroups without the cpu controller are named.
const mostUncapped = 3

// uncapped says which tasks have no limit that could be set, and what enables one.
func (h *Host) uncapped() (reason, remedy string) {
	all, err := h.Uncontrolled("cpu")
	if err != nil || len(all) == 0 {
		return "", ""
	}
	var dirs, remedies []string
	for _, e := range all[:min(len(all), mostUncapped)] {
		dirs, remedies = append(dirs, e.Lacking[0]), append(remedies, e.Remedy())
	}
	reason = fmt.Sprintf("controller cpu is not enabled in %s: tasks there cannot be capped", strings.Join(dirs, ", "))
	if more := len(all) - len(dirs); more > 0 {
		reason += fmt.Sprintf(", nor in %d more cgroups", more)
	}
	return reason, "for example " + strings.Join(remedies, "; ")
}

// first returns the named file of a cgroup directly below a mount, "" if no
// cgroup there has it.
func (h *Host) first(dir, file string) string {
	names, _ := subdirsOf(h.Path(dir), 0)
	for _, name := range names {
		if f := path.Join(dir, name, file); unix.Access(h.Path(f), unix.F_OK) == nil {
			return f
		}
	}
	return ""
}

func (h *Host) cpusetCapability() Capability {
	const name = "cpuset"
	if dir, v1 := h.layout.V1[name]; v1 {
		return Present(name, "v1 at "+dir)
	}
	if slices.Contains(h.layout.Controllers, name) {
		return Present(name, "cgroup2")
	}
	return Missing(name, "no mounted hierarchy has the cpuset controller", "tasks cannot be moved to other CPUs; capping is not affected")
}

func (h *Host) psiCapability() Capability {
	if _, err := h.PSI("cpu"); err != nil {
		return Missing("psi", err.Error(), psiRemedy)
	}
	c := Present("psi", "cpu")
	for _, resource := range [...]string{"memory", "io"} {
		if _, err := h.PSI(resource); err == nil {
			c.Detail += ", " + resource
		}
	}
	return c
}

const psiRemedy = "boot with psi=1 (a kernel with CONFIG_PSI)"

func (h *Host) cgroupPSICapability() Capability {
	const name = "psi per cgroup"
	if h.layout.Unified == "" {
		return Missing(name, "only cgroup2 has it", "mount cgroup2 next to the v1 hierarchies")
	}
	found := h.first(h.layout.Unified, "cpu.pressure")
	if found == "" { // only the top exists; it has the file since about 5.13
		found = h.layout.Unified + "/cpu.pressure"
	}
	if _, err := h.ReadValue(found); err != nil {
		return Missing(name, orNoPSI(err).Error(), psiRemedy)
	}
	return Present(name, "")
}

func (h *Host) resctrlCapability() Capability {
	const name = "resctrl"
	if _, err := h.Inode("/sys/fs/resctrl/info"); err == nil {
		return Present(name, "mounted at /sys/fs/resctrl")
	}
	types, _ := h.ReadValue("/proc/filesystems")
	if slices.Contains(strings.Fields(types), name) {
		return Missing(name, "not mounted", "mount -t resctrl resctrl /sys/fs/resctrl")
	}
	return Missing(name, "not supported by the kernel or the CPU; most virtual machines lack it", "")
}

func (h *Host) virtualCapabilities() []Capability {
	p, err := h.Platform()
	vm := strings.HasSuffix(string(p), "-vm")
	platform, metal := Present("platform", string(p)), Present("bare metal", "")
	switch {
	case err != nil:
		platform, metal = Missing(platform.Name, err.Error(), ""), Missing(metal.Name, "unknown, because the platform is unknown", "")
	case vm:
		metal = Missing(metal.Name, "a virtual machine: neighbours outside it are visible only as steal", "")
	}
	steal := Present("stolen time", "not a virtual machine")
	times, err := h.CPUTimes()
	switch {
	case err != nil:
		steal = Missing(steal.Name, err.Error(), "")
	case vm && times.Total.Steal == 0:
		steal = Missing(steal.Name, "none so far: the hypervisor took no time or does not report it", "")
	case vm:
		steal.Detail = fmt.Sprintf("%v since boot", times.Total.Steal)
	}
	return []Capability{platform, metal, steal}
}

func topologyCapabilities(t Topology, err error) []Capability {
	llc, smt := Present("cache topology", ""), Present("smt", "off")
	if err != nil {
		return []Capability{Missing(llc.Name, err.Error(), ""), Missing(smt.Name, err.Error(), "")}
	}
	unknown := 0
	for _, c := range t.CPUs {
		if c.LLC.ID < 0 {
			unknown++
		}
	}
	caches, nodes, threads := t.Units()
	llc.Detail = fmt.Sprintf("%d last-level caches, %d CPUs, %d memory nodes", caches.Len(), t.Online.Len(), nodes.Len())
	if unknown > 0 {
		llc = Missing(llc.Name, fmt.Sprintf("the kernel reports no last-level cache for %d of %d CPUs", unknown, len(t.CPUs)),
			"tasks that share a memory node are assumed to share a cache")
	}
	if threads {
		smt.Detail = "on"
	}
	return []Capability{llc, smt}
}

func (h *Host) watchdogCapability() Capability {
	if v, err := h.ReadValue("/proc/sys/kernel/nmi_watchdog"); err == nil && v == "1" {
		return Missing("nmi watchdog", "it occupies one hardware counter on every CPU", "sysctl kernel.nmi_watchdog=0")
	}
	return Present("nmi watchdog", "off")
}

func (h *Host) paranoidCapability() Capability {
	const name = "perf_event_paranoid"
	v, err := h.ReadValue("/proc/sys/kernel/perf_event_paranoid")
	if err != nil {
		return Missing(name, err.Error(), "needs a kernel with CONFIG_PERF_EVENTS")
	}
	c := Present(name, v)
	switch n, err := strconv.Atoi(v); {
	case err == nil && n > 2: // Linux has no such level
		c.Reason = "kernels of Debian and Ubuntu then count cpi only with CAP_SYS_ADMIN, which quell-agent.service and the chart's pod do not have"
		c.Remedy = "sysctl kernel.perf_event_paranoid=2, and the same in /etc/sysctl.d"
	case err != nil || n > 0:
		c.Detail += ": needs root, or CAP_PERFMON"
	}
	return c
}
