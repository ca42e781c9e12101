package audit

import (
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

type metered struct{ lab.Observer }

func (metered) Energy(w result.Window) (float64, string) {
	return 2 * (w.To - w.From).Seconds(), "meter"
}

// The audit of placement passes on the energy of the inner observer.
func TestEnergyComesThrough(t *testing.T) {
	energy := func(inner lab.Observer) (float64, string) {
		m, ok := WithAudit(inner, smt(), lab.Observed{Cell: &study.Cell{}}).(interface {
			Energy(result.Window) (float64, string)
		})
		if !ok {
			t.Fatal("no energy is asked after")
		}
		return m.Energy(result.Window{From: time.Second, To: 4 * time.Second})
	}
	if j, source := energy(metered{}); j != 6 || source != "meter" {
		t.Errorf("%g J of %q, want 6 of meter", j, source)
	}
	if j, source := energy(struct{ lab.Observer }{}); j != 0 || source != "" {
		t.Errorf("%g J of %q without a meter", j, source)
	}
}
