package quelltest

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// CPUs is what a test holds that measures how long a task waits for a CPU, or whose tasks
// have a weight that leaves the tasks of other tests next to nothing.
const CPUs = "cpus"

// Alone waits until no other test of this machine, also of other packages and other runs, holds
// the same thing, and holds it until the test ends. Only root does: in /tmp the kernel refuses also to
// root the file that another user has made (fs.protected_regular).
func Alone(t testing.TB, thing string) {
	t.Helper()
	Need(t, Root)
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "quell-test-alone-"+thing), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	Until(t, "no other test holds "+thing, Paced(func() bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }))
}
