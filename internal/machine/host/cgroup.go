package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

var (
	// ErrGone means that the cgroup does not exist any more, or that another
	// one has its path now.
	ErrGone = errors.New("cgroup is gone")
	// ErrNoUsage means that the kernel keeps no CPU time for just this
	// cgroup: a v1 cgroup whose processes are in "/" of cpuacct, or are not
	// together there.
	ErrNoUsage = errors.New("kernel reports no CPU time for the cgroup")
	// ErrNoPSI means that there is no pressure file for the cgroup.
	ErrNoPSI = errors.New("no pressure file")
)

// Cgroup is one cgroup. It keeps open the files that are read repeatedly:
// opening them for each reading costs several times as much (see
// BenchmarkUsage). The kernel returns ENODEV from them once the cgroup is gone,
// also if its path is in use again. It is for one goroutine.
type Cgroup struct {
	h     *Host
	hier  sample.Hierarchy
	tree  tree
	dir   string // inside the root
	path  string // below the mount
	inode uint64

	usage, throttle statFile
	psi             []pressureFile
	closeAfterRead  bool // files are open only while they are read: KeepOpen
	accounts        [numAccounts]account
	followed        bool // accounts are those of places
	places          Places
	tally           tally
}

// statFile is a descriptor that is kept open, -1 if there is none.
type statFile struct {
	fd   int
	own  bool   // in the cgroup itself, not in another hierarchy's
	from string // the directory it is in
}

// pressureFile is the kept file of one resource.
type pressureFile struct {
	resource string
	statFile
}

// OpenCgroup opens the cgroup at a path below the mount of a hierarchy. One
// that does not exist is ErrGone.
func (h *Host) OpenCgroup(hier sample.Hierarchy, p string) (*Cgroup, error) {
	t, err := h.tree(hier)
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", p, err)
	}
	c := &Cgroup{h: h, hier: hier, tree: t, usage: statFile{fd: -1}, throttle: statFile{fd: -1}}
	c.path = path.Clean("/" + p)
	if c.dir = path.Join(t.dir, c.path); strings.HasSuffix(c.dir, c.path) {
		c.path = c.dir[len(c.dir)-len(c.path):] // one text in memory
	}
	if c.inode, err = h.Inode(c.Dir()); err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", p, orGone(err))
	}
	if _, err := c.Places(); err != nil {
		c.Close()
		return nil, fmt.Errorf("open cgroup %s: %w", p, err)
	}
	return c, nil
}

// Inode is the kernel's cgroup id.
func (c *Cgroup) Inode() uint64 { return c.inode }

// Dir is the cgroup's directory in its identity hierarchy, inside the root.
func (c *Cgroup) Dir() string { return c.dir }

// Path is the cgroup's path below the mount of its identity hierarchy.
func (c *Cgroup) Path() string { return c.path }

// Close closes the kept files and accounts.
func (c *Cgroup) Close() error { return errors.Join(c.drop(), c.unfollowAll()) }

func (f *statFile) close() error {
	if f.fd < 0 {
		return nil
	}
	err := unix.Close(f.fd)
	*f = statFile{fd: -1}
	return err
}

// openIn opens a file of the cgroup itself (dir is c.Dir()) or of its place in
// another hierarchy. It first compares the inode of its own directory, so that
// a path in use again is never mistaken for this cgroup.
func (c *Cgroup) openIn(dir, name string) (statFile, error) {
	own := dir == c.Dir()
	at, err := unix.Open(c.h.Path(dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return statFile{fd: -1}, &fs.PathError{Op: "open", Path: c.h.Path(dir), Err: err}
	}
	defer unix.Close(at)
	if own {
		var st unix.Stat_t
		if err := unix.Fstat(at, &st); err != nil {
			return statFile{fd: -1}, &fs.PathError{Op: "stat", Path: c.h.Path(dir), Err: err}
		}
		if st.Ino != c.inode {
			return statFile{fd: -1}, ErrGone
		}
	}
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return statFile{fd: -1}, &fs.PathError{Op: "open", Path: c.h.Path(path.Join(dir, name)), Err: err}
	}
	return statFile{fd: fd, own: own, from: dir}, nil
}

// fileBuffer is larger than every file that a Cgroup reads often. Cgroups share them: one of each
// would be most of its memory.
type fileBuffer [1024]byte

var fileBuffers = sync.Pool{New: func() any { return new(fileBuffer) }}

// read reads a kept file. If the file is in another hierarchy and its cgroup is gone there, it is
// closed and nothing is read.
func (f *statFile) read(buf *fileBuffer) ([]byte, error) {
	n, err := unix.Pread(f.fd, buf[:], 0)
	switch {
	case err == nil:
		return buf[:n], nil
	case err == unix.ENODEV && f.own:
		return nil, ErrGone
	case err == unix.ENODEV:
		return nil, f.close()
	default:
		return nil, err
	}
}

