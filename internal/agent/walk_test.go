package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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
