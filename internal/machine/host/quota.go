package host

import (
	"errors"
	"path"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// lowest returns the lowest limit from p, whose own is given, up to the top
// below dir.
func (h *Host) lowest(hier sample.Hierarchy, dir, p string, own bandwidth) (bandwidth, error) {
	b := own
	for up := path.Dir(p); up != "/"; up = path.Dir(up) {
		above, err := h.readBandwidth(hier, path.Join(dir, up))
		switch {
		case err == nil && b.over(above):
			b = above
		case err != nil && !errors.Is(err, ErrNoLimit):
			return b, err
		}
	}
	return b, nil
}

// Throttled returns how long a cgroup, named by its path in the cpu
// controller's hierarchy, has been throttled by its own quota since it was
// made, summed over CPUs (cpu.stat). The kernel counts it for the cgroup that
// has the quota and not for those below, which are throttled with it. A cgroup
// without a quota is ErrNoLimit. Errors: also ErrNoHierarchy, ErrGone.
func (h *Host) Throttled(cpuPath string) (_ time.Duration, err error) {
	defer wrap(&err, "read throttling of %s", cpuPath)
	hier, dir, err := h.cpuDir(cpuPath)
	if err != nil {
		return 0, err
	}
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

// cpuDir finds a cgroup below the top by its path in the cpu controller's hierarchy.
func (h *Host) cpuDir(cpuPath string) (hier sample.Hierarchy, dir string, err error) {
	hier, ok := h.layout.CPU()
	if !ok {
		return hier, "", ErrNoHierarchy
	}
	p := path.Clean("/" + cpuPath)
	if p == "/" {
		return hier, "", ErrNoLimit
	}
	t, err := h.tree(hier)
	return hier, path.Join(t.dir, p), err
}
