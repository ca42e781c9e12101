package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestACapLimitsNoTaskInside: the kernel applies a cgroup's quota to everything below it. A cap
// ends as soon as a latency-sensitive task comes into the cgroup, and is refused while it is
// there.
func TestACapLimitsNoTaskInside(t *testing.T) {
	outer := newLimited(t, "outer", "-1", "wait")
	dir, inner := state(t), outer.path+"/web"
	file := filepath.Join(dir, "agent.yaml")
	rules := fmt.Sprintf("rules: [{match: %q, job: outer, class: batch}, {match: %q, job: web, class: latency-sensitive}]\n", outer.path, inner)
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	d := start(t, dir, append(settings(dir), "--config", file)...)
	d.cap(outer)
	quelltest.StartChild(t, exec.Command("cat"), quelltest.MakeCgroup(t, cpuMount+inner))
	quelltest.Until(t, "the cap ends", func() bool { return outer.read("cpu.cfs_quota_us") == "-1" })
	_, err := d.Command(t.Context(), command.CapTask(outer.path, 0.1, time.Hour, "test"))
	var refused *api.RefusedError
	if !errors.As(err, &refused) || refused.Status != http.StatusConflict || !strings.Contains(err.Error(), "its cgroup contains "+inner) {
		t.Errorf("capped again: %v", err)
	}
	if got := outer.read("cpu.cfs_quota_us"); got != "-1" {
		t.Errorf("the quota is %s", got)
	}
}
