package quelltest

import (
	"errors"
	"io/fs"
	"os"
	"testing"
)

// CgroupMount returns where a hierarchy is mounted: that of a v1 controller, or
// cgroup2 for "". It skips the test where there is none.
func CgroupMount(t testing.TB, controller string) string {
	t.Helper()
	if controller == "" {
		dir, err := cgroupMount("cgroup2", "")
		if err != nil {
			Skip(t, Cgroup2, err)
		}
		return dir
	}
	dir, err := cgroupMount("cgroup", controller)
	if err != nil {
		Skip(t, CgroupV1, err)
	}
	return dir
}

// MakeCgroup makes a cgroup and returns its directory. It is removed when the
// test ends; by then its processes must be ending.
func MakeCgroup(t testing.TB, dir string) string {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		Until(t, "rmdir "+dir, func() bool {
			err := os.Remove(dir)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
	})
	return dir
}
