package workload

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
)

// Tree is a set of its own cgroups, one per task, in every hierarchy that quell uses
// (cgroup2 and v1 cpu and cpuacct, if mounted), and the workloads that run in them. Its
// top directory has the same path in each: /<prefix>-<pid>-<start time of pid>, so that
// Sweep can identify its owner.
//
// A Tree is safe for use by several goroutines.
type Tree struct {
	top     string   // name of the top directory
	roots   []string // of the hierarchies
	mounts  mounts
	scratch string // directory of the progress files
	exe     string // this program, whose subcommand "workload" calls Run
	opt     TreeOptions

	threads chan func() // run on the thread that starts processes

	mu     sync.Mutex
	procs  []*Proc
	closed bool
}

// TreeOptions are the options of a Tree; the zero value works.
type TreeOptions struct {
	// Weight is the tree's CPU share relative to another cgroup where both are busy, 1 to
	// 100; 0 means 1. With 100 a victim's run-queue wait stays below 0.1 s/CPU-s while
	// ten builds run, and tasks outside the tree get little of the CPUs that the tree
	// keeps busy. With a weight the tree's programs do not inherit this process's niceness:
	// what they get must not depend on how it was started.
	Weight int
	// Controllers are additional controllers for the tree's cgroups, e.g. cpuset,
	// freezer, memory: in their v1 hierarchies, or in cgroup2 if its root delegates them.
	// One that the machine lacks is left out.
	Controllers []string
	// Ungrouped keeps the tree out of the v1 hierarchy of the cpu controller, so that its
	// tasks are scheduled as if they had no cgroup. Where the controller is in cgroup2
	// this is not possible.
	Ungrouped bool
}

// teardownTimeout is the time limit for processes to die and cgroups to empty.
const teardownTimeout = 10 * time.Second

// OpenTree creates an empty tree. The prefix is one path element of letters, digits, "_"
// and "-"; Sweep removes trees of dead owners with the same prefix. A missing permission
// or mount is an *MissingError.
func OpenTree(prefix string, opt TreeOptions) (*Tree, error) {
	if !prefixShape.MatchString(prefix) {
		return nil, fmt.Errorf("open tree: prefix %q: want letters, digits, '_' and '-'", prefix)
	}
	if opt.Weight < 0 || opt.Weight > 100 {
		return nil, fmt.Errorf("open tree: weight %d: want 1 to 100", opt.Weight)
	}
	h, err := host.Open("/")
	if err != nil {
		return nil, fmt.Errorf("open tree: %w", &MissingError{"no /proc", "mount it: mount -t proc proc /proc", err})
	}
	m, err := findMounts(h.Layout())
	if err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	m.extend(h.Layout().V1, opt)
	top, err := own(prefix)
	if err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	t := &Tree{top: top, roots: m.all(), mounts: m,
		exe: exe, opt: opt, threads: make(chan func())}
	t.scratch = filepath.Join(os.TempDir(), t.top)
	// First, because it fails if this process already has such a tree.
	if err := os.Mkdir(t.scratch, 0o755); err != nil {
		return nil, fmt.Errorf("open tree: %w", err)
	}
	if err := t.make(""); err != nil {
		return nil, errors.Join(fmt.Errorf("open tree: %w", err), t.remove())
	}
	if opt.Weight > 0 {
		if err := t.Weigh("", float64(opt.Weight)); err != nil {
			return nil, errors.Join(fmt.Errorf("open tree: %w", err), t.remove())
		}
	}
	// Processes die with the thread that started them (PR_SET_PDEATHSIG), so this thread
	// lives as long as the tree.
	host.OwnThread(func() {
		if opt.Weight > 0 {
			// Without privilege they keep this process's niceness.
			_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 0)
		}
		for f := range t.threads {
			f()
		}
	})
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

// Add creates a task's cgroups before anything runs there, e.g. to configure them.
func (t *Tree) Add(task string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.claim(task); err != nil {
		return fmt.Errorf("add task: %w", err)
	}
	return nil
}

