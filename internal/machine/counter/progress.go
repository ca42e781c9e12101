package counter

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"golang.org/x/sys/unix"
)

// The bounds on what one task can make the agent do.
const (
	// maxProgressFiles is the largest number of files of a task that are summed. A task
	// that has more is not counted.
	maxProgressFiles = 64
	// maxProgressOpens is the largest number of files that are opened for it at one
	// Start: many processes may name the same file.
	maxProgressOpens = 1024
	// maxEnvirons is the largest number of environments that are read for it at one
	// Start. The rest is read at the next; until then the task is not counted.
	maxEnvirons = 256
	// maxEnviron is the most that is read of one environment.
	maxEnviron = 256 << 10
)

// longestPause is the longest interval, in windows, between two looks at a task without
// a progress file.
const longestPause = 8

const progressEnv = "QUELL_PROGRESS"

var (
	errShort      = errors.New("shorter than 8 bytes")
	errNoProgress = errors.New("no progress file")
	errTooMany    = errors.New("too many progress files or processes")
)

// progressFile is a progress file that is open for a window; the format is in
// docs/progress-file.md.
type progressFile struct {
	fd    int
	value uint64 // at the window's start
	short bool   // it held no value then
}

// progressTask finds a task's progress files. Files are open only in a window:
// the next one finds replaced files and new processes, and a container's file
// system can be unmounted in between.
type progressTask struct {
	proc   string // the root of procfs
	target Target
	known  map[int]process
	files  []progressFile
	seen   map[fileID]bool
	err    error // why the start of the open window does not know all files
	// A task that has none is looked at again after a pause, in windows, that grows: a
	// look reads some files for each process.
	pause, skip int
}

type fileID struct{ dev, inode uint64 }

// process is the stored state of a process: the incarnation that was looked at, and its
// progress file, "" if it has none.
type process struct {
	incarnation
	path string
}

func (t *progressTask) variant() string { return variantFile }

func (t *progressTask) ending(context.Context) {}

func (t *progressTask) abort() { t.close() }

func (t *progressTask) stop() (counted, error) {
	sum, restarted, err := t.close()
	return counted{done: float64(sum), restarted: restarted}, err
}

// start opens the files of the task's present processes and reads their values.
func (t *progressTask) start() {
	t.err = nil
	if t.skip > 0 {
		t.skip--
		return
	}
	clear(t.seen)
	pids, err := t.target.Members()
	if err != nil {
		t.err = fmt.Errorf("list members: %w", err)
		return
	}
	known := make(map[int]process, len(pids))
	environs, opens := maxEnvirons, maxProgressOpens
	for _, pid := range pids {
		dir := t.proc + "/" + strconv.Itoa(pid)
		p := process{path: t.target.Progress}
		if p.path == "" {
			var ok bool
			if p, ok = t.look(pid, dir, &environs); !ok {
				continue
			}
			known[pid] = p
		}
		if p.path != "" && opens > 0 {
			opens--
			t.openFile(dir, p.path)
		}
	}
	t.known = known
	if t.pause = t.nextPause(); t.pause > 0 {
		t.skip = t.pause - 1
	}
}

// nextPause returns after how many windows the task is looked at again, 0 for a task
// that has a progress file or may have one.
func (t *progressTask) nextPause() int {
	if len(t.files) > 0 || t.err != nil || t.target.Progress != "" {
		return 0
	}
	return min(longestPause, max(1, 2*t.pause))
}

// look finds a process's progress file in its environment as it was at exec.
func (t *progressTask) look(pid int, dir string, environs *int) (process, bool) {
	stat, err := host.ReadProcessStat(dir + "/stat")
	if err != nil {
		t.failed(err)
		return process{}, false
	}
	inc := incarnation{stat.Start, stat.EnvStart}
	if p, ok := t.known[pid]; ok && p.incarnation == inc {
		return p, true
	}
	if *environs == 0 {
		t.err = errTooMany
		return process{}, false
	}
	*environs--
	environ, err := readSome(dir+"/environ", maxEnviron)
	if err != nil {
		t.failed(err)
		return process{}, false
	}
	return process{inc, progressPath(environ)}, true
}

