package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const diskEnv = "QUELL_HOST_TEST_DISK"

// startWriter starts a child that writes blocks of a disk on request and answers when it has.
func startWriter(t *testing.T, disk string) *quelltest.Child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childMode+"=disk", diskEnv+"="+disk)
	return quelltest.StartChild(t, cmd, "")
}

// took returns how long the writer takes for a request.
func took(w *quelltest.Child, how string, n int) time.Duration {
	began := time.Now()
	w.Ask(how, n)
	return time.Since(began)
}

// writeDisk is the child: "direct 3" are three direct writes, "together 3" are as many at
// once, "buffered 3" go to memory, and "fsync 0" waits for those.
func writeDisk(disk string) error {
	const block = 4096
	direct, err := os.OpenFile(disk, os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	defer direct.Close()
	buffered, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer buffered.Close()
	raw := make([]byte, 2*block)
	buf := raw[block-int(uintptr(unsafe.Pointer(&raw[0]))%block):][:block]
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		how, count, _ := strings.Cut(lines.Text(), " ")
		n, err := strconv.Atoi(count)
		write := func(f *os.File, i int) error {
			_, err := f.WriteAt(buf, int64(i)*2*block) // no two are adjacent, so none are merged
			return err
		}
		switch how {
		case "fsync":
			err = buffered.Sync()
		case "together":
			ended := make(chan error)
			for i := range n {
				go func() { ended <- write(direct, i) }()
			}
			for range n {
				err = errors.Join(err, <-ended)
			}
		default:
			f := map[string]*os.File{"direct": direct, "buffered": buffered}[how]
			for i := 0; i < n && err == nil; i++ {
				err = write(f, i)
			}
		}
		if err != nil {
			return err
		}
		fmt.Println("done")
	}
	return nil
}

// blkio makes a cgroup in v1's blkio for a test on the kernel, and a disk.
func blkio(t *testing.T) (h *Host, p string, disk string, dev Device) {
	t.Helper()
	quelltest.Need(t, quelltest.Root)
	quelltest.BlkioV1(t)
	disk, numbers := quelltest.Disk(t, 16<<20)
	if _, err := fmt.Sscanf(numbers, "%d:%d", &dev.Major, &dev.Minor); err != nil {
		t.Fatal(err)
	}
	h = real(t)
	return h, mkcgroup(t, h, "blkio", "disk"), disk, dev
}

// v1's limits apply to direct writes and to writes that a task waits for, not to
// what another process writes back later. They leave nothing when they are removed.
func TestBlkioOnTheKernel(t *testing.T) {
	h, p, disk, dev := blkio(t)
	dir, _, w, err := h.IOWrites(p, dev, IOLimit{Wiops: 50})
	if err != nil {
		t.Fatal(err)
	}
	a := startWriter(t, disk)
	move(t, h, "blkio", p, a.PID)
	// writes returns the requests that the kernel attributes to the cgroup.
	writes := func() (n int) {
		text, err := h.ReadValue(path.Join(dir, "blkio.throttle.io_serviced"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(text) {
			fmt.Sscanf(line, dev.String()+" Write %d", &n)
		}
		return n
	}
	for _, before := range []string{"", dev.String() + " 9000"} {
		if before != "" {
			put(t, h, "blkio", p, "blkio.throttle.write_iops_device", before)
			if _, _, w, err = h.IOWrites(p, dev, IOLimit{Wiops: 50}); err != nil {
				t.Fatal(err)
			}
		}
		apply(t, h, w)
		if l, err := h.IOLimit(p, dev); err != nil || l != (IOLimit{Wiops: 50}) {
			t.Errorf("the limit is %+v, %v", l, err)
		}
		has := writes()
		// Some go through at once, with the first slice.
		if took := took(a, "direct", 40); took < 500*time.Millisecond {
			t.Errorf("40 direct writes at 50 a second took %v", took)
		}
		if n := writes() - has; n != 40 {
			t.Errorf("of 40 direct writes the kernel took %d for the cgroup's", n)
		}
		undo(t, h, w)
		if text, err := h.ReadValue(path.Join(dir, "blkio.throttle.write_iops_device")); err != nil || text != before {
			t.Errorf("undone, the file holds %q, %v; held %q", text, err, before)
		}
	}

	has := writes()
	a.Ask("buffered", 64)
	f, err := os.OpenFile(disk, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // this test writes back what the child wrote
		t.Fatal(err)
	}
	if n := writes() - has; n != 0 {
		t.Errorf("of what others wrote back the kernel took %d for the cgroup's", n)
	}
	a.Ask("buffered", 64)
	a.Ask("fsync", 0)
	if n := writes() - has; n == 0 {
		t.Error("of what it waited for the kernel took nothing for the cgroup's")
	}
}

// v1's limits do not apply to cgroups below, which is why such a limit is refused.
func TestBlkioHoldsACgroupAlone(t *testing.T) {
	h, p, disk, dev := blkio(t)
	below := mkcgroup(t, h, "blkio", p+"/below")
	a := startWriter(t, disk)
	move(t, h, "blkio", below, a.PID)
	if _, _, _, err := h.IOWrites(p, dev, IOLimit{Wiops: 1}); err == nil || !strings.Contains(err.Error(), below) {
		t.Errorf("limited above processes: %v", err)
	}
	put(t, h, "blkio", p, "blkio.throttle.write_iops_device", dev.String()+" 1")
	// At once, so that a machine on which each takes long takes no longer for all.
	if took := took(a, "together", 60); took > 30*time.Second {
		t.Errorf("60 direct writes took %v, as if the cgroup above held them to 1 a second", took)
	}
}

// The task's place in blkio is found from its processes on the kernel too.
func TestIOPlaceOnTheKernel(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1)
	quelltest.BlkioV1(t)
	h := real(t)
	for i, hier := range identities(t, h) {
		own, there := mkcgroup(t, h, treeOf(hier), "io"), mkcgroup(t, h, "blkio", fmt.Sprintf("io-place-%d", i))
		c := open(t, h, hier, own)
		if _, err := c.IOPlace(); !errors.Is(err, ErrNoLimit) {
			t.Errorf("%s: without processes: %v", hier, err)
		}
		pid := child(t, "wait")
		move(t, h, treeOf(hier), own, pid)
		if place, err := c.IOPlace(); !errors.Is(err, ErrNoLimit) {
			t.Errorf("%s: at the top: %q, %v", hier, place, err)
		}
		move(t, h, "blkio", there, pid)
		if place, err := c.IOPlace(); err != nil || place != there {
			t.Errorf("%s: %q, %v; want %q", hier, place, err, there)
		}
		move(t, h, "blkio", there, child(t, "wait"))
		if place, err := c.IOPlace(); !errors.Is(err, ErrNoLimit) {
			t.Errorf("%s: with a process of another task: %q, %v", hier, place, err)
		}
	}
}
