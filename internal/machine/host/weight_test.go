package host

import (
	"errors"
	"math"
	"testing"

	"golang.org/x/tools/txtar"
)

func TestWeight(t *testing.T) {
	const v2 = `
-- proc/self/mountinfo --
30 1 0:1 / /cg rw - cgroup2 cgroup2 rw
-- cg/cgroup.controllers --
cpu io
-- cg/slice/cpu.weight --
100
-- cg/slice/heavy/cpu.weight --
10000
-- cg/slice/idle/cpu.weight --
0
-- cg/slice/odd/cpu.weight --
much
-- cg/slice/bare/cgroup.procs --
`
	const v1 = `
-- proc/self/mountinfo --
30 1 0:1 / /cpu rw - cgroup cgroup rw,cpu
-- cpu/pod/cpu.shares --
1024
-- cpu/pod/light/cpu.shares --
2
-- cpu/pod/idle/cpu.shares --
3
`
	for _, tt := range []struct {
		host, path string
		want       float64
		err        error
	}{
		{v2, "/slice", 100, nil},
		{v2, "slice/heavy/", 10000, nil},
		{v2, "/slice/idle", 300.0 / 1024, nil},
		{v2, "/slice/bare", 0, ErrNoLimit},
		{v2, "/slice/gone", 0, ErrGone},
		{v2, "/", 0, ErrNoLimit},
		{v1, "/pod", 100, nil},
		{v1, "/pod/light", 200.0 / 1024, nil},
		{v1, "/pod/idle", 300.0 / 1024, nil},
		{"-- proc/self/mountinfo --\n", "/pod", 0, ErrNoHierarchy},
	} {
		got, err := unpack(t, txtar.Parse([]byte(tt.host))).Weight(tt.path)
		if math.Abs(got-tt.want) > 1e-9 || !errors.Is(err, tt.err) {
			t.Errorf("%s: %v, %v; want %v, %v", tt.path, got, err, tt.want, tt.err)
		}
	}
	if w, err := unpack(t, txtar.Parse([]byte(v2))).Weight("/slice/odd"); err == nil {
		t.Errorf("what is no number is read as %v", w)
	}
}
