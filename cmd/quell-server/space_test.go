package main

import (
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestSmallDisk: the server starts with its defaults on a small disk, again and again.
func TestSmallDisk(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size=50m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for range 2 {
		r := &running{}
		startAs(t, r, "state_dir="+dir)
		r.end()
	}
}
