//go:build guests && groups

package guest

import (
	"cmp"
	"os"
	"testing"
	"time"
)

// TestGroups: three tasks that hurt a fourth only together, in virtual time, which a busy host
// cannot disturb (see TestV2, findings).
func TestGroups(t *testing.T) {
	box{
		Machine:  Machine{Arch: ARM64, CPUs: CPUs{Cores: 3}, InstructionNS: 16},
		Init:     Init{Env: []string{rounds + "=" + cmp.Or(os.Getenv(rounds), "1")}},
		tests:    []insideTest{{pkg: "internal/lab/guest/inside/v2", args: []string{"-test.run=ThreeTasksHurtOnlyTogether", "-test.timeout=10h"}}},
		deadline: 2 * time.Hour,
	}.programs(t, "quell-agent").run(t)
}
