//go:build inguest

package v2

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/people/report"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The disks: a slow one (guest.Drive.IOPS) and a fast one.
const slow, quick = "/dev/vda", "/dev/vdb"

// The scene on the slow disk: a latency-sensitive reader, an innocent one with rare but
// large reads, and a writer. Another task writes at the same times as the writer, but to
// the other disk.
const (
	disks     = "/quell-test-disk"
	reader    = disks + "/web"
	steady    = disks + "/steady"
	writer    = disks + "/backup"
	elsewhere = disks + "/elsewhere"
)

// onDisks is the agent's configuration. Batch tasks are suspects only.
const onDisks = `
signals: [io]
listen: 127.0.0.1:9399
tick: 500ms
sampling: {duration: 2s, period: 2s}
spec: {min_samples: 8}
detect: {outlier_window: 20s, window: 90s, pace: 0s}
enforce: {mode: on, for: 20s, io_ops: 4, io_bytes: 131072}
rules:
  - {match: "/quell-test-disk/web", job: web, class: latency-sensitive}
  - {match: "/quell-test-disk/*", job: $1, class: batch, signals: [cpi]}
`

// rounds is the variable with the number of rounds; the test on the host's side sets it.
const rounds = "QUELL_TEST_ROUNDS"

// A writer takes the time of a slow disk from a reader. Of three suspects it is named and
// limited on that disk, the reader recovers, and the limit is removed.
func TestDisk(t *testing.T) { onASlowDisk(t, inCgroup2{}) }

// The same where v1's blkio limits I/O: the tasks are cgroups of v2, and their processes
// are in cgroups of blkio too.
func TestBlkio(t *testing.T) { onASlowDisk(t, newInBlkio(t)) }

// limiter is the hierarchy in which I/O is limited.
type limiter interface {
	// inner is the setting of a cgroup of v2 that has child cgroups.
	inner() string
	// cgroup creates the cgroup there for a cgroup of v2, and join puts one of its
	// processes into it.
	cgroup(t *testing.T, path string)
	join(t *testing.T, path string, pid int)
	// limits are the contents of the files that limit a cgroup there, and want are their
	// expected endings, each with one line.
	limits(t *testing.T, path string) []string
	want() []string
}

type inCgroup2 struct{}

func (inCgroup2) inner() string                { return inner }
func (inCgroup2) cgroup(*testing.T, string)    {}
func (inCgroup2) join(*testing.T, string, int) {}
func (inCgroup2) limits(t *testing.T, path string) []string {
	return []string{text(t, path, "io.max")}
}
func (inCgroup2) want() []string { return []string{" rbps=131072 wbps=131072 riops=4 wiops=4\n"} }

// inBlkio is the directory in which v1's blkio is mounted.
type inBlkio string

// newInBlkio takes the io controller away from cgroup2, which has it in this guest.
func newInBlkio(t *testing.T) inBlkio {
	t.Helper()
	dir := t.TempDir()
	put(t, filepath.Join(root, "cgroup.subtree_control"), "-io")
	quelltest.Until(t, "blkio can be mounted", func() bool {
		return unix.Mount("blkio", dir, "cgroup", 0, "blkio") == nil
	})
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return inBlkio(dir)
}

func (inBlkio) inner() string { return "cgroup.subtree_control=+cpu +cpuset +memory" }

func (b inBlkio) cgroup(t *testing.T, path string) {
	t.Helper()
	dir := filepath.Join(string(b), path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		quelltest.Until(t, dir+" can be removed", func() bool { return unix.Rmdir(dir) == nil })
	})
}

func (b inBlkio) join(t *testing.T, path string, pid int) {
	t.Helper()
	put(t, filepath.Join(string(b), path, "cgroup.procs"), strconv.Itoa(pid))
}

