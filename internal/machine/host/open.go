package host

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// longestPath is the longest path that the kernel takes in one call (PATH_MAX with its NUL). A
// tree of cgroups has no such limit: its directories are made from each other's descriptors.
const longestPath = 4095

// longestDir is the longest path of a cgroup's directory that is followed by its path: the
// names of its files fit after it.
const longestDir = longestPath - 64

// openLong opens a file or directory whose path may be longer than longestPath, piece by piece.
func openLong(p string, flags int) (*os.File, error) {
	if len(p) <= longestPath {
		return os.OpenFile(p, flags, 0)
	}
	at, rest := unix.AT_FDCWD, p
	step := func(piece string, flags int) error {
		fd, err := unix.Openat(at, piece, flags|unix.O_CLOEXEC, 0)
		if at != unix.AT_FDCWD {
			unix.Close(at)
		}
		if at = fd; err != nil {
			return &fs.PathError{Op: "open", Path: p, Err: err}
		}
		return nil
	}
	for len(rest) > longestPath {
		i := strings.LastIndexByte(rest[:longestPath], '/')
		if i <= 0 {
			if at != unix.AT_FDCWD {
				unix.Close(at)
			}
			return nil, &fs.PathError{Op: "open", Path: p, Err: unix.ENAMETOOLONG}
		}
		if err := step(rest[:i], unix.O_PATH|unix.O_DIRECTORY); err != nil {
			return nil, err
		}
		rest = rest[i+1:]
	}
	if err := step(rest, flags); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(at), p), nil
}

// OpenRegular opens a file for reading if it is a regular one, or a link to one; any other is
// fs.ErrNotExist. Opening those has effects (a device, such as a watchdog) or waits, and a user may
// have put one where a file is expected.
func OpenRegular(file string) (*os.File, error) {
	at, err := unix.Open(file, unix.O_PATH|unix.O_CLOEXEC, 0) // which opens nothing
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: file, Err: err}
	}
	defer unix.Close(at)
	var st unix.Stat_t
	fd := -1
	if err = unix.Fstat(at, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.ENOENT
	}
	if err == nil { // without O_NONBLOCK it would wait for the end of a lease (fcntl(2))
		fd, err = unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: file, Err: err}
	}
	return os.NewFile(uintptr(fd), file), nil
}

func readFile(p string) ([]byte, error) {
	f, err := openLong(p, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return readAll(f)
}

// readAll reads a file to its end and closes it.
func readAll(f *os.File) ([]byte, error) {
	text, err := io.ReadAll(f)
	return text, errors.Join(err, f.Close())
}

// readDir is os.ReadDir for a path of any length.
func readDir(p string) ([]fs.DirEntry, error) {
	f, err := openLong(p, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, errors.Join(err, f.Close())
}

// stat is stat(2) for a path of any length.
func stat(p string, st *unix.Stat_t) error {
	if len(p) <= longestPath {
		if err := unix.Stat(p, st); err != nil {
			return &fs.PathError{Op: "stat", Path: p, Err: err}
		}
		return nil
	}
	f, err := openLong(p, unix.O_PATH)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fstat(int(f.Fd()), st); err != nil {
		return &fs.PathError{Op: "stat", Path: p, Err: err}
	}
	return nil
}
