package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

// ErrNoHierarchy means that the cgroup hierarchy is not mounted.
var ErrNoHierarchy = errors.New("cgroup hierarchy not mounted")

// tree returns the mount of an identity hierarchy.
func (h *Host) tree(hier sample.Hierarchy) (tree, error) {
	name := ""
	if hier == sample.V1CPU {
		name = "cpu"
	}
	t, ok := h.trees[name]
	if !ok {
		return t, fmt.Errorf("%s: %w", hier, ErrNoHierarchy)
	}
	return t, nil
}

// WalkAt calls fn for the cgroup at a place and every one below it with its path below
// the mount, parents first and siblings in order; for none if it does not exist. Cgroups
// that vanish meanwhile are skipped. fn may return fs.SkipDir to leave out what is below;
// any other error ends the walk and is returned.
func (h *Host) WalkAt(at Place, fn func(path string, inode uint64) error) error {
	t, err := h.tree(at.Hierarchy)
	if err != nil {
		return fmt.Errorf("walk cgroups: %w", err)
	}
	return h.walk(t.dir, at.Path, fn)
}

// walk is WalkAt for the cgroup at p in the hierarchy mounted at mount.
func (h *Host) walk(mount, p string, fn func(string, uint64) error) error {
	dir := h.Path(path.Join(mount, p))
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if vanished(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("walk cgroups: %w", &fs.PathError{Op: "stat", Path: dir, Err: err})
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil
	}
	if err := fn(p, st.Ino); err != nil {
		if errors.Is(err, fs.SkipDir) {
			return nil
		}
		return err
	}
	names, err := subdirs(dir, uint64(st.Nlink))
	if err != nil {
		return fmt.Errorf("walk cgroups: %w", err)
	}
	for _, name := range names {
		if err := h.walk(mount, path.Join(p, name), fn); err != nil {
			return err
		}
	}
	return nil
}

// subdirs lists the directories in dir, sorted; none if dir has vanished. A cgroup
// has about forty files, so the link count, which in cgroupfs is 2 plus the number of
// directories, saves reading most of them. (File systems that do not count report 1.)
func subdirs(dir string, nlink uint64) ([]string, error) {
	if nlink == 2 {
		return nil, nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !vanished(err) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// vanished reports whether err says that a cgroup or process is gone: it can
// end between any two calls.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH)
}
