package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Watcher reports which cgroups were made or removed since the last call, so that the
// hierarchies need not be walked. It is for one goroutine, except for Wait, and starts none.
type Watcher struct {
	fd     int
	end    int // an eventfd that Close writes to
	tops   []top
	deeper func(path string) bool // whether what is below a cgroup is watched
	user   func(path string) int  // who makes cgroups there as they like; not above 0: no such user
	dirs   map[int32]string       // by watch descriptor
	wds    map[string]int32       // the inverse
	ofUser map[int]int            // how many of dirs are each user's
	buf    [16 << 10]byte
	seen   Changes

	waiting sync.Mutex // held by Wait
	closed  bool
}

// top is a mount, as this process opens it.
type top struct {
	hier sample.Hierarchy
	dir  string
}

// Place locates a cgroup: its path below the mount of its hierarchy.
type Place struct {
	Hierarchy sample.Hierarchy
	Path      string
}

// Changes are what a Watcher saw.
type Changes struct {
	// Places where a cgroup was made or removed, in that order; after several
	// changes a place is listed more than once. The cgroup may exist by now or
	// not. Cgroups below a new one are not listed separately.
	Places []Place
	// Lost: any cgroup may have been made, removed or renamed.
	Lost bool
}

// None reports whether nothing has changed.
func (c *Changes) None() bool { return !c.Lost && len(c.Places) == 0 }

// maxReads bounds what one call of Changes reads, some 30,000 events: about as
// many as the kernel queues (fs.inotify.max_queued_events is 16384 by default).
// If there are more, the next call reads the rest.
const maxReads = 64

// mostWatched bounds the watches on the cgroups of one user. They are of root's limit, which all programs of
// root share.
const mostWatched = 1000

const watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVE | unix.IN_ONLYDIR

// Watch watches the cgroups of cgroup2 and of the v1 cpu hierarchy: changes directly below those
// for whose paths deeper is true, and of each user mostWatched of these. Each takes one of fs.inotify.max_user_watches;
// if they do not suffice the error wraps ENOSPC, and the hierarchies must be walked instead.
func (h *Host) Watch(deeper func(path string) bool, user func(path string) int) (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch cgroups: %w", err)
	}
	w, err := newWatcher(fd, deeper, user)
	if err != nil {
		return nil, err
	}
	for _, hier := range [...]sample.Hierarchy{sample.Unified, sample.V1CPU} {
		if t, err := h.tree(hier); err == nil {
			w.tops = append(w.tops, top{hier, h.Path(t.dir)})
		}
	}
	if err := w.addAll(); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func newWatcher(fd int, deeper func(path string) bool, user func(path string) int) (*Watcher, error) {
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("watch cgroups: %w", err)
	}
	return &Watcher{fd: fd, end: end, deeper: deeper, user: user}, nil // addAll makes the maps
}

// Close ends the watch, and Wait.
func (w *Watcher) Close() error {
	if w.closed {
		return nil
	}
	_, err := unix.Write(w.end, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	w.waiting.Lock()
	defer w.waiting.Unlock()
	w.closed = true
	return errors.Join(err, unix.Close(w.fd), unix.Close(w.end))
}

// Changes returns what was made, removed or renamed since the last call, and
// watches what is new. It does not wait. The result is valid until the next
// call; with an error it is not complete.
func (w *Watcher) Changes() (*Changes, error) {
	w.seen = Changes{Places: w.seen.Places[:0]}
	for range maxReads {
		n, err := unix.Read(w.fd, w.buf[:])
		if err == unix.EAGAIN {
			break
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return &w.seen, fmt.Errorf("watch cgroups: %w", err)
		}
		for b := w.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			end := unix.SizeofInotifyEvent + int(e.Len)
			name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
			b = b[end:]
			if err := w.handleEvent(e, name); err != nil {
				return &w.seen, err
			}
		}
	}
	if w.seen.Lost {
		return &w.seen, w.addAll()
	}
	return &w.seen, nil
}

