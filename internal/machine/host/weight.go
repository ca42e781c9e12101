package host

import (
	"strconv"

	"github.com/quell-dev/quell/internal/core/sample"
)

// DefaultWeight is the weight of a cgroup for which none has been set.
const DefaultWeight = 100

// The kernel's weights of such a cgroup, which are also v1's cpu.shares, and of
// one with cpu.idle (kernel/sched/sched.h: NICE_0_LOAD, WEIGHT_IDLEPRIO).
const (
	kernelOrdinary = 1024
	kernelIdle     = 3
)

// Weight returns the weight with which a cgroup, named by its path in the cpu
// controller's hierarchy, competes with the others in the cgroup above it, in units
// of cpu.weight: 1 to 10,000 or, with cpu.idle, less (cgroup-v2.rst; v1's cpu.shares,
// sched-design-CFS.rst, are converted). The top has no weight, nor has a cgroup for
// which the controller is not enabled. Errors: ErrNoHierarchy, ErrNoLimit, ErrGone.
func (h *Host) Weight(cpuPath string) (_ float64, err error) {
	defer wrap(&err, "read CPU weight of %s", cpuPath)
	hier, dir, err := h.cpuDir(cpuPath)
	if err != nil {
		return 0, err
	}
	file, scale := "/cpu.weight", 1.0
	if hier == sample.V1CPU {
		file, scale = "/cpu.shares", float64(DefaultWeight)/kernelOrdinary
	}
	text, err := h.ReadValue(dir + file)
	if err != nil {
		if _, gone := h.Inode(dir); gone != nil {
			return 0, orGone(gone)
		}
		return 0, ErrNoLimit
	}
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, err
	}
	if n == 0 { // the kernel rounds the weight of cpu.idle to 0
		return kernelIdle * float64(DefaultWeight) / kernelOrdinary, nil
	}
	return float64(n) * scale, nil
}