// failed keeps an error that leaves open whether there is a progress file. Other errors
// mean that the process has ended or that there is no file.
func (t *progressTask) failed(err error) {
	for _, open := range [...]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EACCES, unix.EPERM} {
		if errors.Is(err, open) {
			t.err = err
		}
	}
}

// openFile opens a progress file and keeps it, unless it is open already or is not a
// regular file.
func (t *progressTask) openFile(dir, file string) {
	fd, id, err := openProgress(dir+"/root", file)
	if err != nil {
		t.failed(err)
		return
	}
	if !t.seen[id] && len(t.files) == maxProgressFiles {
		t.err = errTooMany
	}
	if t.seen[id] || t.err != nil {
		unix.Close(fd)
		return
	}
	t.seen[id] = true
	f := progressFile{fd: fd}
	switch f.value, err = readProgress(fd); {
	case errors.Is(err, errShort):
		f.short = true
	case err != nil:
		t.err = err
	}
	t.files = append(t.files, f)
}

// close reads the files' present values and closes them. sum is their progress since
// start; restarted reports that a value is smaller than before. Both are invalid if one
// of the files could not be read; err is the reason.
func (t *progressTask) close() (sum uint64, restarted bool, err error) {
	err, t.err = t.err, nil
	if err == nil && len(t.files) == 0 {
		err = errNoProgress
	}
	written := false
	for _, f := range t.files {
		now, readErr := readProgress(f.fd)
		unix.Close(f.fd)
		if f.short && errors.Is(readErr, errShort) {
			continue // created, but not written
		}
		if f.short {
			readErr = errShort
		}
		if readErr != nil {
			err = readErr
			continue
		}
		written = true
		d, again := sample.Monotonic(now, f.value)
		sum += d
		restarted = restarted || again
	}
	t.files = t.files[:0]
	if err == nil && !written {
		err = errShort
	}
	return sum, restarted, err
}

// openProgress opens a task's file below its root directory without trusting the task.
// Symbolic links do not lead out of the root, and the last component must not be one.
// Only a regular file is opened: opening a FIFO waits, and opening a device has
// effects.
func openProgress(root, file string) (int, fileID, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fileID{}, fmt.Errorf("open %s: %w", root, err)
	}
	defer unix.Close(dir)
	at, err := unix.Openat2(dir, file, &unix.OpenHow{ // Linux 5.6
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fileID{}, fmt.Errorf("open %s in %s: %w", file, root, err)
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return -1, fileID{}, fmt.Errorf("stat %s in %s: %w", file, root, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, fileID{}, fmt.Errorf("open %s in %s: not a regular file", file, root)
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fileID{}, fmt.Errorf("open %s in %s: %w", file, root, err)
	}
	return fd, fileID{uint64(st.Dev), st.Ino}, nil
}

// readProgress uses pread and never maps the file: a task that truncates a mapped file
// would kill the agent with SIGBUS.
func readProgress(fd int) (uint64, error) {
	var b [8]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		return 0, fmt.Errorf("read progress file: %w", err)
	}
	if n < len(b) {
		return 0, fmt.Errorf("read progress file: %w", errShort)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// progressPath finds the progress file in /proc/PID/environ, NAME=value each
// ended by a zero byte; "" if there is none or the path is not absolute.
func progressPath(environ []byte) string {
	for len(environ) > 0 {
		var entry []byte
		entry, environ, _ = bytes.Cut(environ, []byte{0})
		if value, ok := bytes.CutPrefix(entry, []byte(progressEnv+"=")); ok {
			if p := string(value); path.IsAbs(p) && len(p) < unix.PathMax {
				return p
			}
			return ""
		}
	}
	return ""
}

// incarnation distinguishes one life of a process id from the next, and one program of
// a process from the next that it executes: the environment moves at exec.
type incarnation struct{ start, environ uint64 }

// readSome reads a file up to a bound.
func readSome(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, most))
}
