package workload

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
)

// Place moves a process that is not one of the tree's into a task's cgroups,
// made as needed, so that it gets its share of the tree's CPU time. The caller
// ends the process before Close.
func (t *Tree) Place(task string, pid int) error {
	if !taskShape.MatchString(task) {
		return fmt.Errorf("place process: task %q: want path elements of letters, digits, '_', '.' and '-'", task)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return errors.New("place process: the tree is closed")
	}
	if err := t.make(task); err != nil {
		return fmt.Errorf("place process: %w", err)
	}
	return t.enter(task, pid)
}

func (t *Tree) enter(task string, pid int) error {
	for _, dir := range t.Dirs(task) {
		if err := write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("place process %d: %w", pid, err)
		}
	}
	return nil
}
