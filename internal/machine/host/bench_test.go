package host

import (
	"errors"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// BenchmarkUsage compares Usage through kept files with opening, reading and
// closing them each time, in alternation.
func BenchmarkUsage(b *testing.B) {
	quelltest.Need(b, quelltest.Root)
	h := real(b)
	hier := sample.Unified
	if h.Layout().Unified == "" {
		hier = sample.V1CPU
	}
	c := open(b, h, hier, mkcgroup(b, h, treeOf(hier), "bench"))
	if _, err := c.Usage(); err != nil {
		if errors.Is(err, ErrNoUsage) {
			quelltest.Skip(b, "cgroup-usage", err)
		}
		b.Fatal(err)
	}
	name := "cpu.stat"
	if hier == sample.V1CPU {
		name = "cpuacct.usage"
	}
	file := h.Path(path.Join(c.Dir(), name))
	const batch = 100
	var buf [1024]byte
	var kept, opened time.Duration
	n := 0
	for b.Loop() {
		start := time.Now()
		for range batch {
			if _, err := c.Usage(); err != nil {
				b.Fatal(err)
			}
		}
		middle := time.Now()
		for range batch {
			fd, err := unix.Open(file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				b.Fatal(err)
			}
			n, err := unix.Pread(fd, buf[:], 0)
			if err != nil {
				b.Fatal(err)
			}
			unix.Close(fd)
			var u Usage
			u.parse(buf[:n])
		}
		kept += middle.Sub(start)
		opened += time.Since(middle)
		n += batch
	}
	b.ReportMetric(float64(kept)/float64(n), "kept-ns")
	b.ReportMetric(float64(opened)/float64(n), "opened-ns")
	b.ReportMetric(float64(opened)/float64(kept), "opened/kept")
}

// BenchmarkWalk compares Walk with reading every directory, over 100 cgroups without
// others below them. It also measures Places and AllowedCPUs of one with one process.
func BenchmarkWalk(b *testing.B) {
	quelltest.Need(b, quelltest.Root)
	h := real(b)
	hier := sample.Unified
	if h.Layout().Unified == "" {
		hier = sample.V1CPU
	}
	tree := treeOf(hier)
	top := mkcgroup(b, h, tree, "bench-walk")
	for i := range 100 {
		mkcgroup(b, h, tree, top+"/"+strconv.Itoa(i))
	}
	pid := child(b, "wait")
	move(b, h, tree, top+"/0", pid)
	c := open(b, h, hier, top+"/0")
	mount := h.trees[tree].dir
	var walked, twin, places, allowed time.Duration
	for b.Loop() {
		start := time.Now()
		if err := h.walkAll(mount, top, mostBelow, func(*walker, visited) error { return nil }); err != nil {
			b.Fatal(err)
		}
		walked += time.Since(start)
		start = time.Now()
		err := filepath.WalkDir(h.Path(path.Join(mount, top)), func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				_, err = h.Inode(p)
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
		twin += time.Since(start)
		start = time.Now()
		if _, err := c.Places(); err != nil {
			b.Fatal(err)
		}
		places += time.Since(start)
		start = time.Now()
		if _, err := c.AllowedCPUs(); err != nil {
			b.Fatal(err)
		}
		allowed += time.Since(start)
	}
	b.ReportMetric(float64(walked)/float64(b.N)/101, "walk-ns/cgroup")
	b.ReportMetric(float64(twin)/float64(walked), "naive/walk")
	b.ReportMetric(float64(places)/float64(b.N), "places-ns")
	b.ReportMetric(float64(allowed)/float64(b.N), "allowed-ns")
}
