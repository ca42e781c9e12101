//go:build guests

package guest

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rounds says how often TestV2/disk and TestV2/blkio play their scene; once where it is not set.
const rounds = "QUELL_TEST_ROUNDS"

// blank makes a disk with nothing on it.
func blank(t *testing.T) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(16 << 20); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// modules puts kernel modules into a box, loaded before anything runs.
func (b box) modules(t *testing.T, names ...string) box {
	t.Helper()
	kernel, err := Find(b.Arch)
	if err != nil {
		t.Fatal(err)
	}
	files, err := kernel.Module(names...)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b.Init.Modules = append(b.Init.Modules, f.Path)
	}
	b.files = append(b.files, files...)
	return b
}

// programs puts quell's own programs into a box.
func (b box) programs(t *testing.T, names ...string) box {
	t.Helper()
	for _, name := range names {
		b.files = append(b.files, File{Path: "/bin/" + name, From: build(t, b.Arch, "program", "cmd/"+name)})
	}
	return b
}

// TestV2 is quell on kernels with cgroup v2 alone. What is measured is measured
// in virtual time, which a busy host cannot disturb; on amd64 that takes a
// machine of one CPU. Placements and pressure, which are not measured, have two.
func TestV2(t *testing.T) {
	const pkg = "internal/guest/inside/v2"
	t.Run("limits", func(t *testing.T) {
		box{
			Machine: Machine{Arch: AMD64, InstructionNS: 16},
			tests:   []insideTest{{pkg: pkg, args: []string{"-test.run=Caps|Limit|Delegation|Another|Network"}}},
		}.modules(t, "null_blk").programs(t, "quell-agent").run(t)
	})
	t.Run("placements", func(t *testing.T) {
		box{
			Machine: Machine{Arch: AMD64, CPUs: CPUs{Cores: 2}},
			tests:   []insideTest{{pkg: pkg, args: []string{"-test.run=Placement|Pressure"}}},
		}.run(t)
	})
	// In virtual time, and so with the kernel of arm64: see Machine.InstructionNS.
	t.Run("findings", func(t *testing.T) {
		box{
			Machine:  Machine{Arch: ARM64, CPUs: CPUs{Cores: 3}, InstructionNS: 16},
			tests:    []insideTest{{pkg: pkg, args: []string{"-test.run=Findings"}}},
			deadline: 20 * time.Minute, // of a busy host
		}.programs(t, "quell-agent").run(t)
	})
	// In the host's time, which a slow disk of QEMU's goes by, and on one CPU:
	// of two that take turns, one would let requests that are done wait.
	for _, test := range []string{"Disk", "Blkio"} {
		t.Run(strings.ToLower(test), func(t *testing.T) {
			b := box{
				Machine: Machine{Arch: AMD64, Drives: []Drive{{Path: blank(t), IOPS: 36}, {Path: blank(t)}}},
				Init:    Init{Env: []string{rounds + "=" + cmp.Or(os.Getenv(rounds), "1")}},
				tests:   []insideTest{{pkg: pkg, args: []string{"-test.run=Test" + test, "-test.timeout=40m"}}},
			}
			if os.Getenv(rounds) != "" {
				b.deadline = 40 * time.Minute
			}
			b.modules(t, "virtio_pci", "virtio_blk").programs(t, "quell-agent").run(t)
		})
	}
	// In the host's time, where emulated CPUs take long turns.
	t.Run("demo", func(t *testing.T) {
		box{
			Machine: Machine{Arch: AMD64, CPUs: CPUs{Cores: 2}, MemoryMB: 768},
			tests:   []insideTest{{pkg: pkg, args: []string{"-test.run=Demo"}}},
		}.programs(t, "quell-agent", "quell").run(t)
	})
}
