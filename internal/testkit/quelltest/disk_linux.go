package quelltest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// BlkioV1 returns the mount of v1's blkio hierarchy if cgroups that limit I/O
// can be made there; else it skips the test.
func BlkioV1(t testing.TB) (mount string) {
	t.Helper()
	mount, err := cgroupMount("cgroup", "blkio")
	if err == nil {
		err = tryCgroup(mount)
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(mount, "blkio.throttle.read_bps_device"))
	}
	if err != nil {
		Skip(t, "cgroup-v1-blkio", err)
	}
	return mount
}

// Disk makes a block device of size bytes, a loop device over a file, which is
// removed with the test. It returns its path and its numbers as the kernel
// writes them ("7:0"). If none can be made it skips the test.
func Disk(t testing.TB, size int64) (file, numbers string) {
	t.Helper()
	backing, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err == nil {
		defer backing.Close()
		err = backing.Truncate(size)
	}
	if err != nil {
		t.Fatal(err)
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		Skip(t, "loop-device", err)
	}
	defer control.Close()
	// Another process may take the free device first.
	for range 20 {
		var n int
		if n, err = unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE); err != nil {
			break
		}
		file = fmt.Sprintf("/dev/loop%d", n)
		var device *os.File
		if device, err = os.OpenFile(file, os.O_RDWR, 0); err != nil {
			break
		}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &unix.LoopConfig{Fd: uint32(backing.Fd()), Size: 4096,
			Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}) // detached with the last descriptor
		if err == nil {
			t.Cleanup(func() { device.Close() })
			text, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/dev", n))
			if err != nil {
				t.Fatal(err)
			}
			return file, strings.TrimSpace(string(text))
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	Skip(t, "loop-device", err)
	return "", ""
}
