package sources

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

func TestTheCheaperWay(t *testing.T) {
	for _, c := range []struct {
		name                 string
		byEBPF, inCgroupMode time.Duration
		want                 bool
	}{
		{"writes are trapped", 8 * time.Microsecond, 79 * time.Microsecond, true},
		{"bare metal", time.Microsecond, 2 * time.Microsecond, true},
		{"no clear difference", 1900, 2000, false},
		{"reads cost more", 3000, 2000, false},
		{"not known", 0, 2000, false},
		{"the other is not known", 1000, 0, false},
	} {
		if got := clearlyLess(c.byEBPF, c.inCgroupMode); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A machine whose CPUs have no counters lacks these, and not a cgroup2 as well.
func TestCPIWithoutCounters(t *testing.T) {
	cpu := sample.SetOf(0)
	_, lacks := counter.CPIOfCPUs(cpu)
	s, err := openCPI(cpu, "")
	if s != nil {
		defer s.Close()
	}
	if lacks != nil && (err == nil || err.Error() != lacks.Error()) {
		t.Errorf("%v, want %v", err, lacks)
	}
}
