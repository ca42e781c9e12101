package enforce

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/machine/host"
)

var errCrashed = errors.New("the process is dead")

// world is a machine in memory: cgroup files, the journal's disk, and a crash
// after a number of steps. A step is a byte written to the disk or any other
// effect; effects after the last step do not happen.
type world struct {
	boot   string
	inodes map[string]uint64 // by directory
	values map[string]string // by file
	log    []string          // every value written: "file=value"
	// write, if set, may refuse a value or store another one in its place.
	write func(file, value string) (string, error)
	read  func(file string) error
	hold  func(files []string) error
	look  func(what string) error // Inode, and files read from the disk
	held  int                     // files

	names, durable map[string]*fakeFile
	diskErr        func(op string) error

	budget int // steps left; negative: no crash
	steps  int
	ends   []int // value of steps after each effect
	dead   bool
}

func newWorld(dirs map[string][]string) *world {
	w := &world{boot: "boot-1", inodes: map[string]uint64{}, values: map[string]string{}, budget: -1,
		names: map[string]*fakeFile{}, durable: map[string]*fakeFile{}}
	for dir, files := range dirs {
		w.inodes[dir] = 100 + uint64(len(dir))
		for i, f := range files {
			w.values[dir+"/"+f] = fmt.Sprint(1000 * (i + 1))
		}
	}
	return w
}

// spend returns how many of n steps are still made.
func (w *world) spend(n int) int {
	if w.dead {
		return 0
	}
	if w.budget >= 0 && n > w.budget {
		n, w.dead = w.budget, true
	}
	w.budget -= min(n, max(w.budget, 0))
	w.steps += n
	w.ends = append(w.ends, w.steps)
	return n
}

func (w *world) ReadValue(file string) (string, error) {
	if w.dead {
		return "", errCrashed
	}
	if w.read != nil {
		if err := w.read(file); err != nil {
			return "", err
		}
	}
	v, ok := w.values[file]
	if !ok {
		return "", fmt.Errorf("read value: %w", &fs.PathError{Op: "open", Path: file, Err: syscall.ENOENT})
	}
	return v, nil
}

func (w *world) WriteValue(file, value string) error {
	if w.spend(1) == 0 {
		return errCrashed
	}
	if _, ok := w.values[file]; !ok {
		return fmt.Errorf("write value: %w", &fs.PathError{Op: "open", Path: file, Err: syscall.ENODEV})
	}
	if w.write != nil {
		var err error
		if value, err = w.write(file, value); err != nil {
			return fmt.Errorf("write value: %w", err)
		}
	}
	w.values[file] = value
	w.log = append(w.log, file+"="+value)
	return nil
}

func (w *world) Inode(dir string) (uint64, error) {
	if w.dead {
		return 0, errCrashed
	}
	if w.look != nil {
		if err := w.look(dir); err != nil {
			return 0, err
		}
	}
	ino, ok := w.inodes[dir]
	if !ok {
		return 0, fmt.Errorf("read inode: %w", fs.ErrNotExist)
	}
	return ino, nil
}

func (w *world) BootID() (string, error) { return w.boot, nil }

func (w *world) Hold(files ...string) error {
	if w.dead {
		return errCrashed
	}
	if w.hold != nil {
		if err := w.hold(files); err != nil {
			return err
		}
	}
	w.held += len(files)
	return nil
}

func (w *world) Release(files ...string) { w.held -= len(files) }

func (w *world) Held(string) bool { return false }

// remove removes a cgroup and those below it.
func (w *world) remove(dir string) {
	for d := range w.inodes {
		if d == dir || strings.HasPrefix(d, dir+"/") {
			delete(w.inodes, d)
		}
	}
	for f := range w.values {
		if strings.HasPrefix(f, dir+"/") {
			delete(w.values, f)
		}
	}
}

