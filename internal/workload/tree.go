package workload

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is a set of cgroups of its own, one per task, in every hierarchy that
// quell looks at (cgroup2 and v1 cpu and cpuacct, whatever there is), and the
// workloads that run in them. Its top directory has the same path in each:
// /<prefix>-<pid>-<start time of pid>, so that Sweep can tell whose it was.
//
// A Tree is safe for use by several goroutines.
type Tree struct {
	top     string   // name of the top directory
	roots   []string // of the hierarchies
	mounts  mounts
	scratch string // directory of the progress files
	opt     TreeOptions

	threads chan func() // run on the thread that starts processes

	mu     sync.Mutex
	procs  []*Proc
	closed bool
}

// TreeOptions are the choices of a Tree; the zero value works for a program
// whose subcommand "workload" calls Run.
type TreeOptions struct {
	// Exe is the program to start, by default this one.
	Exe string
	// Words come before the workload's own arguments, by default "workload".
	Words []string
	// Env is added to the environment of each process.
	Env []string
	// Weight is how many times as much CPU as another cgroup the tree gets
	// where both want it, 1 to 100; 0 is 1. With 100 a victim's run-queue wait
	// stays below 0.1 s/CPU-s beside ten busy builds, and whatever is not in
	// the tree gets little on CPUs that the tree keeps busy.
	Weight int
	// Controllers are more of those that the tree's cgroups have, e.g. cpuset,
	// freezer, memory: in their v1 hierarchies, or in cgroup2 as far as its top
	// hands them on. One that the machine lacks is left out.
	Controllers []string
	// Ungrouped keeps the tree out of the v1 hierarchy of the cpu controller, so
	// that its tasks are scheduled as if they had no cgroup. Where the
	// controller is cgroup2's, a task cannot be out of it.
	Ungrouped bool
}

// settle is how long processes get to die and cgroups to empty.
const settle = 10 * time.Second

// OpenTree makes an empty tree. The prefix is one path element of letters,
// digits, "_" and "-"; trees of dead owners with the same prefix are left to
// Sweep. A missing permission or mount is an *EnvError.
func OpenTree(prefix string, opt TreeOptions) (*Tree, error) {
	if !prefixShape.MatchString(prefix) {
		return nil, fmt.Errorf("open tree: prefix %q: want letters, digits, '_' and '-'", prefix)
	}
	if opt.Weight < 0 || opt.Weight > 100 {
		return nil, fmt.Errorf("open tree: weight %d: want 1 to 100", opt.Weight)
	}
	m, err := findMounts()
	if err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	if err := m.extend(opt); err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	if opt.Exe == "" {
		if opt.Exe, err = os.Executable(); err != nil {
			return nil, fmt.Errorf("open tree: %w", err)
		}
	}
	if opt.Words == nil {
		opt.Words = []string{"workload"}
	}
	t := &Tree{top: fmt.Sprintf("%s-%d-%d", prefix, os.Getpid(), start), roots: m.all(), mounts: m,
		opt: opt, threads: make(chan func())}
	t.scratch = filepath.Join(os.TempDir(), t.top)
	// First: it fails if this process has such a tree already.
	if err := os.Mkdir(t.scratch, 0o755); err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	if err := t.make(""); err != nil {
		return nil, errors.Join(fmt.Errorf("open tree: %w", err), t.remove())
	}
	if err := t.weigh(); err != nil {
		return nil, errors.Join(fmt.Errorf("open tree: %w", err), t.remove())
	}
	go func() {
		// Processes are told to die with the thread that started them
		// (PR_SET_PDEATHSIG), so it lives as long as the tree.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for f := range t.threads {
			f()
		}
	}()
	return t, nil
}

