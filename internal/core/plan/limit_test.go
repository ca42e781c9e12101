package plan_test

import (
	"testing"

	"github.com/quell-dev/quell/internal/core/plan"
)

func TestALimitReadsAsPeopleSayIt(t *testing.T) {
	for _, c := range []struct {
		action plan.Action
		want   string
	}{
		{plan.Action{Rate: 0.1}, "0.1 CPU-s/s"},
		{plan.Action{IO: plan.IORate{Ops: 20, Bytes: 1 << 20}}, "reads and writes of 20 requests/s and 1 MiB/s each"},
		{plan.Action{IO: plan.IORate{Ops: 20}}, "reads and writes of 20 requests/s each"},
		{plan.Action{IO: plan.IORate{Bytes: 3 << 19}}, "reads and writes of 1536 KiB/s each"},
		{plan.Action{IO: plan.IORate{Bytes: 1000}}, "reads and writes of 1000 B/s each"},
		{plan.Action{Net: 1 << 20}, "1 MiB/s sent"},
	} {
		if got := c.action.Limit(); got != c.want {
			t.Errorf("%+v reads %q, want %q", c.action, got, c.want)
		}
	}
}
