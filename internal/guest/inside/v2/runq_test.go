//go:build inguest

package v2

import (
	"math"
	"path/filepath"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/counter"
	"github.com/quell-dev/quell/internal/counter/runq"
	"github.com/quell-dev/quell/internal/host"
	"github.com/quell-dev/quell/internal/quelltest"
	"github.com/quell-dev/quell/internal/sample"
)

// The run-queue wait by eBPF and by schedstat over the same windows: schedstat
// sees the sum of all waits, which eBPF tells apart.
func TestRunqVariantsAgree(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	h := machine(t)
	bpf, err := runq.Open(runq.Options{})
	if err != nil || bpf.Variant() != runq.VariantBPF {
		t.Fatalf("got %v, %v; want eBPF", bpf, err)
	}
	defer bpf.Close()
	stat, err := runq.Open(runq.Options{NoBPF: true})
	if err != nil {
		t.Fatal(err)
	}
	defer stat.Close()
	follow := func(path string) (*host.Cgroup, sample.TaskKey) {
		c, err := h.OpenCgroup(sample.Unified, path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		k := sample.TaskKey{Hierarchy: sample.Unified, Inode: c.Inode(), FirstSeen: 1}
		for _, s := range []counter.Source{bpf, stat} {
			if err := s.Add(counter.Target{Key: k, Dir: c.Dir(), PerfDir: c.Dir(), Members: c.Members, Below: c.Below}); err != nil {
				t.Fatal(err)
			}
		}
		return c, k
	}
	one, two := cgroup(t, "/quell-test-one"), cgroup(t, "/quell-test-two")
	pod := cgroup(t, "/quell-test-pod", inner, "cpu.max=50000 100000")
	held := cgroup(t, pod+"/app")
	burn(t, one, 1)
	burn(t, two, 1)
	burn(t, two, 1)
	burn(t, held, 0)
	groups := []string{one, two, held}
	cgroups, keys := make([]*host.Cgroup, 3), make([]sample.TaskKey, 3)
	for i, p := range groups {
		cgroups[i], keys[i] = follow(p)
	}
	usage := func() (all []time.Duration) {
		for _, c := range cgroups {
			u, err := c.Usage()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, u.CPU)
		}
		return all
	}
	start := func(s counter.Source) {
		t.Helper()
		if err := s.Start(); err != nil {
			t.Fatal(err)
		}
	}
	start(bpf)
	start(stat)
	before := usage()
	<-time.After(3 * time.Second)
	after := usage()
	cpu := func(k sample.TaskKey) (time.Duration, bool) {
		for i := range keys {
			if keys[i] == k {
				return after[i] - before[i], true
			}
		}
		return 0, false
	}
	stop := func(s counter.Source) map[sample.TaskKey]counter.Reading {
		t.Helper()
		all := map[sample.TaskKey]counter.Reading{}
		if err := s.Stop(cpu, func(k sample.TaskKey, r counter.Reading) { all[k] = r }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	s, b := stop(stat), stop(bpf)
	for i, k := range keys {
		r := b[k]
		throttled, _ := r.Extras.Get(sample.WaitThrottled)
		used, _ := cpu(k)
		whole := b[k].Cost + b[k].Self + throttled/used.Seconds()
		t.Logf("figure: %s: by eBPF %.3f + self %.3f + throttled %.3f s/CPU-s, by schedstat %.3f", filepath.Base(groups[i]),
			b[k].Cost, b[k].Self, throttled/used.Seconds(), s[k].Cost)
		if i < 2 && math.Abs(s[k].Cost/whole-1) > 0.1 {
			t.Errorf("%s: schedstat ÷ eBPF is %.3f", groups[i], s[k].Cost/whole)
		}
	}
	// The quota is above the task that it holds back: not the neighbours' doing.
	last := b[keys[2]]
	if last.Cost > 0.2 {
		t.Errorf("a task held back by the quota of a cgroup above it waits %.3f s/CPU-s for others", last.Cost)
	}
	if throttled, ok := last.Extras.Get(sample.WaitThrottled); !ok || throttled < 1 {
		t.Errorf("it was held back for %.3f s (%t), want about 1.5 of 3", throttled, ok)
	}
}
