package workload

import (
	"testing"
	"time"
)

// Loads in a set that fits the core's own cache are faster than in one that fits no
// cache.
func TestChaseStepTellsASmallSetFromAHugeOne(t *testing.T) {
	small, err := LoadLatency(0, 64<<10, 5*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	huge, err := LoadLatency(0, 32<<20, 5*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if small <= 0 || huge < 3*small {
		t.Errorf("a step takes %s in 64 KiB and %s in 32 MiB", small, huge)
	}
	if _, err := LoadLatency(1<<20, 1<<20, time.Millisecond); err == nil {
		t.Error("a CPU that does not exist was measured")
	}
}