// Members returns the ids of the processes in the cgroup and below it,
// ascending. Processes of other pid namespaces cannot be named and are left
// out.
func (c *Cgroup) Members() ([]int, error) {
	pids, err := c.h.processes(c.tree.dir, c.path, c.inode, "cgroup.procs")
	if err != nil {
		return nil, fmt.Errorf("read members of %s: %w", c.path, err)
	}
	return pids, nil
}

// Members is Cgroup.Members of the cgroup at a place, if its inode is that one. It may be called
// from any goroutine.
func (h *Host) Members(at Place, inode uint64) ([]int, error) {
	t, err := h.tree(at.Hierarchy)
	if err != nil {
		return nil, fmt.Errorf("read members of %s: %w", at.Path, err)
	}
	pids, err := h.processes(t.dir, at.Path, inode, "cgroup.procs")
	if err != nil {
		return nil, fmt.Errorf("read members of %s: %w", at.Path, err)
	}
	return pids, nil
}

// Threads returns how many threads are in the cgroup and below it.
func (c *Cgroup) Threads() (int, error) {
	tids, err := c.h.processes(c.tree.dir, c.path, c.inode, c.threadsFile())
	if err != nil {
		return 0, fmt.Errorf("count threads of %s: %w", c.path, err)
	}
	return len(tids), nil
}

func (c *Cgroup) threadsFile() string {
	if c.hier == sample.V1CPU {
		return "tasks"
	}
	return "cgroup.threads"
}

// Below returns the kernel's ids of the cgroups below this one, as
// sample.CgroupID makes them. With ErrCrowded they are some of them.
func (c *Cgroup) Below() ([]uint64, error) {
	// Most cgroups have none below them, which one call shows.
	var st unix.Stat_t
	if err := stat(c.h.Path(c.Dir()), &st); err == nil && st.Ino == c.inode && st.Nlink == 2 {
		return nil, nil
	}
	var ids []uint64
	err := c.h.walkAll(c.tree.dir, c.path, mostBelow, func(_ *walker, v visited) error {
		if v.depth > 0 {
			ids = append(ids, sample.CgroupID(c.hier, v.inode))
		} else if v.inode != c.inode {
			return ErrGone
		}
		return nil
	})
	if errors.Is(err, ErrCrowded) {
		key := crowdKey{c.tree.dir, c.inode, mostBelow}
		if ids == nil {
			ids = c.h.crowds.listed(key)
		}
		c.h.crowds.keep(key, ids)
		return ids, fmt.Errorf("list cgroups below %s: %w", c.path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("list cgroups below %s: %w", c.path, err)
	}
	return ids, nil
}

// processes collects the ids in one file of a cgroup and of all below it,
// ascending, each once. An inode that is not 0 must be the cgroup's.
func (h *Host) processes(mount, p string, inode uint64, file string) ([]int, error) {
	var ids []int
	found := false
	err := h.walkAll(mount, p, mostRead, func(_ *walker, v visited) error {
		if v.depth == 0 && inode != 0 && v.inode != inode {
			return ErrGone
		}
		found = true
		text, err := v.read(file)
		// A cgroup2 in threaded mode has no list of processes; its domain,
		// which is above it, lists them (cgroup-v2.rst, "Threads").
		if vanished(err) || errors.Is(err, unix.EOPNOTSUPP) {
			return nil
		}
		ids = appendIDs(ids, text)
		return err
	})
	if err == nil && !found {
		err = ErrGone
	}
	slices.Sort(ids)
	return slices.Compact(ids), err
}

// appendIDs parses cgroup.procs, cgroup.threads and tasks: one id per line, 0
// for a process or thread in another pid namespace.
func appendIDs(ids []int, text []byte) []int {
	for line := range bytes.Lines(text) {
		if n, ok := parseUint(bytes.TrimSpace(line)); ok && n > 0 && n <= 1<<22 {
			ids = append(ids, int(n))
		}
	}
	return ids
}

// parseUint reads decimal digits and nothing else. strconv would make a
// string of them first.
func parseUint(b []byte) (n uint64, ok bool) {
	if len(b) == 0 || len(b) > 19 {
		return 0, false
	}
	for _, d := range b {
		if d < '0' || d > '9' {
			return 0, false
		}
		n = n*10 + uint64(d-'0')
	}
	return n, true
}

// orGone adds ErrGone to an error that says that a file does not exist.
func orGone(err error) error {
	if vanished(err) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}
