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

// rounds is the variable with the number of rounds of TestV2/disk and TestV2/blkio;
// default 1.
const rounds = "QUELL_TEST_ROUNDS"

// blank creates an empty disk.
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

// modules adds kernel modules to a box, loaded before any program runs.
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

// programs adds quell's own programs to a box.
func (b box) programs(t *testing.T, names ...string) box {
	t.Helper()
	for _, name := range names {
		b.files = append(b.files, File{Path: "/bin/" + name, From: build(t, b.Arch, "program", "cmd/"+name)})
	}
	return b
}

// TestV2 runs quell on kernels that have only cgroup v2. Measurements use virtual time,
// which a busy host cannot disturb; on amd64 that requires a machine with one CPU. The
// tests of pressure measure nothing and have two.
func TestV2(t *testing.T) {
	const pkg = "internal/lab/guest/inside/v2"
	t.Run("limits", func(t *testing.T) {
		box{
			Machine: Machine{Arch: AMD64, InstructionNS: 16},
			tests:   []insideTest{{pkg: pkg, args: []string{"-test.run=Caps|Limit|Delegation|Another|Network"}}},
		}.modules(t, "null_blk").programs(t, "quell-agent").run(t)
	})
	t.Run("pressure", func(t *testing.T) {
		box{
			Machine: Machine{Arch: AMD64, CPUs: CPUs{Cores: 2}},
			tests:   []insideTest{{pkg: pkg, args: []string{"-test.run=Pressure"}}},
		}.run(t)
	})
	// In virtual time with several CPUs, and so with the kernel of arm64: see
	// Machine.InstructionNS.
	t.Run("findings", func(t *testing.T) {
		box{
			Machine:  Machine{Arch: ARM64, CPUs: CPUs{Cores: 3}, InstructionNS: 16},
			tests:    []insideTest{{pkg: pkg, args: []string{"-test.run=Findings"}}},
			deadline: 20 * time.Minute, // long enough on a busy host
		}.programs(t, "quell-agent").run(t)
	})
	// In the host's time, which QEMU's slow disk uses, and on one CPU: with two emulated
	// CPUs that alternate, one would delay the completion of requests.
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
	// In the host's time, where emulated CPUs alternate in long slices.
	t.Run("demo", func(t *testing.T) {
		box{
			Machine: Machine{Arch: AMD64, CPUs: CPUs{Cores: 2}, MemoryMB: 768},
			tests:   []insideTest{{pkg: pkg, args: []string{"-test.run=Demo"}}},
		}.programs(t, "quell-agent", "quell").run(t)
	})
}
