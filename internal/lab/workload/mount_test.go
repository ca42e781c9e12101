package workload

import (
	"reflect"
	"strings"
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

func FuzzParseStat(f *testing.F) {
	f.Add("1 (a b) c) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 0 0")
	f.Add(")")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		state, _, err := parseStat(text)
		if err == nil && !strings.Contains(text, string([]byte{state})) {
			t.Errorf("%q has state %q", text, state)
		}
	})
}
