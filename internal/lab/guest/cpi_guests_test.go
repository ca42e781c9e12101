//go:build guests

package guest

import (
	"fmt"
	"testing"
)

// emulated is a machine with QEMU's PMU.
func emulated(instructionNS int) box {
	return box{Machine: Machine{Arch: ARM64, InstructionNS: instructionNS}, Init: Init{Env: []string{fmt.Sprintf("INSTRUCTION_NS=%d", instructionNS)}}}
}

func (b box) test(pkg string, args ...string) box {
	b.tests = append(b.tests, insideTest{pkg: pkg, args: args})
	return b
}

const insideCPI = "internal/lab/guest/inside/cpi"

// TestCPI counts at every ratio of cycles to instructions.
func TestCPI(t *testing.T) {
	for _, ns := range []int{1, 4, 8} {
		t.Run(fmt.Sprintf("ratio %d", ns), func(t *testing.T) {
			emulated(ns).test(insideCPI, "-test.run=^TestInstructionsAndCPI$").run(t)
		})
	}
	t.Run("ratio 2", func(t *testing.T) {
		emulated(2).test(insideCPI, "-test.run=^(TestInstructionsAndCPI|TestNeighbourIsNotCounted|TestOneReadPerGroup|TestMultiplexing|TestMissingEvents)$").run(t)
	})
	t.Run("by eBPF", func(t *testing.T) {
		emulated(2).test(insideCPI, "-test.run=^TestByEBPF").run(t)
	})
	t.Run("bare cgroups", func(t *testing.T) {
		b := emulated(1).test(insideCPI, "-test.run=^TestBareCgroups$")
		b.BareCgroups = true
		b.run(t)
	})
	t.Run("no instructions", func(t *testing.T) {
		emulated(0).test(insideCPI, "-test.run=^TestNoInstructions$").run(t)
	})
}

// TestAgent runs the shipped arm64 build of the agent. A second of the guest is 31
// million instructions, so its intervals are cheap.
func TestAgent(t *testing.T) {
	b := emulated(32).test(insideCPI, "-test.run=^TestAgent$")
	b.files = append(b.files, File{Path: "/bin/quell-agent", From: build(t, ARM64, "program", "cmd/quell-agent")})
	b.run(t)
}
