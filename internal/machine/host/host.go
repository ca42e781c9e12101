package host

import (
	"errors"
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
	held   heldFiles
	crowds crowds

	accounts     Accounts // nil: files are read
	accountsRead bool     // they are valid now
	rows         int      // of accounts in use
	few          int      // cgroups that are always walked for accounts
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

// ReadValue returns the trimmed content of a small file, or of a file with a
// line per device (see IOWrites) the content for one device.
func (h *Host) ReadValue(file string) (string, error) {
	file, device := splitDevice(file)
	text, err := h.held.read(file)
	if errors.Is(err, errNotHeld) {
		text, err = readFile(h.Path(file))
	}
	if err != nil {
		return "", fmt.Errorf("read value: %w", err)
	}
	if device != "" {
		return ofDevice(file, string(text), device), nil
	}
	return strings.TrimSpace(string(text)), nil
}

// WriteValue writes a value to a file that exists, in one write. It never
// creates the file: in a test's tree as in the kernel, a missing one fails. If
// this process may not write the file, the error is a *PermissionError.
func (h *Host) WriteValue(file, value string) error {
	file, device := splitDevice(file)
	if device != "" {
		value = device + " " + value
	}
	err := h.held.write(file, value)
	if errors.Is(err, errNotHeld) {
		err = h.writeOnce(file, value)
	}
	if err != nil {
		return fmt.Errorf("write value %q: %w", value, orNotPermitted(file, err))
	}
	return nil
}

func (h *Host) writeOnce(file, value string) error {
	f, err := openLong(h.Path(file), os.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	return writeAt(f, value)
}

// writeAt replaces the content of a file.
func writeAt(f *os.File, value string) error {
	if _, err := f.WriteAt([]byte(value), 0); err != nil {
		return err
	}
	// In a tree of text the tail of a longer old value would stay. Cgroup
	// files have size 0.
	if info, err := f.Stat(); err == nil && info.Size() > int64(len(value)) {
		return f.Truncate(int64(len(value)))
	}
	return nil
}

// Inode returns a directory's inode number; for a cgroup that is the kernel's
// cgroup id (64-bit kernels, 5.5 and later). Another number under the same
// path is another cgroup.
func (h *Host) Inode(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := stat(h.Path(dir), &st); err != nil {
		return 0, fmt.Errorf("read inode: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return 0, fmt.Errorf("read inode: %w", &fs.PathError{Op: "stat", Path: h.Path(dir), Err: syscall.ENOTDIR})
	}
	return st.Ino, nil
}

// PermissionError says that this process may not write a file.
type PermissionError struct {
	File string // inside the root
	Err  error  // EACCES, EPERM or EROFS
}

func (e *PermissionError) Error() string {
	return fmt.Sprintf("%v (to allow it: %s)", e.Err, e.Remedy())
}

func (e *PermissionError) Unwrap() error { return e.Err }

// Remedy says what a person can do about it. In a delegated subtree the new owner owns
// the files of the cgroups that it makes. Those of the delegated cgroup itself stay the
// delegator's unless they are handed over too (cgroup-v2.rst, "Model of Delegation").
func (e *PermissionError) Remedy() string {
	if errors.Is(e.Err, syscall.EROFS) {
		return "mount the cgroup file system writable (in a container: run it privileged)"
	}
	return fmt.Sprintf("delegate it, chown %d %s, or run as root", os.Geteuid(), e.File)
}

func orNotPermitted(file string, err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return &PermissionError{File: file, Err: err}
	}
	return err
}

// wrap says in a function's error what the function was to do.
func wrap(err *error, format string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf(format+": %w", append(args, *err)...)
	}
}