// claim creates a task's cgroups. The caller holds t.mu.
func (t *Tree) claim(task string) error {
	if !taskShape.MatchString(task) {
		return fmt.Errorf("task %q: want path elements of letters, digits, '_', '.' and '-'", task)
	}
	if t.closed {
		return fmt.Errorf("tree %s is closed", t.top)
	}
	return t.make(task)
}

// Remove ends all processes of a task and removes its directories. The caller still has
// to wait for programs that it launched there.
func (t *Tree) Remove(task string) error {
	var all []error
	for _, dir := range t.Dirs(task) {
		all = append(all, RemoveCgroups(dir))
	}
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("remove task %s: %w", task, err)
	}
	return nil
}

// Kill ends all processes of a task and keeps its cgroups. The caller still has to wait for
// programs that it launched there.
func (t *Tree) Kill(task string) error {
	for deadline := time.Now().Add(teardownTimeout); ; time.Sleep(5 * time.Millisecond) {
		left := 0
		for _, dir := range t.Dirs(task) {
			killMembers(dir)
			left += len(members(dir))
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kill task %s: %d processes do not exit", task, left)
		}
	}
}

// make creates the task's directories, with the controllers enabled in all of them. In
// cgroup v2 a directory that enables controllers for its children cannot hold processes,
// so tasks are leaves: "web/0" and "web/1", but no "web".
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
				if err := inheritCPUs(dir, i == 0); err != nil {
					return fmt.Errorf("make cpuset: %w", err)
				}
			}
		}
	}
	return nil
}

// Weigh sets the CPU weight of a task, "" for the whole tree, to a multiple of the default:
// 100 in cpu.weight, 1024 in v1's cpu.shares.
func (t *Tree) Weigh(task string, times float64) error {
	dir, v1 := t.CPUDir(task)
	file, usual := "cpu.weight", 100.0
	if v1 {
		file, usual = "cpu.shares", 1024
	}
	return host.WriteFile(filepath.Join(dir, file), strconv.Itoa(max(1, int(times*usual))))
}

// enable enables the controllers for children of a v2 directory: cpu, and of the other
// controllers those that the directory has.
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
		if err := host.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), "+"+c); err != nil {
			return err
		}
	}
	return nil
}

// inheritCPUs gives a new v1 cpuset the CPUs and memory nodes of its parent: initially it
// has none and can hold no process (cgroup-v1/cpusets.rst). With again it gets them also if it has
// some: v1 takes a CPU that goes off out of all cpusets but the root, and does not give it back.
func inheritCPUs(dir string, again bool) error {
	// A cpuset that a program creates below (LXC) inherits them automatically.
	if err := host.WriteFile(filepath.Join(dir, "cgroup.clone_children"), "1"); err != nil {
		return err
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		has, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		above, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err != nil {
			return err
		}
		if now := strings.TrimSpace(string(has)); now != "" && !again || string(has) == string(above) {
			continue
		}
		if err := host.WriteFile(filepath.Join(dir, file), strings.TrimSpace(string(above))); err != nil {
			return err
		}
	}
	return nil
}

func mkdirError(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return &MissingError{"no permission to make cgroups", "run it as root (sudo)", err}
	case errors.Is(err, unix.EROFS):
		return &MissingError{"the cgroup file system is read-only",
			"in a container: run it privileged, with /sys/fs/cgroup writable", err}
	}
	return fmt.Errorf("make cgroup: %w", err)
}

// Close ends every process of the tree and removes its directories and progress files.
// What could not be removed is in the error and in Leftovers.
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
		all = append(all, RemoveCgroups(dir))
	}
	all = append(all, os.RemoveAll(t.scratch))
	if err := errors.Join(all...); err != nil {
		return fmt.Errorf("remove tree %s: %w", t.top, err)
	}
	return nil
}

// Leftovers lists the tree's directories that exist: all of them while it is open, none after
// a successful Close.
func (t *Tree) Leftovers() []string {
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
