package workload

import (
	"reflect"
	"testing"

	"github.com/quell-dev/quell/internal/machine/host"
)

func TestATreeLivesInEveryHierarchyOnce(t *testing.T) {
	for _, c := range []struct {
		name   string
		layout host.Layout
		want   mounts
	}{
		{"cgroup2", host.Layout{Unified: "/c"}, mounts{unified: "/c"}},
		{"hybrid, cpu and cpuacct together", host.Layout{Unified: "/c/u", V1: map[string]string{"cpu": "/c/cpu", "cpuacct": "/c/cpu"}},
			mounts{unified: "/c/u", cpu: "/c/cpu"}},
		{"hybrid, apart", host.Layout{Unified: "/c/u", V1: map[string]string{"cpu": "/c/cpu", "cpuacct": "/c/acct", "memory": "/c/m"}},
			mounts{unified: "/c/u", cpu: "/c/cpu", cpuacct: "/c/acct"}},
		{"none", host.Layout{}, mounts{}},
	} {
		if got := mountsOf(c.layout); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
