//go:build inguest

package cpi

import (
	"testing"

	"github.com/quell-dev/quell/internal/sample"
)

// loop is long beside what a worker does before and after it.
const loop = 400_000_000

func TestInstructionsAndCPI(t *testing.T) {
	ns := setting(t, "INSTRUCTION_NS")
	w := work(t)
	p := follow(t, w)
	start(t, p)
	took := w.spin(loop)
	r := stop(t, p)[0]
	counted := extra(t, r, sample.Instructions)
	t.Logf("figure: instructions %.0f / %d = %.5f, by clock %.0f; CPI %.4f / %v", counted, loop, counted/loop, float64(took)/ns, r.Cost, ns)
}
