package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

// ErrPlaced means that the cgroup is already on exactly those CPUs.
var ErrPlaced = errors.New("already on those CPUs")

// CPUSetWrites returns the write that places a cgroup, named by its path in the
// hierarchy with the cpuset controller, on the given CPUs, which may be more or
// fewer than it has. Old and New are spelt as the kernel reads them back. dir
// and inode identify the cgroup that was examined.
//
// A cgroup2 that has not been placed yet has an empty list and the CPUs of the cgroup
// above; the write says so (Write.Empty). The way back is an empty list again or,
// since the kernel does not empty the list of a cgroup that holds processes (ENOSPC;
// seen on 6.1), all CPUs that the machine can have: that too leaves it those of the
// cgroup above, whatever they become. Refused are a v1 cgroup with an empty list,
// since it can hold no processes, and CPUs that the cgroup above does not have.
// Refused too are, on v1, a list that leaves out CPUs of a cgroup below (the kernel
// returns EBUSY) and, on cgroup2, a partition, whose CPUs are taken from its
// siblings. Only the kernel knows whether an exclusive v1 sibling prevents the write.
//
// Since Linux 6.2 the undo also restores the affinity that threads asked for.
// Older kernels keep no record of it, and threads may run on all of Old.
//
// Errors: ErrNoLimit, ErrPlaced, ErrGone.
func (h *Host) CPUSetWrites(cpusetPath string, cpus sample.Set) (dir string, inode uint64, w []Write, err error) {
	dir, inode, w, err = h.cpusetWrites(path.Clean("/"+cpusetPath), cpus)
	if err != nil {
		return "", 0, nil, fmt.Errorf("place %s: %w", cpusetPath, err)
	}
	return dir, inode, w, nil
}

func (h *Host) cpusetWrites(p string, cpus sample.Set) (dir string, inode uint64, w []Write, err error) {
	if cpus.Len() == 0 {
		return "", 0, nil, errors.New("no CPUs given")
	}
	t, v1 := h.trees["cpuset"]
	if !v1 {
		t = h.trees[""]
	}
	if p == "/" || !v1 && !slices.Contains(h.layout.Controllers, "cpuset") {
		return "", 0, nil, ErrNoLimit
	}
	dir = path.Join(t.dir, p)
	if inode, err = h.Inode(dir); err != nil {
		return "", 0, nil, orGone(err)
	}
	file := dir + "/cpuset.cpus"
	old, err := h.ReadValue(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, nil, fmt.Errorf("%w: %w", ErrNoLimit, err)
	}
	if err != nil {
		return "", 0, nil, err
	}
	effective := "/cpuset.cpus.effective"
	if v1 {
		effective = "/cpuset.effective_cpus"
	}
	above, err := h.readSet(path.Dir(dir) + effective)
	switch {
	case err != nil:
		return "", 0, nil, err
	case old == "" && v1:
		return "", 0, nil, fmt.Errorf("%s is empty: it can hold no processes", file)
	case old == cpus.String(), old == "" && above.String() == cpus.String():
		return "", 0, nil, ErrPlaced
	case !within(cpus, above):
		return "", 0, nil, fmt.Errorf("CPUs %s are not a subset of %s, the CPUs of the cgroup above", cpus, above)
	case v1:
		err = h.keepsBelow(dir, cpus)
	default:
		err = h.noPartition(dir)
	}
	if err != nil {
		return "", 0, nil, err
	}
	return dir, inode, []Write{{File: file, Old: old, New: cpus.String(), Empty: old == ""}}, nil
}

// emptyCPUs returns what to write if the kernel does not accept an empty list:
// all possible CPUs. A cgroup2 has those of them that the cgroup above has.
func (h *Host) emptyCPUs(file string, err error) (string, bool) {
	if path.Base(file) != "cpuset.cpus" || !errors.Is(err, unix.ENOSPC) {
		return "", false
	}
	all, err := h.ReadValue("/sys/devices/system/cpu/possible")
	return all, err == nil && all != ""
}

// keepsBelow makes sure that no v1 cgroup directly below dir has CPUs outside
// the set. Deeper cgroups have only CPUs of those.
func (h *Host) keepsBelow(dir string, cpus sample.Set) error {
	entries, err := os.ReadDir(h.Path(dir))
	if err != nil {
		return orGone(err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		child := path.Join(dir, e.Name())
		has, err := h.readSet(child + "/cpuset.cpus")
		if vanished(err) {
			continue
		}
		if err != nil {
			return err
		}
		if !within(has, cpus) {
			return fmt.Errorf("CPUs %s do not include all of %s, the CPUs of %s", cpus, has, child)
		}
	}
	return nil
}

// noPartition makes sure that a cgroup2 is no partition root (5.0 and later
// have them): cgroup-v2.rst, "Cpuset Interface Files".
func (h *Host) noPartition(dir string) error {
	kind, err := h.ReadValue(dir + "/cpuset.cpus.partition")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && kind != "member" {
		err = fmt.Errorf("it is a cpuset partition (%s)", kind)
	}
	return err
}

// within reports whether every number of s is in t.
func within(s, t sample.Set) bool {
	return !slices.ContainsFunc(s.Numbers(), func(n int) bool { return !t.Has(n) })
}
