//go:build inguest

package cpi

import (
	"errors"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestNoInstructions: without a virtual clock QEMU's PMU counts cycles and no
// instructions. Then there is no CPI, and the error has the reason.
func TestNoInstructions(t *testing.T) {
	if err := quelltest.Probe(quelltest.PMU); err != nil {
		t.Fatalf("cycles should be counted: %v", err)
	}
	p, err := counter.OpenCPI(sample.SetOf(0), root)
	if err == nil {
		p.Close()
	}
	var e *counter.NotSupportedError
	if !errors.As(err, &e) || e.What != "event instructions" || !strings.Contains(e.Reason, "ENOENT") || e.Remedy == "" {
		t.Errorf("%v, want that instructions are not supported, with reason and remedy", err)
	}
	want := map[string]bool{"perf cgroup mode": true, "perf core-cycles": true, "perf instructions": false, "perf ref-cycles": false, "perf LLC-load-misses": false}
	for _, c := range counter.Capabilities(root, sample.SetOf(0)) {
		ok, asked := want[c.Name]
		if asked && (c.OK != ok || !ok && !strings.Contains(c.Reason, "ENOENT")) {
			t.Errorf("capability %+v, want %v", c, ok)
		}
		delete(want, c.Name)
	}
	if len(want) > 0 {
		t.Errorf("capabilities lack %v", want)
	}
}
