package counter

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The bounds on a path that a task gives.
const (
	maxDepth = 32 // directories, each of which is open for a moment
	maxLinks = 16 // symbolic links
	// maxMountinfo is the most that is read of a task's list of mounts.
	maxMountinfo = 4 << 20
)

// localFS are the types of file systems whose files are opened for a task. Their code and
// their data are the kernel's, so that no read waits for a process or for the network. A
// FUSE file system answers when its process likes, which may be the task's own.
func localFS(kind string) bool {
	switch kind {
	case "tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay", "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "erofs", "squashfs":
		return true
	}
	return false
}

// FileSystemError says that a file is on a file system whose files are not opened.
type FileSystemError struct {
	File string
	Type string // "": not known
}

func (e *FileSystemError) Error() string {
	kind := e.Type
	if kind == "" {
		kind = "an unknown type"
	}
	return fmt.Sprintf("open %q: not done on a file system of %s, which may keep a reader waiting; use tmpfs or a local disk", e.File, kind)
}

// taskFiles opens files that processes name, below the processes' root directories. It
// does not trust the task: it makes no call that a file system could answer, before it knows
// that file system's type. One taskFiles is for one look: types are not kept longer.
type taskFiles struct {
	proc string // the root of procfs
	// types are those of mounts, by the mount namespace with the root directory in it, and
	// the mount's id.
	types map[string]map[int]string
}

// open opens a regular file. Symbolic links do not lead out of the root, and the last
// component must not be one. Only a regular file is opened: opening a FIFO waits, and
// opening a device has effects.
func (f *taskFiles) open(pid int, file string) (int, fileID, error) {
	dir := f.proc + "/" + strconv.Itoa(pid)
	w := walk{files: f, dir: dir, file: file}
	defer w.close(0)
	at, err := w.find()
	if err != nil {
		return -1, fileID{}, err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return -1, fileID{}, w.failed("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, fileID{}, w.failed("open", errors.New("not a regular file"))
	}
	// Without O_NONBLOCK it would wait for the end of a lease (fcntl(2)).
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fileID{}, w.failed("open", err)
	}
	return fd, fileID{uint64(st.Dev), st.Ino}, nil
}

// walk goes down a path. The kernel could resolve it in one call (openat2 with
// RESOLVE_IN_ROOT), but would then enter any file system on the way.
type walk struct {
	files *taskFiles
	dir   string // of the process in procfs
	file  string
	dirs  []int // descriptors from the root down to the present directory
	mount int   // of the newest descriptor
}

func (w *walk) failed(what string, err error) error {
	return fmt.Errorf("%s %s in %s/root: %w", what, w.file, w.dir, err)
}

// close leaves the lowest n directories.
func (w *walk) close(n int) {
	for _, fd := range w.dirs[n:] {
		unix.Close(fd)
	}
	w.dirs = w.dirs[:n]
}

// find returns a descriptor of the file's place (O_PATH).
func (w *walk) find() (int, error) {
	root, err := unix.Open(w.dir+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s/root: %w", w.dir, err)
	}
	w.dirs = append(w.dirs, root)
	if err := w.enter(root); err != nil {
		return -1, err
	}
	rest, links := strings.Split(w.file, "/"), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			w.close(max(1, len(w.dirs)-1))
			continue
		}
		fd, err := unix.Openat(w.dirs[len(w.dirs)-1], name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, w.failed("open", err)
		}
		target, err := w.look(fd)
		last := !slices.ContainsFunc(rest, func(n string) bool { return n != "" && n != "." })
		switch {
		case err != nil:
			unix.Close(fd)
			return -1, err
		case target == "" && last:
			return fd, nil
		case target == "":
			if w.dirs = append(w.dirs, fd); len(w.dirs) > maxDepth {
				return -1, w.failed("open", errors.New("too many directories"))
			}
			continue
		}
		unix.Close(fd)
		if links++; last || links > maxLinks {
			return -1, w.failed("open", unix.ELOOP)
		}
		if path.IsAbs(target) {
			w.close(1)
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return -1, w.failed("open", errors.New("not a regular file"))
}

// look checks what a descriptor refers to. If that is a symbolic link it returns its target.
func (w *walk) look(fd int) (target string, err error) {
	if err := w.enter(fd); err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", w.failed("stat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return "", nil
	}
	var b [unix.PathMax]byte
	n, err := unix.Readlinkat(fd, "", b[:])
	if err != nil {
		return "", w.failed("read link", err)
	}
	if n == 0 {
		return "", w.failed("read link", unix.ENOENT)
	}
	return string(b[:n]), nil
}

// enter checks the type of the file system that a descriptor is on.
func (w *walk) enter(fd int) error {
	id, err := mountID(fd)
	if err != nil {
		return w.failed("find the mount of", err)
	}
	if id == w.mount {
		return nil
	}
	kind, err := w.files.kind(w.dir, id)
	if err != nil {
		return w.failed("find the file system of", err)
	}
	if !localFS(kind) {
		return &FileSystemError{w.file, kind}
	}
	w.mount = id
	return nil
}

// kind returns the type of a mount, "" if it is in no list of mounts. It is asked only
// while a descriptor refers to the mount, so the id cannot be another mount's.
func (f *taskFiles) kind(dir string, id int) (string, error) {
	types, err := f.mounts(dir)
	if err != nil {
		return "", err
	}
	if kind := types[id]; kind != "" {
		return kind, nil
	}
	// A mount that a chroot is in is missing in that process's list.
	types, _ = f.mounts(f.proc + "/self")
	return types[id], nil
}

// mounts returns the types of the mounts that a process sees.
func (f *taskFiles) mounts(dir string) (map[int]string, error) {
	space, err := os.Readlink(dir + "/ns/mnt")
	root, err2 := os.Readlink(dir + "/root") // the list has only what is below it
	if space += root; err != nil || err2 != nil {
		space = dir
	}
	if known := f.types[space]; known != nil {
		return known, nil
	}
	file, err := os.Open(dir + "/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if f.types == nil {
		f.types = map[string]map[int]string{}
	}
	f.types[space] = mountTypes(io.LimitReader(file, maxMountinfo))
	return f.types[space], nil
}

// mountID returns the id of the mount that a descriptor is on, from procfs: of statfs and
// stat the file system would get to know.
func mountID(fd int) (int, error) {
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if id, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			return strconv.Atoi(string(bytes.TrimSpace(id)))
		}
	}
	return 0, errors.New("fdinfo has no mnt_id")
}

// mountTypes reads the types of mounts by their id from /proc/PID/mountinfo (proc(5)):
//
//	31 23 0:28 / /run rw,relatime shared:9 - tmpfs tmpfs rw,size=1024k
func mountTypes(r io.Reader) map[int]string {
	types := map[int]string{}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 64<<10)
	for in.Scan() {
		first, _, _ := bytes.Cut(in.Bytes(), []byte(" "))
		_, rest, ok := bytes.Cut(in.Bytes(), []byte(" - "))
		kind, _, _ := bytes.Cut(rest, []byte(" "))
		if id, err := strconv.Atoi(string(first)); ok && err == nil && id >= 0 && len(kind) > 0 {
			types[id] = string(kind)
		}
	}
	return types
}