// handleEvent records one event.
func (w *Watcher) handleEvent(e *unix.InotifyEvent, name string) error {
	dir, known := w.dirs[e.Wd]
	switch {
	case e.Mask&unix.IN_Q_OVERFLOW != 0:
		w.seen.Lost = true
	case e.Mask&unix.IN_ISDIR == 0: // also IN_IGNORED, the answer to forget
	case e.Mask&unix.IN_MOVE != 0:
		w.seen.Lost = true // paths below it have changed
	case !known: // of a directory that is itself gone, which was reported
	case e.Mask&unix.IN_CREATE != 0:
		w.note(path.Join(dir, name))
		return w.add(path.Join(dir, name))
	case e.Mask&unix.IN_DELETE != 0:
		w.note(path.Join(dir, name))
		w.forget(path.Join(dir, name))
	}
	return nil
}

// note adds a directory to what has been seen.
func (w *Watcher) note(dir string) {
	if at, ok := w.place(dir); ok {
		w.seen.Places = append(w.seen.Places, at)
		return
	}
	w.seen.Lost = true
}

// place is where a directory is.
func (w *Watcher) place(dir string) (at Place, ok bool) {
	for _, t := range w.tops {
		if p, ok := below(dir, t.dir); ok {
			return Place{t.hier, "/" + strings.TrimPrefix(p, "/")}, true
		}
	}
	return at, false
}

// Wait returns when Changes has something to report, or with an error once the watcher
// is closed. It may run in parallel with every other method. It holds a thread: Go's
// poller would wake the program for every change, also while no call waits.
func (w *Watcher) Wait() error {
	w.waiting.Lock()
	defer w.waiting.Unlock()
	if w.closed {
		return fmt.Errorf("wait for cgroups: %w", os.ErrClosed)
	}
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}, {Fd: int32(w.end), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err == nil {
			break
		} else if err != unix.EINTR {
			return fmt.Errorf("wait for cgroups: %w", err)
		}
	}
	if fds[1].Revents != 0 {
		return fmt.Errorf("wait for cgroups: %w", os.ErrClosed)
	}
	return nil
}

// addAll watches all directories that exist and forgets those that do not.
func (w *Watcher) addAll() error {
	old := w.dirs
	w.dirs, w.wds, w.ofUser = make(map[int32]string), make(map[string]int32), make(map[int]int)
	for _, t := range w.tops {
		if err := w.add(t.dir); err != nil {
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
		at, _ := w.place(dir)
		w.ofUser[w.user(at.Path)]--
		unix.InotifyRmWatch(w.fd, uint32(wd))
		delete(w.wds, dir)
		delete(w.dirs, wd)
	}
}

// add watches a directory and those below it: first itself, so that what is
// made while the directory is read is either read or reported. A directory
// that is watched already keeps its descriptor. What a walk leaves out is not watched, and
// neither is that below which nothing is, or what is one too many of its user's.
func (w *Watcher) add(dir string) error {
	at, ok := w.place(dir)
	if len(dir) > longestDir || ok && !w.deeper(at.Path) {
		return nil
	}
	user := w.user(at.Path)
	if _, watched := w.wds[dir]; !watched && user > 0 && w.ofUser[user] >= mostWatched {
		return nil
	}
	wd, err := unix.InotifyAddWatch(w.fd, dir, watchMask)
	if err != nil {
		return w.lacking("inotify_add_watch", dir, err)
	}
	if old, watched := w.wds[dir]; !watched || old != int32(wd) {
		w.forget(dir) // if it is another directory than the one watched before
		w.ofUser[user]++
	}
	w.dirs[int32(wd)], w.wds[dir] = dir, int32(wd)
	var st unix.Stat_t
	if err := stat(dir, &st); err != nil {
		return w.lacking("stat", dir, err)
	}
	names, err := subdirsOf(dir, uint64(st.Nlink))
	if err != nil {
		return w.lacking("read", dir, err)
	}
	for _, name := range names {
		if err := w.add(path.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// lacking returns the error of a call about a directory if every other directory would fail
// too, such as ENOSPC without a watch left, or if the directory is a mount; else nil.
func (w *Watcher) lacking(op, dir string, err error) error {
	mount := slices.ContainsFunc(w.tops, func(t top) bool { return t.dir == dir })
	if vanished(err) || !exhausted(err) && !mount {
		return nil
	}
	return fmt.Errorf("watch cgroups: %w", &fs.PathError{Op: op, Path: dir, Err: err})
}