func (b inBlkio) limits(t *testing.T, path string) (all []string) {
	t.Helper()
	for _, name := range []string{"read_bps", "write_bps", "read_iops", "write_iops"} {
		text, err := os.ReadFile(filepath.Join(string(b), path, "blkio.throttle."+name+"_device"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	return all
}

func (inBlkio) want() []string { return []string{" 131072\n", " 131072\n", " 4\n", " 4\n"} }

// onASlowDisk plays the scene for the configured number of rounds.
func onASlowDisk(t *testing.T, by limiter) {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(rounds), "1"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		t.Run(fmt.Sprintf("round %d", i+1), func(t *testing.T) { playOnASlowDisk(t, by) })
	}
}

func playOnASlowDisk(t *testing.T, by limiter) {
	cgroup(t, disks, by.inner())
	by.cgroup(t, disks)
	for _, p := range []string{reader, steady, writer, elsewhere} {
		cgroup(t, p)
		by.cgroup(t, p)
	}
	a := startAgentWith(t, 0, onDisks)
	// Threads that each make a request of block bytes in every interval. Together with
	// the writer the disk completes fewer reads than the reader's threads request, so all
	// of them soon wait for it: far longer than the effect of a busy host.
	io := func(path, disk, what, every string, threads, block int) {
		cmd := child(t, "io", path, nil, disk, what, every, strconv.Itoa(threads), strconv.Itoa(block))
		by.join(t, path, cmd.Process.Pid)
	}
	io(reader, slow, "read", "500ms", 10, 4096)
	io(steady, slow, "read", "500ms", 1, 512<<10)
	a.learntOf(reader)
	// From here on intervals are judged: without good ones a suspect could not be
	// distinguished from a task that was always there.
	intervals := func() uint64 {
		s, err := a.Status(t.Context())
		if err != nil {
			return 0
		}
		return s.Intervals
	}
	enough := intervals() + 6
	until(t, 60*time.Second, "six intervals were good", func() bool { return intervals() >= enough })

	io(writer, slow, "write", "0s", 16, 64<<10)
	io(elsewhere, quick, "write", "40ms", 1, 4096)
	var capped incident.Record
	until(t, 120*time.Second, "a task is capped", func() bool {
		for _, i := range a.incidents() {
			if len(i.Rounds) > 0 {
				capped = i
			}
		}
		return capped.ID != ""
	})
	first := capped.Rounds[0]
	if capped.Kind != detect.Neighbour || capped.Victim.Name != reader || first.Suspect.Name != writer || capped.Antagonists != 1 {
		t.Fatalf("incident %+v, round %+v", capped, first)
	}
	// On each kernel the disk's accounts during the reader's waits identify it.
	if s := capped.Suspects[0]; s.Name != writer || s.Basis != detect.ByAccounts || s.Share < 0.3 {
		t.Errorf("the first suspect is %+v", s)
	}
	for _, s := range capped.Suspects {
		if s.Name == elsewhere && s.Excluded != "shares no device with the victim" {
			t.Errorf("suspect %+v", s)
		}
	}
	for i, got := range by.limits(t, writer) {
		if want := by.want()[i]; !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("the limit is %q, want one line that ends with %q", got, want)
		}
	}
	for _, p := range []string{reader, steady, elsewhere} {
		if got := strings.Join(by.limits(t, p), ""); got != "" {
			t.Errorf("the limit of %s is %q", p, got)
		}
	}
	until(t, 60*time.Second, "the first cap is over and judged", func() bool {
		capped = a.incidents()[capped.ID]
		return capped.Rounds[0].Ended != 0
	})
	first = capped.Rounds[0]
	if first.Outcome != plan.TruePositive || !(float64(first.RelativeCost) < 0.7) {
		t.Errorf("round %+v", first)
	}
	var page bytes.Buffer
	if err := report.Incident(&page, capped, report.Style{}); err != nil || !strings.Contains(strings.Join(strings.Fields(page.String()), " "), "reads and writes of 4 requests/s and 128 KiB/s each") {
		t.Errorf("%v, the incident reads\n%s", err, page.String())
	}
	t.Logf("figure: a request of the reader's took %.1f ms usually, %.1f ms with the writer, %.1f ms with it capped; named %s, served for %.0f %% of the wait, of %d suspects",
		1e3*capped.SpecMean, 1e3*float64(first.CostBefore), 1e3*float64(first.CostUnder), first.Suspect.Name, 100*capped.Suspects[0].Share, len(capped.Suspects))
	// When it ends, the agent undoes what is in force; there may be a second round.
	a.cmd.Process.Signal(unix.SIGTERM)
	if err := a.cmd.Wait(); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	if got := strings.Join(by.limits(t, writer), ""); got != "" {
		t.Errorf("after the agent's end the limit is %q", got)
	}
}

// stress is a child that reads or writes blocks of a disk, past the page cache, in the
// given number of threads. every is the time from one request's beginning to the next.
func stress(disk, what, every, threads, block string) error {
	pause, err := time.ParseDuration(every)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(threads)
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(block)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(disk, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		return err
	}
	failed := make(chan error)
	for i := range n {
		go func() {
			// O_DIRECT requires memory in whole pages.
			buf, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			<-time.After(pause * time.Duration(i) / time.Duration(n)) // staggered
			tick := time.NewTicker(max(pause, 1))
			for at := int64(i); err == nil; at++ {
				if pause > 0 {
					<-tick.C
				}
				if what == "read" {
					_, err = f.ReadAt(buf, at%16*int64(size))
				} else {
					_, err = f.WriteAt(buf, at%16*int64(size))
				}
			}
			failed <- err
		}()
	}
	return <-failed
}