var (
	prefixShape = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)
	taskShape   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*$`)
)

// Top is the path of the tree in each hierarchy, with a leading slash.
func (t *Tree) Top() string { return "/" + t.top }

// Path is a task's path in each hierarchy, as in /proc/PID/cgroup.
func (t *Tree) Path(task string) string { return "/" + filepath.Join(t.top, task) }

// Dirs returns a task's directory in each hierarchy.
func (t *Tree) Dirs(task string) []string {
	var dirs []string
	for _, r := range t.roots {
		dirs = append(dirs, filepath.Join(r, t.top, task))
	}
	return dirs
}

// CPUDir returns the task's directory that carries its CPU limit, and whether
// that is cgroup v1 (cpu.cfs_quota_us) or not (cpu.max).
func (t *Tree) CPUDir(task string) (dir string, v1 bool) {
	if t.mounts.cpu != "" {
		return filepath.Join(t.mounts.cpu, t.top, task), true
	}
	return filepath.Join(t.mounts.unified, t.top, task), false
}

// Add makes a task's cgroups before anything runs there, e.g. to place them.
func (t *Tree) Add(task string) error {
	if !taskShape.MatchString(task) {
		return fmt.Errorf("add task %q: want path elements of letters, digits, '_', '.' and '-'", task)
	}
	if err := t.make(task); err != nil {
		return fmt.Errorf("add task: %w", err)
	}
	return nil
}

// Remove ends what runs in a task and removes its directories. What the caller
// has launched there it still has to wait for.
func (t *Tree) Remove(task string) error {
	var all []error
	for _, dir := range t.Dirs(task) {
		all = append(all, removeCgroups(dir, time.Now().Add(settle)))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("remove task %s: %w", task, err)
	}
	return nil
}

// make makes the task's directories, with the controllers on in all of
// them. In cgroup v2 a directory that has controllers on for its children can
// hold no processes, so tasks are leaves: "web/0" and "web/1", but no "web".
func (t *Tree) make(task string) error {
	for _, root := range t.roots {
		dir := root
		for i, step := range strings.Split(filepath.Join(t.top, task), "/") {
			if i > 0 {
				if err := t.enable(root, dir); err != nil {
					return fmt.Errorf("enable controllers: %w", err)
				}
			}
			dir = filepath.Join(dir, step)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return mkdirError(err)
			}
			if root == t.mounts.cpuset {
				if err := inheritCPUs(dir); err != nil {
					return fmt.Errorf("make cpuset: %w", err)
				}
			}
		}
	}
	return nil
}

// weigh sets the CPU weight of the whole tree: 100 is usual in cpu.weight, 1024
// in v1's cpu.shares.
func (t *Tree) weigh() error {
	if t.opt.Weight == 0 {
		return nil
	}
	dir, v1 := t.CPUDir("")
	file, usual := "cpu.weight", 100
	if v1 {
		file, usual = "cpu.shares", 1024
	}
	return write(filepath.Join(dir, file), strconv.Itoa(t.opt.Weight*usual))
}

// enable turns the controllers on for children of a v2 directory: cpu, and of
// the others those that the directory has.
func (t *Tree) enable(root, dir string) error {
	if root != t.mounts.unified {
		return nil
	}
	var words []string
	if t.mounts.cpu == "" && !t.opt.Ungrouped {
		words = append(words, "cpu")
	}
	for _, c := range t.opt.Controllers {
		if hasWord(dir, "cgroup.controllers", c) {
			words = append(words, c)
		}
	}
	for _, c := range words {
		if hasWord(dir, "cgroup.subtree_control", c) {
			continue
		}
		if err := write(filepath.Join(dir, "cgroup.subtree_control"), "+"+c); err != nil {
			return err
		}
	}
	return nil
}

// inheritCPUs gives a new v1 cpuset the CPUs and memory nodes of the one above:
// it has none at first and can hold no process (cgroup-v1/cpusets.rst).
func inheritCPUs(dir string) error {
	// One that a program makes below (LXC) gets those of this by itself.
	if err := write(filepath.Join(dir, "cgroup.clone_children"), "1"); err != nil {
		return err
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		has, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(has)) != "" {
			continue
		}
		above, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err != nil {
			return err
		}
		if err := write(filepath.Join(dir, file), strings.TrimSpace(string(above))); err != nil {
			return err
		}
	}
	return nil
}

func mkdirError(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return &EnvError{"no permission to make cgroups", "run it as root (sudo)", err}
	case errors.Is(err, unix.EROFS):
		return &EnvError{"the cgroup file system is read-only",
			"in a container: run it privileged, with /sys/fs/cgroup writable", err}
	}
	return fmt.Errorf("make cgroup: %w", err)
}

// write writes to a file that must exist already, as a kernel file does.
func write(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Close ends every process of the tree and removes its directories and
// progress files. What could not be removed is in the error and in Left.
func (t *Tree) Close() error {
	t.mu.Lock()
	procs := slices.Clone(t.procs)
	first := !t.closed
	t.closed = true
	t.mu.Unlock()
	for _, p := range procs {
		p.kill()
	}
	for _, p := range procs {
		<-p.done
	}
	err := t.remove()
	if first {
		close(t.threads)
	}
	return err
}

func (t *Tree) remove() error {
	var all []error
	for _, dir := range t.Dirs("") {
		all = append(all, removeCgroups(dir, time.Now().Add(settle)))
	}
	all = append(all, os.RemoveAll(t.scratch))
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("remove tree %s: %w", t.top, err)
	}
	return nil
}

// Left lists the tree's directories that exist: all of them while it is open,
// none after Close has done its work.
func (t *Tree) Left() []string {
	var left []string
	for _, top := range append(t.Dirs(""), t.scratch) {
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				left = append(left, path)
			}
			return nil
		})
	}
	return left
}
