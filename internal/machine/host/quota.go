package host

import (
	"errors"
	"fmt"
	"math"
	"path"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Quota is the CPU limit that applies to a cgroup: the lowest of its own and of
// those of all cgroups above it.
type Quota struct {
	Rate float64 // CPU-s/s; +Inf if there is none
	Path string  // the cgroup that has the limit, in the cpu controller's hierarchy; "" if there is none
}

// Quota returns the limit of a cgroup, named by its path in the cpu controller's
// hierarchy. Cgroups without the controller have no limit of their own.
// Errors: ErrNoHierarchy, ErrGone.
func (h *Host) Quota(cpuPath string) (Quota, error) {
	q, err := h.quota(path.Clean("/" + cpuPath))
	if err != nil {
		return Quota{}, fmt.Errorf("read CPU limit of %s: %w", cpuPath, err)
	}
	return q, nil
}

func (h *Host) quota(p string) (Quota, error) {
	hier, ok := h.layout.CPU()
	if !ok {
		return Quota{}, ErrNoHierarchy
	}
	t, err := h.tree(hier)
	if err != nil {
		return Quota{}, err
	}
	if _, err := h.Inode(path.Join(t.dir, p)); err != nil {
		return Quota{}, orGone(err)
	}
	none := Quota{Rate: math.Inf(1)}
	if p == "/" {
		return none, nil
	}
	own, err := h.readBandwidth(hier, path.Join(t.dir, p))
	if errors.Is(err, ErrNoLimit) {
		own, err = bandwidth{quota: -1, period: 1}, nil
	}
	if err != nil {
		return Quota{}, err
	}
	b, at, err := h.lowest(hier, t.dir, p, own)
	if err != nil || !b.limited() {
		return none, err
	}
	return Quota{Rate: float64(b.quota) / float64(b.period), Path: at}, nil
}

// lowest returns the lowest limit from p, whose own is given, up to the top
// below dir, and the cgroup that has it: of equal limits the nearest.
func (h *Host) lowest(hier sample.Hierarchy, dir, p string, own bandwidth) (b bandwidth, at string, err error) {
	b, at = own, p
	for up := path.Dir(p); up != "/"; up = path.Dir(up) {
		above, err := h.readBandwidth(hier, path.Join(dir, up))
		switch {
		case err == nil && b.over(above):
			b, at = above, up
		case err != nil && !errors.Is(err, ErrNoLimit):
			return b, at, err
		}
	}
	return b, at, nil
}

// Throttled returns how long a cgroup, named by its path in the cpu
// controller's hierarchy, has been throttled by its own quota since it was
// made, summed over CPUs (cpu.stat). The kernel counts it for the cgroup that
// has the quota and not for those below, which are throttled with it. A cgroup
// without a quota is ErrNoLimit. Errors: also ErrNoHierarchy, ErrGone.
func (h *Host) Throttled(cpuPath string) (time.Duration, error) {
	d, err := h.throttled(path.Clean("/" + cpuPath))
	if err != nil {
		return 0, fmt.Errorf("read throttling of %s: %w", cpuPath, err)
	}
	return d, nil
}

func (h *Host) throttled(p string) (time.Duration, error) {
	hier, ok := h.layout.CPU()
	if !ok {
		return 0, ErrNoHierarchy
	}
	if p == "/" {
		return 0, ErrNoLimit
	}
	t, err := h.tree(hier)
	if err != nil {
		return 0, err
	}
	dir := path.Join(t.dir, p)
	b, err := h.readBandwidth(hier, dir)
	if errors.Is(err, ErrNoLimit) {
		if _, gone := h.Inode(dir); gone != nil {
			err = orGone(gone)
		}
	}
	if err != nil {
		return 0, err
	}
	if !b.limited() {
		return 0, ErrNoLimit
	}
	text, err := h.ReadValue(dir + "/cpu.stat")
	if err != nil {
		return 0, orGone(err)
	}
	var u Usage
	u.parse([]byte(text))
	return u.Throttled, nil
}
