package enforce

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// An I/O limit on v1 is four files with a line per disk. They are restored
// together or left alone together, whatever other lines they hold.
func TestBlkioOnTheKernel(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	mount := quelltest.BlkioV1(t)
	_, numbers := quelltest.Disk(t, 1<<20)
	_, other := quelltest.Disk(t, 1<<20)
	var dev host.Device
	if _, err := fmt.Sscanf(numbers, "%d:%d", &dev.Major, &dev.Minor); err != nil {
		t.Fatal(err)
	}
	h, err := host.Open("/")
	must(t, err)
	path := fmt.Sprintf("/quell-test-enforce-io-%d", os.Getpid())
	dir := filepath.Join(mount, path)
	file := func(name string) string { return filepath.Join(dir, "blkio.throttle."+name+"_device") }
	remove := func(t *testing.T) error {
		t.Helper()
		quelltest.Until(t, "rmdir "+dir, func() bool {
			err := os.Remove(dir)
			return err == nil || errors.Is(err, os.ErrNotExist)
		})
		return nil
	}
	before := host.IOLimit{Rbps: 5 << 20}
	for _, tt := range []struct {
		name string
		edit func(*testing.T) error
		want Result
		note string // a part of it
		left host.IOLimit
	}{
		{"no other writer", func(*testing.T) error { return nil }, Restored, "", before},
		{"another process limited another disk", func(*testing.T) error { return h.WriteValue(file("write_bps"), other+" 4096") }, Restored, "", before},
		{"another process set one of them", func(*testing.T) error { return h.WriteValue(file("write_iops"), numbers+" 7") }, TakenOver,
			`holds "7", neither our "20" nor the old "0"`, host.IOLimit{Rbps: 1 << 20, Wbps: 1 << 20, Riops: 20, Wiops: 7}},
		{"the cgroup was removed", remove, Gone, "was removed", host.IOLimit{}},
		{"the cgroup was made again", func(t *testing.T) error {
			return errors.Join(remove(t), os.Mkdir(dir, 0o755), h.WriteValue(file("read_iops"), numbers+" 20"))
		}, Gone, "was removed and made again", host.IOLimit{Riops: 20}},
	} {
		for _, killed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, killed %v", tt.name, killed), func(t *testing.T) {
				must(t, os.Mkdir(dir, 0o755))
				defer remove(t)
				must(t, h.WriteValue(file("read_bps"), fmt.Sprintf("%s %d", numbers, before.Rbps)))
				at, inode, writes, err := h.IOWrites(path, dev, host.IOLimit{Rbps: 1 << 20, Wbps: 1 << 20, Riops: 20, Wiops: 20})
				must(t, err)
				if at != dir || len(writes) != 4 {
					t.Fatalf("writes %+v in %s, want four in %s", writes, at, dir)
				}
				state := filepath.Join(t.TempDir(), "journal")
				e, err := Open(state, h)
				must(t, err)
				must(t, e.Apply(2000, Change{ID: "A", Dir: at, Inode: inode, Writes: writes, From: 1000, Until: 9000}))
				if l, err := h.IOLimit(path, dev); err != nil || l != (host.IOLimit{Rbps: 1 << 20, Wbps: 1 << 20, Riops: 20, Wiops: 20}) {
					t.Errorf("the limit is %+v, %v", l, err)
				}
				must(t, tt.edit(t))
				if killed { // the next one has only what this one leaves on disk
					must(t, e.journal.close())
					e, err = Open(state, h)
					must(t, err)
				}
				others, _ := h.ReadValue(file("write_bps") + "#" + other)
				out, err := e.RestoreAll(3000, "test")
				must(t, err)
				must(t, e.Close())
				if len(out) != 1 || out[0].Result != tt.want || !strings.Contains(out[0].Note, tt.note) {
					t.Errorf("outcomes %+v, want %v %q", out, tt.want, tt.note)
				}
				if l, err := h.IOLimit(path, dev); err == nil && l != tt.left || err != nil && tt.left != (host.IOLimit{}) {
					t.Errorf("afterwards the limit is %+v, %v; want %+v", l, err, tt.left)
				}
				if v, _ := h.ReadValue(file("write_bps") + "#" + other); v != others {
					t.Errorf("the other disk's limit is %q, was %q", v, others)
				}
			})
		}
	}
}
