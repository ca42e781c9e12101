package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

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

// Tops returns the directories, as this process opens them, where the hierarchies that tasks
// are found in are mounted.
func (h *Host) Tops() []string {
	var all []string
	for _, hier := range [...]sample.Hierarchy{sample.Unified, sample.V1CPU} {
		if t, err := h.tree(hier); err == nil {
			all = append(all, h.Path(t.dir))
		}
	}
	return all
}

// topInode is the inode of a hierarchy's top (kernfs; the id of the root cgroup).
const topInode = 1

// Partial reports whether this process sees only a part of the machine's cgroups: it is in a
// cgroup namespace of its own, or a container mounts only its own cgroup.
func (h *Host) Partial() bool {
	for _, t := range h.trees {
		if inode, err := h.Inode(t.dir); err == nil && inode != topInode {
			return true
		}
	}
	return false
}

// Above reports whether this process is in a cgroup namespace of its own and sees the cgroups above
// it nevertheless: a container with a mount of the machine's cgroups. Paths in /proc are relative
// to the namespace then, as the mount's top is, "/../.." (cgroup_namespaces(7)).
func (h *Host) Above(hier sample.Hierarchy) bool {
	t, err := h.tree(hier)
	return err == nil && strings.HasPrefix(t.top, "/..")
}

// Holds reports whether a process is in the cgroup at a place itself.
func (h *Host) Holds(at Place, pid int) bool {
	t, err := h.tree(at.Hierarchy)
	if err != nil {
		return false
	}
	text, err := h.ReadValue(path.Join(t.dir, at.Path, "cgroup.procs"))
	return err == nil && slices.Contains(strings.Fields(text), strconv.Itoa(pid))
}

// Unread are cgroups that a walk left out, with all that is below them. The zero value is none.
type Unread struct {
	N     int
	First string // the path of the first, below the mount
	Err   error  // why it was left out
}

// Add adds what another walk left out.
func (u *Unread) Add(more Unread) {
	if u.N == 0 {
		u.First, u.Err = more.First, more.Err
	}
	u.N += more.N
}

// AsError returns nil for none, else an error that names the first.
func (u *Unread) AsError() error {
	if u.N == 0 {
		return nil
	}
	name := u.First
	if len(name) > maxShown {
		name = name[:maxShown]
		return fmt.Errorf("%d cgroups were left out, the first is %q… (%d bytes): %w", u.N, name, len(u.First), u.Err)
	}
	return fmt.Errorf("%d cgroups were left out, the first is %q: %w", u.N, name, u.Err)
}

// maxShown is how much of a path an error shows.
const maxShown = 100

// WalkAt calls fn for the cgroup at a place and every one below it with its path below
// the mount, parents first and siblings in order; for none if it does not exist. Cgroups
// that vanish meanwhile are skipped. fn may return fs.SkipDir to leave out what is below;
// any other error ends the walk and is returned.
//
// A cgroup that cannot be read, or whose path is so long that its files could not be named,
// is left out: the task that made it must not hide the others.
func (h *Host) WalkAt(at Place, fn func(path string, inode uint64) error) (Unread, error) {
	t, err := h.tree(at.Hierarchy)
	if err != nil {
		return Unread{}, fmt.Errorf("walk cgroups: %w", err)
	}
	w := walker{longest: longestDir - len(h.Path(t.dir))}
	err = w.walk(h, t.dir, at.Path, func(v visited) error { return fn(w.at(), v.inode) })
	return w.unread, err
}

// walkAll calls fn for the cgroup at p in the hierarchy mounted at mount and every one below
// it, however long its path is. If there are more than most, the error is ErrCrowded: after the
// first most or, if it has been crowded a short time ago, after none. It is an error too if one
// of them cannot be read.
func (h *Host) walkAll(mount, p string, most int, fn func(w *walker, v visited) error) error {
	var w walker
	var first crowdKey
	n := 0
	err := w.walk(h, mount, p, func(v visited) error {
		if n++; n == 1 {
			first = crowdKey{mount, v.inode, most}
			if h.crowds.has(first) {
				return ErrCrowded
			}
		}
		if n > most {
			h.crowds.add(first)
			return ErrCrowded
		}
		return fn(&w, v)
	})
	return errors.Join(err, w.unread.AsError())
}

// walker walks a hierarchy with one descriptor, which moves from cgroup to cgroup: whatever
// tasks make, neither the length of a path nor the depth uses up what the process may have.
type walker struct {
	mount   string   // as this process opens it
	dir     *os.File // where it is
	path    []byte   // of what is visited, below the mount
	longest int      // cgroups with longer paths are left out; 0: none
	unread  Unread
	fn      func(visited) error
}

// visited is a cgroup during the call for it.
type visited struct {
	inode uint64
	depth int // 0: the first
	fd    int // a directory, and
	name  string
}

