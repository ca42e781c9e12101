package counter

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDescriptors(t *testing.T) {
	before, limit, err := Descriptors()
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || uint64(limit) != min(l.Cur, 1<<30) {
		t.Fatalf("limit %d, %v; want %d", limit, err, l.Cur)
	}
	const more = 20
	for range more {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if after, _, err := Descriptors(); err != nil || after-before != more {
		t.Errorf("%d more are open, %v; want %d", after-before, err, more)
	}
}

// TestDescriptorCapability: sources that take no descriptor for a task need no higher limit.
func TestDescriptorCapability(t *testing.T) {
	if c := DescriptorCapability(0); !c.OK || strings.Contains(c.Detail, "turns") {
		t.Errorf("none for a task: %+v", c)
	}
	if c := DescriptorCapability(int(fdLimit() / 10)); c.OK || !strings.Contains(c.Reason, "about 10 tasks") || c.Remedy == "" {
		t.Errorf("a tenth of the limit for each task: %+v", c)
	}
}
