package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// stalledMount mounts a FUSE file system whose process never answers, until the test ends.
func stalledMount(t *testing.T) (dir string) {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		quelltest.Skip(t, "fuse", err)
	}
	t.Cleanup(func() { unix.Close(dev) })
	dir = t.TempDir()
	if err := unix.Mount("stalled", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev)); err != nil {
		quelltest.Skip(t, "fuse", err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// A task's progress file is on a FUSE file system whose process never answers. Windows go on,
// also after a restart, the task is told why it is not counted, and SIGTERM ends the agent.
func TestAStalledProgressFileStopsNothing(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1)
	stalled := stalledMount(t)
	c := newLimited(t, "stalled", "-1", "wait")
	dir := state(t)
	config := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "rules: [{match: %q, job: test, class: batch, progress: %q}]\n", c.path, stalled+"/progress"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d := start(t, dir, append(settings(dir, "sampling.duration=200ms", "sampling.period=250ms"), "--config", config)...)
		quelltest.Until(t, "windows go on and the task is told why it is not counted", quelltest.Paced(func() bool {
			s, err := d.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			tasks, err := d.Tasks(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, task := range tasks {
				if string(task.Name) == c.path && strings.Contains(task.Note, "fuse") && s.Intervals > 5 {
					return true
				}
			}
			return false
		}))
		if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		quelltest.Until(t, "the agent is gone", func() bool {
			select {
			case <-d.ended:
				return true
			default:
				return false
			}
		})
		if code := d.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("exit %d\n%s", code, d.log.String())
		}
	}
}
