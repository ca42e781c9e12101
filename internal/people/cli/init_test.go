package cli

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/agent"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/sample"
)

// A configuration is replaced only on request, and not before the new one is complete.
func TestInitReplacesAConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := writeConfig(file, bytes.NewBufferString("new"), false); err == nil {
		t.Error("it is replaced without --force")
	}
	if err := writeConfig(file, bytes.NewBufferString("new"), true); err != nil {
		t.Fatal(err)
	}
	before, err := io.ReadAll(old)
	now, err2 := os.ReadFile(file)
	if string(before) != "old" || string(now) != "new" || err != nil || err2 != nil {
		t.Errorf("the old file has %q, the new one %q, %v, %v", before, now, err, err2)
	}
}

// The file has each task in the part for its class with the reason, no name breaks out of its
// comment, and the agent reads it as the defaults.
func TestInitWritesAConfiguration(t *testing.T) {
	found := func(path, name, job string, class sample.Class, protected, never bool, why string) agent.Found {
		return agent.Found{Path: path, Verdict: config.Verdict{Name: sample.TaskName(name), Job: sample.JobName(job), Class: class, Protected: protected, NeverCap: never, Why: why, Proposed: true}}
	}
	all := []agent.Found{
		found("/kubepods/burstable/podx/y", "shop/web-0/app", "shop/web/app", sample.LatencySensitive, false, false, "accepts connections at TCP port 80"),
		found("/machine/qemu-1-db.libvirt-qemu", "vm/db", "vm/db", sample.Batch, true, false, "virtual machine"),
		found("/docker/z", "", "docker/z", sample.BestEffort, false, false, "niceness 19\nrules: []"),
		found("/system.slice/cron.service", "cron.service", "cron.service", sample.Batch, false, true, "nothing speaks for another class"),
	}
	var b bytes.Buffer
	writeInit(&b, all, "node\n1", "1.0")
	text := b.String()
	for _, want := range []string{
		"4 tasks, others may be capped for 2 of them",
		"# Latency-sensitive: others may be capped for these; these are never capped.\n#   shop/web-0/app (job shop/web/app): accepts connections at TCP port 80\n",
		"# Protected: others may be capped for these, and these may be capped.\n#   vm/db (job vm/db): virtual machine\n",
		"# Best-effort: capped first and hardest.\n#   /docker/z (job docker/z): \"niceness 19\\nrules: []\"\n",
		"never capped, and no other is capped for these.\n#   cron.service (job cron.service): nothing",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %q in\n%s", want, text)
		}
	}
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	def := config.Default()
	if c.Enforce.Mode != "advise" || len(c.Rules) != len(def.Rules) {
		t.Errorf("mode %s, %d rules", c.Enforce.Mode, len(c.Rules))
	}
}
