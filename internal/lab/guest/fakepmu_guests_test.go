//go:build guests

package guest

import (
	"os/exec"
	"testing"
	"time"
)

const insideModel = "internal/lab/guest/inside/fakepmu"

// modelled is a machine with two CPUs whose PMU is the module in ./fakepmu.
func modelled(t *testing.T) box {
	t.Helper()
	kernel, err := Find(ARM64)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.Command("fakepmu/build.sh", kernel.Headers, string(ARM64), dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build fakepmu.ko (remedy: apt-get install make gcc-aarch64-linux-gnu): %v\n%s", err, out)
	}
	return box{
		// Without QEMU's own PMU, because perf uses only one PMU of this kind.
		Machine: Machine{Arch: ARM64, CPU: "cortex-a72,pmu=off", CPUs: CPUs{Cores: 2}, InstructionNS: 16},
		Init:    Init{Modules: []string{"/fakepmu.ko"}},
		files:   []File{{Path: "/fakepmu.ko", From: dir + "/fakepmu.ko"}},
	}
}

// TestModelPMU counts on a PMU where CPI depends on the neighbours of a task.
func TestModelPMU(t *testing.T) {
	b := modelled(t)
	b.tests = []insideTest{{pkg: insideModel, args: []string{"-test.skip=^(TestLoop|TestCallbacks)$"}}}
	b.run(t)
}

// TestCallbacks counts what two ways to count cpi ask of the PMU at a context switch, on a
// machine that is fast enough for ten thousand switches a second.
func TestCallbacks(t *testing.T) {
	b := modelled(t)
	b.Machine.InstructionNS = 2
	b.tests = []insideTest{{pkg: insideModel, args: []string{"-test.run=^TestCallbacks$"}}}
	b.run(t)
}

// TestLoopByCPI lets the shipped agent find, verify and limit a noisy neighbour.
func TestLoopByCPI(t *testing.T) {
	b := modelled(t)
	b.tests = []insideTest{{pkg: insideModel, args: []string{"-test.run=^TestLoop$"}}}
	b.deadline = 9 * time.Minute
	b.files = append(b.files, File{Path: "/bin/quell-agent", From: build(t, ARM64, "program", "cmd/quell-agent")})
	b.run(t)
}
