//go:build guests

package guest

import (
	"fmt"
	"testing"
)

// TestCPI counts on QEMU's PMU, at every ratio of cycles to instructions.
func TestCPI(t *testing.T) {
	for _, ns := range []int{1, 2, 4, 8} {
		t.Run(fmt.Sprintf("%d cycles per instruction", ns), func(t *testing.T) {
			box{
				Machine: Machine{Arch: ARM64, InstructionNS: ns},
				Init:    Init{Env: []string{fmt.Sprintf("INSTRUCTION_NS=%d", ns)}},
				tests:   []insideTest{{pkg: "internal/guest/inside/cpi"}},
			}.run(t)
		})
	}
}