// read reads a file of the cgroup.
func (v visited) read(file string) ([]byte, error) {
	name := v.name + "/" + file
	fd, err := unix.Openat(v.fd, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return readAll(os.NewFile(uintptr(fd), name))
}

// at is the path of the cgroup that is visited, below the mount.
func (w *walker) at() string {
	if len(w.path) == 0 {
		return "/"
	}
	return string(w.path)
}

func (w *walker) walk(h *Host, mount, p string, fn func(visited) error) error {
	w.mount, w.fn = h.Path(mount), fn
	if w.path = []byte(p); p == "/" {
		w.path = w.path[:0]
	}
	if w.tooLong() {
		return w.leaveOut(unix.ENAMETOOLONG)
	}
	var err error
	if w.dir, err = openLong(path.Join(w.mount, p), unix.O_RDONLY|unix.O_DIRECTORY); err != nil {
		if vanished(err) || errors.Is(err, unix.ENOTDIR) {
			return nil
		}
		return w.leaveOut(err)
	}
	defer func() { w.dir.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(w.dir.Fd()), &st); err != nil {
		return w.leaveOut(err)
	}
	if err := fn(visited{st.Ino, 0, int(w.dir.Fd()), "."}); err != nil {
		return skipped(err)
	}
	_, err = w.below(&st, 1) // if the first is gone, so is all below it
	return err
}

// below visits what is below the directory where the walker is. here is false if it could not
// come back to that directory.
func (w *walker) below(self *unix.Stat_t, depth int) (here bool, err error) {
	names, err := subdirs(w.dir, uint64(self.Nlink))
	if err != nil {
		return true, w.leaveOut(err)
	}
	length := len(w.path)
	defer func() { w.path = w.path[:length] }()
	for _, name := range names {
		w.path = append(append(w.path[:length], '/'), name...)
		moved, err := w.visit(name, depth)
		if err != nil {
			return true, err
		}
		if w.path = w.path[:length]; moved {
			if here, err := w.back(self); !here {
				return false, err
			}
		}
	}
	return true, nil
}

// visit visits one cgroup of those below the directory where the walker is, and what is below
// that. moved is true if the walker is then elsewhere.
func (w *walker) visit(name string, depth int) (moved bool, err error) {
	if w.tooLong() {
		return false, w.leaveOut(unix.ENAMETOOLONG)
	}
	fd := int(w.dir.Fd())
	var st unix.Stat_t
	if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, w.leaveOut(err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return false, nil
	}
	if err := w.fn(visited{st.Ino, depth, fd, name}); err != nil {
		return false, skipped(err)
	}
	if st.Nlink == 2 { // see subdirs
		return false, nil
	}
	child, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, w.leaveOut(err)
	}
	w.dir.Close()
	w.dir = os.NewFile(uintptr(child), name)
	_, err = w.below(&st, depth+1)
	return true, err
}

// back moves to a directory from one that is, or was, below it: up one level or, if that leads
// elsewhere because something was removed meanwhile, along its path. It reports whether the
// directory is still there; lacking is why that is not known.
func (w *walker) back(to *unix.Stat_t) (here bool, lacking error) {
	try := func(fd int, err error) bool {
		if exhausted(err) {
			lacking = fmt.Errorf("walk cgroups: %w", err)
		}
		if err != nil {
			return false
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Ino != to.Ino || st.Dev != to.Dev {
			unix.Close(fd)
			return false
		}
		w.dir.Close()
		w.dir = os.NewFile(uintptr(fd), "..")
		return true
	}
	if try(unix.Openat(int(w.dir.Fd()), "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)) {
		return true, nil
	}
	f, err := openLong(path.Join(w.mount, w.at()), unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		try(-1, err)
		return false, lacking
	}
	defer f.Close()
	here = try(unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0))
	return here, lacking
}

func (w *walker) tooLong() bool { return w.longest > 0 && len(w.path) > w.longest }

// leaveOut notes that the present cgroup is left out, unless it has vanished. If the
// process itself lacks something, every other one would fail too: that is an error.
func (w *walker) leaveOut(err error) error {
	switch {
	case vanished(err):
		return nil
	case exhausted(err):
		return fmt.Errorf("walk cgroups: %w", err)
	}
	w.unread.Add(Unread{1, w.at(), err})
	return nil
}

// skipped is what the error of a callback means for the walk.
func skipped(err error) error {
	if errors.Is(err, fs.SkipDir) {
		return nil
	}
	return err
}

// subdirs lists the directories in dir, sorted; none if dir has vanished. A cgroup
// has about forty files, so the link count, which in cgroupfs is 2 plus the number of
// directories, saves reading most of them. (File systems that do not count report 1.)
func subdirs(dir *os.File, nlink uint64) ([]string, error) {
	if nlink == 2 {
		return nil, nil
	}
	entries, err := dir.ReadDir(-1)
	if err != nil && !vanished(err) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// subdirsOf is subdirs by path.
func subdirsOf(p string, nlink uint64) ([]string, error) {
	if nlink == 2 {
		return nil, nil
	}
	f, err := openLong(p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		if vanished(err) {
			return nil, nil
		}
		return nil, err
	}
	defer f.Close()
	return subdirs(f, nlink)
}

// vanished reports whether err says that a cgroup or process is gone: it can
// end between any two calls.
func vanished(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ESRCH)
}

// exhausted reports whether err is about this process or machine and not about a file.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.ENOSPC)
}
