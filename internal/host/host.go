package host

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Host is one machine below a root path. Its methods may be called from
// several goroutines.
type Host struct {
	root   string
	layout Layout
	trees  map[string]tree // by v1 controller; "" is cgroup2
}

// Open finds the cgroup mounts of the machine below root ("/" for this one)
// from <root>/proc/self/mountinfo. A machine without cgroups opens too.
func Open(root string) (*Host, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("open host: %w", err)
	}
	h := &Host{root: root}
	text, err := os.ReadFile(h.Path("/proc/self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("open host: %w", err)
	}
	h.trees = parseMountinfo(text, root)
	h.layout = h.findLayout()
	return h, nil
}

// Path returns the path under which this process can open a path inside the
// root.
func (h *Host) Path(inside string) string {
	if h.root == "/" {
		return inside
	}
	return h.root + inside
}

// Layout returns how cgroups are mounted.
func (h *Host) Layout() Layout { return h.layout }

// BootID identifies the present boot: /proc/sys/kernel/random/boot_id.
func (h *Host) BootID() (string, error) {
	return h.ReadValue("/proc/sys/kernel/random/boot_id")
}

// ReadValue returns what a small file holds, trimmed.
func (h *Host) ReadValue(file string) (string, error) {
	text, err := os.ReadFile(h.Path(file))
	if err != nil {
		return "", fmt.Errorf("read value: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// WriteValue writes a value to a file that exists, in one write. It never
// creates the file: in a test's tree as in the kernel, a missing one fails.
func (h *Host) WriteValue(file, value string) error {
	f, err := os.OpenFile(h.Path(file), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write value: %w", err)
	}
	defer f.Close()
	if _, err := f.WriteString(value); err != nil {
		return fmt.Errorf("write value %q: %w", value, err)
	}
	// In a tree of text the tail of a longer old value would stay. Cgroup
	// files have size 0.
	if info, err := f.Stat(); err == nil && info.Size() > int64(len(value)) {
		if err := f.Truncate(int64(len(value))); err != nil {
			return fmt.Errorf("write value %q: %w", value, err)
		}
	}
	return nil
}

// Inode returns a directory's inode number; for a cgroup that is the kernel's
// cgroup id (64-bit kernels, 5.5 and later). Another number under the same
// path is another cgroup.
func (h *Host) Inode(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(h.Path(dir), &st); err != nil {
		return 0, fmt.Errorf("read inode: %w", &fs.PathError{Op: "stat", Path: h.Path(dir), Err: err})
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, fmt.Errorf("read inode: %w", &fs.PathError{Op: "stat", Path: h.Path(dir), Err: syscall.ENOTDIR})
	}
	return st.Ino, nil
}
