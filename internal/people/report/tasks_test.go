package report

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// The table says when a spec will be ready, and marks a proposed class with its reason.
func TestTasksSayWhenTheyAreReady(t *testing.T) {
	view := func(ready float64, state spec.State) api.TaskView {
		return api.TaskView{Task: sample.Task{Name: "shop/web-0/app", Class: sample.LatencySensitive}, Proposed: true, ClassWhy: "QoS class Guaranteed",
			Costs: []api.SignalView{{Signal: sample.CPI, Spec: spec.Spec{State: state}, ReadyIn: ready}}}
	}
	for _, c := range []struct {
		ready float64
		state spec.State
		want  string
	}{
		{94 * 60, spec.Learning, "ready in 94 min"}, {61, spec.Learning, "ready in 2 min"}, {59.2, spec.Learning, "ready in 60 s"},
		{0, spec.Learning, "learning"}, {0, spec.Ready, "ready"},
	} {
		var b strings.Builder
		if err := Tasks(&b, []api.TaskView{view(c.ready, c.state)}, Style{Width: 160}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{c.want, "latency-sensitive?", "proposed class: QoS class Guaranteed", "shop/web-0/app"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("missing %q in\n%s", want, b.String())
			}
		}
	}
	var b strings.Builder
	if err := Tasks(&b, nil, Style{}); err != nil || !strings.Contains(b.String(), "quell init") {
		t.Errorf("without tasks: %q, %v", b.String(), err)
	}
}
