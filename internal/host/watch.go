package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Watcher tells whether cgroups have come or gone since it was last asked, so
// that the hierarchies need not be walked each time. It is for one goroutine
// and has none of its own.
type Watcher struct {
	fd   int
	tops []string         // mounts, as this process opens them
	dirs map[int32]string // by watch descriptor
	wds  map[string]int32 // the inverse
	buf  [16 << 10]byte
}

// maxReads bounds what one call of Changed reads, some 30,000 events: about as
// many as the kernel queues (fs.inotify.max_queued_events is 16384 by default).
// Where cgroups come and go faster than that the rest is read by the next call.
const maxReads = 64

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE | unix.IN_ONLYDIR

// Watch watches every cgroup of cgroup2 and of the v1 cpu hierarchy. Each
// takes one of fs.inotify.max_user_watches; if they do not suffice the error
// wraps ENOSPC, and the hierarchies must be walked instead.
func (h *Host) Watch() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch cgroups: %w", err)
	}
	w := &Watcher{fd: fd, dirs: make(map[int32]string), wds: make(map[string]int32)}
	for _, name := range [...]string{"", "cpu"} {
		if t, ok := h.trees[name]; ok {
			w.tops = append(w.tops, h.Path(t.dir))
		}
	}
	if err := w.addAll(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Close ends the watch.
func (w *Watcher) Close() error { return unix.Close(w.fd) }

// Changed reports whether any cgroup was made, removed or renamed since the
// last call, and watches the new ones. When the kernel's queue overflowed it
// says true, since something was lost, and watches what there is. It does not
// wait.
func (w *Watcher) Changed() (bool, error) {
	changed, again := false, false
	for range maxReads {
		n, err := unix.Read(w.fd, w.buf[:])
		if err == unix.EAGAIN {
			break
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return true, fmt.Errorf("watch cgroups: %w", err)
		}
		for b := w.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			end := unix.SizeofInotifyEvent + int(e.Len)
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
			b = b[end:]
			switch dir, known := w.dirs[e.Wd]; {
			case e.Mask&unix.IN_Q_OVERFLOW != 0:
				changed, again = true, true
			case e.Mask&unix.IN_ISDIR == 0: // also IN_IGNORED, the answer to forget
			case e.Mask&unix.IN_MOVE != 0:
				changed, again = true, true // paths below it have changed
			case e.Mask&unix.IN_CREATE != 0 && known:
				changed = true
				if err := w.add(path.Join(dir, name)); err != nil {
					return true, err
				}
			case e.Mask&unix.IN_DELETE != 0 && known:
				changed = true
				w.forget(path.Join(dir, name))
			default:
				changed = true
			}
		}
	}
	if again {
		return true, w.addAll()
	}
	return changed, nil
}

// addAll watches whatever there is and forgets what is not there any more.
func (w *Watcher) addAll() error {
	old := w.dirs
	w.dirs, w.wds = make(map[int32]string), make(map[string]int32)
	for _, top := range w.tops {
		if err := w.add(top); err != nil {
			return err
		}
	}
	for wd := range old {
		if _, still := w.dirs[wd]; !still {
			unix.InotifyRmWatch(w.fd, uint32(wd)) // EINVAL if the kernel did it
		}
	}
	return nil
}

// forget ends the watch of a removed directory. On cgroupfs the kernel does
// not (seen on 6.18): the watch would keep the inode for ever.
func (w *Watcher) forget(dir string) {
	if wd, ok := w.wds[dir]; ok {
		unix.InotifyRmWatch(w.fd, uint32(wd))
		delete(w.wds, dir)
		delete(w.dirs, wd)
	}
}

// add watches a directory and those below it: first itself, so that what is
// made while the directory is read is either read or reported. A directory
// that is watched already keeps its descriptor.
func (w *Watcher) add(dir string) error {
	wd, err := unix.InotifyAddWatch(w.fd, dir, watchMask)
	if vanished(err) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch cgroups: %w", &fs.PathError{Op: "inotify_add_watch", Path: dir, Err: err})
	}
	if old, ok := w.wds[dir]; ok && old != int32(wd) {
		w.forget(dir) // it is another directory than the one watched before
	}
	w.dirs[int32(wd)], w.wds[dir] = dir, int32(wd)
	entries, err := os.ReadDir(dir)
	if err != nil && !vanished(err) {
		return fmt.Errorf("watch cgroups: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := w.add(path.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
