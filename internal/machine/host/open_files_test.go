package host

import (
	"errors"
	"os"
	"path"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// Usage is the same whether files are kept or not. A cgroup that is gone is
// ErrGone, also if another has its path, and no file stays open.
func TestKeep(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	h := real(t)
	// A v1 cgroup without processes may have no place of its own in cpuacct.
	read := func(err error) bool { return err == nil || errors.Is(err, ErrNoUsage) }
	for _, hier := range identities(t, h) {
		t.Run(hier.String(), func(t *testing.T) {
			name := mkcgroup(t, h, treeOf(hier), "keep")
			c := open(t, h, hier, name)
			kept := c.OpenFiles()
			if _, err := c.Usage(); !read(err) || kept == 0 {
				t.Fatalf("%v, %d files", err, kept)
			}
			if err := c.KeepOpen(false); err != nil || c.OpenFiles() != 0 {
				t.Fatalf("%v, %d files", err, c.OpenFiles())
			}
			if _, err := c.Places(); err != nil || c.OpenFiles() != 0 {
				t.Errorf("places: %v, %d files", err, c.OpenFiles())
			}
			if _, err := c.Usage(); !read(err) || c.OpenFiles() != 0 {
				t.Errorf("usage: %v, %d files", err, c.OpenFiles())
			}
			if _, err := c.Stalled("cpu"); err != nil && !errors.Is(err, ErrNoPSI) || c.OpenFiles() != 0 {
				t.Errorf("pressure: %v, %d files", err, c.OpenFiles())
			}
			if err := c.KeepOpen(true); err != nil || c.OpenFiles() != kept {
				t.Errorf("kept again: %v, %d files, want %d", err, c.OpenFiles(), kept)
			}
			if err := c.KeepOpen(false); err != nil {
				t.Fatal(err)
			}
			dir := h.Path(path.Join(h.trees[treeOf(hier)].dir, name))
			for _, again := range []bool{false, true} {
				if err := os.Remove(dir); err != nil {
					t.Fatal(err)
				}
				if again {
					if err := os.Mkdir(dir, 0o755); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := c.Usage(); !errors.Is(err, ErrGone) {
					t.Errorf("path in use again %v: usage: %v, want ErrGone", again, err)
				}
				if err := c.KeepOpen(true); !errors.Is(err, ErrGone) || c.OpenFiles() != 0 {
					t.Errorf("path in use again %v: keep: %v with %d files, want ErrGone and none", again, err, c.OpenFiles())
				}
				if _, err := c.Usage(); !errors.Is(err, ErrGone) {
					t.Errorf("path in use again %v: usage after keep: %v, want ErrGone", again, err)
				}
				if !again {
					if err := os.Mkdir(dir, 0o755); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}
