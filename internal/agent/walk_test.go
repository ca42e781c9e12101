package agent

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// A cgroup that has another's path is another one, also where only a change above it was seen: of one user's cgroups a
// bounded number are watched.
func TestAReplacedCgroupIsForgotten(t *testing.T) {
	f, root := onHost(t, "hybrid", "rules: [{match: /docker/*/*, class: batch, propose: true}]")
	n := &namer{settled: map[string]bool{"/docker/a/b": true}}
	f.names = n
	lay(t, root, "sys/fs/cgroup/unified/docker/a/b/cpu.stat", "usage_usec 1\n")
	now := time.Now()
	if found, _, err := f.Find(now); err != nil || len(found) != 1 {
		t.Fatalf("found %+v, %v", found, err)
	}
	at := host.Place{Hierarchy: sample.Unified, Path: "/docker/a/b"}
	was := f.known[at].Inode
	// It is kept elsewhere, so that its inode is not used again.
	if err := os.Rename(filepath.Join(root, "sys/fs/cgroup/unified/docker/a/b"), filepath.Join(root, "gone")); err != nil {
		t.Fatal(err)
	}
	lay(t, root, "sys/fs/cgroup/unified/docker/a/b/cpu.stat", "usage_usec 1\n")
	if changed, err := f.walkAt(now, host.Place{Hierarchy: sample.Unified, Path: "/docker/a"}); err != nil || !changed {
		t.Errorf("changed %v, %v", changed, err)
	}
	if f.known[at].Inode == was || !slices.Equal(n.forgot, []string{"/docker/a/b"}) {
		t.Errorf("inode %d was %d, forgot %v", f.known[at].Inode, was, n.forgot)
	}
}

// After a walk that failed, for lack of descriptors, what was found first is still known as that: of two tasks with one
// name it has the name, and of a user's it is a task.
func TestAWalkThatFailsForgetsNothing(t *testing.T) {
	f, _ := onHost(t, "hybrid", fixRules)
	now := time.Now()
	want := look(t, f, now)
	known := maps.Clone(f.known)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(walkWatched)
	_, _, failed := f.Find(now)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(failed, unix.EMFILE) {
		t.Fatal(failed)
	}
	if got := look(t, f, now); got != want || len(known) == 0 || !maps.Equal(known, f.known) {
		t.Errorf("found\n%s\nwant\n%s\nas %v, were %v", got, want, f.known, known)
	}
}
