package counter

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/quell-dev/quell/internal/machine/host"
	"golang.org/x/sys/unix"
)

// The bounds on what one task can make the agent do.
const (
	// maxProgressFiles is the largest number of files of a task that are summed. A task
	// that has more is not counted.
	maxProgressFiles = 64
	// maxProgressOpens is the largest number of files that are opened for it at one look:
	// many processes may name the same file.
	maxProgressOpens = 1024
	// maxProcesses is the largest number of processes that are looked at for it. A task that has more is
	// not counted: each takes some 20 µs at each look, and up to 4 KB.
	maxProcesses = 8 << 10
	// maxEnvirons is the largest number of environments that are read for it at one look.
	// The rest is read at the next; until then the task is not counted.
	maxEnvirons = 256
	// maxEnviron is the most that is read of one environment.
	maxEnviron = 256 << 10
)

const progressEnv = "QUELL_PROGRESS"

var (
	errShort      = errors.New("shorter than 8 bytes")
	errNoProgress = errors.New("no progress file")
	errTooMany    = errors.New("too many progress files or processes")
)

// progressFiles reads a task's progress files; their format is in docs/progress-file.md. A
// file is open only while it is read: the next look finds replaced files and new processes,
// and a container's file system can be unmounted in between.
type progressFiles struct {
	proc   string // the root of procfs
	target *Target
	now    func() time.Time
	known  []process     // at the last look, by pid
	none   bool          // at the last look no process named a file
	used   time.Duration // the task's CPU time then
	files  taskFiles     // of the present look
	err    error         // why the present look does not know all files
}

type fileID struct{ dev, inode uint64 }

// process is the stored state of a process: the incarnation that was looked at, and its
// progress file, "" if it has none.
type process struct {
	pid int
	incarnation
	path string
}

// look reads the files of the task's present processes.
func (t *progressFiles) look(context.Context) (l look) {
	// A process that comes uses CPU time. What it uses during the look
	// counts for the next.
	used, usedKnown := t.target.cpuTime()
	if t.none && usedKnown && used == t.used {
		return look{at: t.now(), cpu: used, cpuKnown: true, asleep: true}
	}
	pids, err := t.target.Members()
	if err != nil {
		return look{at: t.now(), err: fmt.Errorf("list members: %w", err)}
	}
	if len(pids) > maxProcesses {
		t.known, t.none = nil, false
		return look{at: t.now(), err: errTooMany}
	}
	t.files, t.err = taskFiles{proc: t.proc}, nil
	var known []process
	environs, opens, named := maxEnvirons, maxProgressOpens, false
	for _, pid := range pids {
		p := process{path: t.target.Progress}
		if p.path == "" {
			var ok bool
			if p, ok = t.process(pid, &environs); !ok {
				continue
			}
			known = append(known, p)
		}
		named = named || p.path != ""
		if p.path != "" && opens > 0 {
			opens--
			if l.values == nil {
				l.values = map[fileID]count{}
			}
			t.read(pid, p.path, l.values)
		}
	}
	slices.SortFunc(known, func(p, q process) int { return cmp.Compare(p.pid, q.pid) })
	t.known = known
	t.none, t.used = usedKnown && t.err == nil && !named, used
	l.at, l.err = t.now(), t.err
	l.cpu, l.cpuKnown = t.target.cpuTime()
	return l
}

// process finds a process's progress file in its environment as it was at exec.
func (t *progressFiles) process(pid int, environs *int) (process, bool) {
	dir := t.proc + "/" + strconv.Itoa(pid)
	stat, err := host.ReadProcessStat(dir + "/stat")
	if err != nil {
		t.failed(err)
		return process{}, false
	}
	inc := incarnation{stat.Start, stat.EnvStart}
	i, ok := slices.BinarySearchFunc(t.known, pid, func(p process, pid int) int { return cmp.Compare(p.pid, pid) })
	if ok && t.known[i].incarnation == inc {
		return t.known[i], true
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
	return process{pid, inc, progressPath(environ)}, true
}

// failed keeps an error that leaves open whether there is a progress file, or that says why
// it is not read. Other errors mean that the process has ended or that there is no file.
func (t *progressFiles) failed(err error) {
	if refused := (*FileSystemError)(nil); errors.As(err, &refused) {
		t.err = err
	}
	for _, open := range [...]error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EACCES, unix.EPERM} {
		if errors.Is(err, open) {
			t.err = err
		}
	}
}

// read reads a progress file, unless that was done already or it is not a regular file.
func (t *progressFiles) read(pid int, file string, values map[fileID]count) {
	fd, id, err := t.files.open(pid, file)
	if err != nil {
		t.failed(err)
		return
	}
	defer unix.Close(fd)
	_, seen := values[id]
	if !seen && len(values) == maxProgressFiles {
		t.err = errTooMany
	}
	if seen || t.err != nil {
		return
	}
	n, err := readProgress(fd)
	if err != nil && !errors.Is(err, errShort) {
		t.err = err
		return
	}
	values[id] = count{float64(n), err != nil}
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
