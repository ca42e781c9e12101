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
	c := Capability{Name: "cgroups", OK: h.layout.Kind != None}
	if !c.OK {
		c.Reason, c.Remedy = "no cgroup hierarchy is mounted", "mount cgroup2 on /sys/fs/cgroup"
		return c
	}
	c.Detail = h.layout.Kind.String()
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
	c := Capability{Name: "cpu quota"}
	hier, ok := h.layout.CPU()
	if !ok {
		c.Reason = "no mounted hierarchy has the cpu controller"
		c.Remedy = "enable it for cgroup2 or mount the v1 cpu hierarchy"
		return c
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
		c.Reason = fmt.Sprintf("%s is not writable: %v", found, err)
		c.Remedy = "run as root with " + dir + " mounted read-write; without that, quell only observes and advises"
		return c
	}
	c.OK, c.Detail = true, fmt.Sprintf("%s of %s", file, hier)
	return c
}

// first returns the named file of a cgroup directly below a mount, "" if no
// cgroup there has it.
func (h *Host) first(dir, file string) string {
	names, _ := subdirs(h.Path(dir), 0)
	for _, name := range names {
		if f := path.Join(dir, name, file); unix.Access(h.Path(f), unix.F_OK) == nil {
			return f
		}
	}
	return ""
}

func (h *Host) cpusetCapability() Capability {
	c := Capability{Name: "cpuset", OK: true}
	dir, v1 := h.layout.V1["cpuset"]
	switch {
	case v1:
		c.Detail = "v1 at " + dir
	case slices.Contains(h.layout.Controllers, "cpuset"):
		c.Detail = "cgroup2"
	default:
		c.OK, c.Reason = false, "no mounted hierarchy has the cpuset controller"
		c.Remedy = "tasks cannot be moved to other CPUs; capping is not affected"
	}
	return c
}

func (h *Host) psiCapability() Capability {
	c := Capability{Name: "psi"}
	if _, err := h.PSI("cpu"); err != nil {
		c.Reason, c.Remedy = err.Error(), "boot with psi=1 (a kernel with CONFIG_PSI)"
		return c
	}
	c.OK, c.Detail = true, "cpu"
	for _, resource := range [...]string{"memory", "io"} {
		if _, err := h.PSI(resource); err == nil {
			c.Detail += ", " + resource
		}
	}
	return c
}

func (h *Host) cgroupPSICapability() Capability {
	c := Capability{Name: "psi per cgroup"}
	if h.layout.Unified == "" {
		c.Reason, c.Remedy = "only cgroup2 has it", "mount cgroup2 next to the v1 hierarchies"
		return c
	}
	found := h.first(h.layout.Unified, "cpu.pressure")
	if found == "" { // only the top exists; it has the file since about 5.13
		found = h.layout.Unified + "/cpu.pressure"
	}
	if _, err := h.ReadValue(found); err != nil {
		c.Reason, c.Remedy = orNoPSI(err).Error(), "boot with psi=1 (a kernel with CONFIG_PSI)"
		return c
	}
	c.OK = true
	return c
}

func (h *Host) resctrlCapability() Capability {
	c := Capability{Name: "resctrl"}
	if _, err := h.Inode("/sys/fs/resctrl/info"); err == nil {
		c.OK, c.Detail = true, "mounted at /sys/fs/resctrl"
		return c
	}
	types, _ := h.ReadValue("/proc/filesystems")
	if slices.Contains(strings.Fields(types), "resctrl") {
		c.Reason, c.Remedy = "not mounted", "mount -t resctrl resctrl /sys/fs/resctrl"
	} else {
		c.Reason = "not supported by the kernel or the CPU; most virtual machines lack it"
	}
	return c
}

func (h *Host) virtualCapabilities() []Capability {
	platform := Capability{Name: "platform", OK: true}
	p, err := h.Platform()
	platform.Detail = string(p)
	if err != nil {
		platform.OK, platform.Reason = false, err.Error()
	}
	vm := strings.HasSuffix(string(p), "-vm")
	steal := Capability{Name: "stolen time", OK: true}
	times, err := h.CPUTimes()
	switch {
	case err != nil:
		steal.OK, steal.Reason = false, err.Error()
	case !vm:
		steal.Detail = "not a virtual machine"
	case times.Total.Steal == 0:
		steal.OK = false
		steal.Reason = "none so far: the hypervisor took no time or does not report it"
	default:
		steal.Detail = fmt.Sprintf("%v since boot", times.Total.Steal)
	}
	metal := Capability{Name: "bare metal", OK: !vm && platform.OK}
	switch {
	case !platform.OK:
		metal.Reason = "unknown, because the platform is unknown"
	case vm:
		metal.Reason = "a virtual machine: neighbours outside it are visible only as steal"
	}
	return []Capability{platform, metal, steal}
}

func topologyCapabilities(t Topology, err error) []Capability {
	llc := Capability{Name: "cache topology"}
	smt := Capability{Name: "smt"}
	if err != nil {
		llc.Reason, smt.Reason = err.Error(), err.Error()
		return []Capability{llc, smt}
	}
	caches := t.Caches(t.Online)
	unknown := 0
	for _, c := range t.CPUs {
		if c.LLC.ID < 0 {
			unknown++
		}
	}
	if llc.OK = unknown == 0; !llc.OK {
		llc.Reason = fmt.Sprintf("the kernel reports no last-level cache for %d of %d CPUs", unknown, len(t.CPUs))
		llc.Remedy = "tasks that share a memory node are assumed to share a cache"
	} else {
		llc.Detail = fmt.Sprintf("%d last-level caches, %d CPUs, %d memory nodes", caches.Len(), t.Online.Len(), t.Nodes(t.Online).Len())
	}
	smt.OK = true
	if smt.Detail = "off"; t.SMT() {
		smt.Detail = "on"
	}
	return []Capability{llc, smt}
}

func (h *Host) watchdogCapability() Capability {
	c := Capability{Name: "nmi watchdog", OK: true, Detail: "off"}
	if v, err := h.ReadValue("/proc/sys/kernel/nmi_watchdog"); err == nil && v == "1" {
		c.OK, c.Detail = false, ""
		c.Reason, c.Remedy = "it occupies one hardware counter on every CPU", "sysctl kernel.nmi_watchdog=0"
	}
	return c
}

func (h *Host) paranoidCapability() Capability {
	c := Capability{Name: "perf_event_paranoid"}
	v, err := h.ReadValue("/proc/sys/kernel/perf_event_paranoid")
	if err != nil {
		c.Reason, c.Remedy = err.Error(), "needs a kernel with CONFIG_PERF_EVENTS"
		return c
	}
	c.OK, c.Detail = true, v
	if n, err := strconv.Atoi(v); err != nil || n > 0 {
		c.Detail += ": needs root, or CAP_PERFMON"
	}
	return c
}