// change makes a Change that sets the files of dir, or of cgroups below it
// ("k/x"), to new values.
func (w *world) change(id, dir string, files ...string) Change {
	c := Change{ID: id, Dir: dir, Inode: w.inodes[dir], From: 1000, Until: 9000, Task: "/batch", Who: "test", Why: "noise"}
	for i, f := range files {
		write := host.Write{File: dir + "/" + f, Old: w.values[dir+"/"+f], New: fmt.Sprintf("%s-%d", id, i)}
		if in := filepath.Dir(write.File); in != dir {
			write.Inode = w.inodes[in]
		}
		c.Writes = append(c.Writes, write)
	}
	return c
}

// fakeFile is a file of the disk; synced is what a power loss leaves.
type fakeFile struct {
	w            *world
	data, synced []byte
}

func (f *fakeFile) Write(b []byte) (int, error) {
	if f.w.diskErr != nil {
		if err := f.w.diskErr("write"); err != nil {
			f.data = append(f.data, b[:len(b)/2]...)
			return len(b) / 2, err
		}
	}
	n := f.w.spend(len(b))
	f.data = append(f.data, b[:n]...)
	if n < len(b) {
		return n, errCrashed
	}
	return n, nil
}

func (f *fakeFile) Sync() error {
	if err := f.w.effect("sync"); err != nil {
		return err
	}
	f.synced = bytes.Clone(f.data)
	return nil
}

func (f *fakeFile) Truncate(size int64) error {
	if err := f.w.effect("truncate"); err != nil {
		return err
	}
	f.data = f.data[:size]
	return nil
}

func (f *fakeFile) Close() error { return nil }

func (w *world) effect(op string) error {
	if w.diskErr != nil {
		if err := w.diskErr(op); err != nil {
			return err
		}
	}
	if w.spend(1) == 0 {
		return errCrashed
	}
	return nil
}

// fakeDisk is the world seen as a disk.
type fakeDisk struct{ *world }

func (d fakeDisk) ReadFile(name string) ([]byte, error) {
	if d.look != nil {
		if err := d.look(name); err != nil {
			return nil, err
		}
	}
	f, ok := d.names[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return bytes.Clone(f.data), nil
}

func (d fakeDisk) Create(name string) (file, error) {
	if err := d.effect("create"); err != nil {
		return nil, err
	}
	f := &fakeFile{w: d.world}
	d.names[name] = f
	return f, nil
}

func (d fakeDisk) Rename(from, to string) error {
	if err := d.effect("rename"); err != nil {
		return err
	}
	d.names[to] = d.names[from]
	delete(d.names, from)
	return nil
}

func (d fakeDisk) Remove(name string) error {
	if err := d.effect("remove"); err != nil {
		return err
	}
	delete(d.names, name)
	return nil
}

func (d fakeDisk) Sync() error {
	if err := d.effect("syncdir"); err != nil {
		return err
	}
	d.durable = maps.Clone(d.names)
	return nil
}

func (d fakeDisk) Close() error { return nil }

// powerLoss leaves on the disk only what was synced.
func (w *world) powerLoss() {
	w.names = maps.Clone(w.durable)
	for _, f := range w.names {
		f.data = bytes.Clone(f.synced)
	}
}

// clone copies the machine as the process left it, with no process on it.
func (w *world) clone() *world {
	c := &world{boot: w.boot, inodes: maps.Clone(w.inodes), values: maps.Clone(w.values), log: slices.Clone(w.log),
		write: w.write, budget: -1, names: map[string]*fakeFile{}, durable: map[string]*fakeFile{}}
	copies := map[*fakeFile]*fakeFile{}
	dup := func(from, to map[string]*fakeFile) {
		for name, f := range from {
			if copies[f] == nil {
				copies[f] = &fakeFile{w: c, data: bytes.Clone(f.data), synced: bytes.Clone(f.synced)}
			}
			to[name] = copies[f]
		}
	}
	dup(w.names, c.names)
	dup(w.durable, c.durable)
	return c
}

// start opens an Enforcer on the world.
func (w *world) start() (*Enforcer, error) { return open(fakeDisk{w}, "/state", w) }

func mustStart(t *testing.T, w *world) *Enforcer {
	t.Helper()
	e, err := w.start()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
