package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestStreamsFitTheDisk: what the streams may have is within the disk's space, and never less
// than what they hold.
func TestStreamsFitTheDisk(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct{ want, free, used, stream int64 }{
		{4096 * mb, 100_000 * mb, 0, 4096 * mb},
		{4096 * mb, 2000 * mb, 0, 1000 * mb},
		{4096 * mb, 1000 * mb, 1000 * mb, 1000 * mb},
		{4096 * mb, 0, 900 * mb, 900 * mb},
		{100 * mb, 0, 900 * mb, 100 * mb}, // the operator's own wish
		{4096 * mb, 0, 0, 0},
	} {
		stream, all := fit(c.want, c.free, c.used)
		if stream != c.stream {
			t.Errorf("%+v: %d MB", c, stream/mb)
		}
		if records := stream / 4; stream+records > all || all > max(c.free+c.used, c.used/4*6) {
			t.Errorf("%+v: %d and %d of %d MB", c, stream/mb, records/mb, all/mb)
		}
	}
}

// TestSmallDisk: the server starts with its defaults on a disk that has less room than
// bus.max_mb, and says what it lacks on one that is too small.
func TestSmallDisk(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root)
	disk := func(size string) (dir string) {
		dir = t.TempDir()
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "mode=700,size="+size); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		return dir
	}
	small := disk("200m")
	for range 2 { // also with the streams of the first
		r := &running{}
		startAs(t, r, "state_dir="+small)
		r.end()
	}
	c, err := config.LoadServer("", nil, []string{"state_dir=" + disk("20m"), "listen=" + quelltest.FreeAddress(t), "bus.listen=" + quelltest.FreeAddress(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "MB free, and agents' messages need 32 MB") {
		t.Errorf("on a disk of 20 MB: %v", err)
	}
}
