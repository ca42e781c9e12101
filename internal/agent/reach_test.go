package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

func TestReach(t *testing.T) {
	topology := host.Topology{CPUs: []host.CPU{
		{ID: 0, LLC: host.Cache{ID: 0}}, {ID: 1, LLC: host.Cache{ID: 0}},
		// arm64's kernels give caches arbitrary 32-bit ids.
		{ID: 2, LLC: host.Cache{ID: 1 << 31}}, {ID: 3, Node: 1, LLC: host.Cache{ID: 2}},
	}}
	var rs reaches
	on := func(cpus ...int) reach { return rs.of(&topology, sample.SetOf(cpus...)) }
	for _, c := range []struct {
		domain sample.Domain
		a, b   []int
		meets  bool
	}{
		{sample.SharedCPU, []int{0}, []int{1}, false},
		{sample.SharedCPU, []int{0, 1}, []int{1, 2}, true},
		{sample.SharedCache, []int{0}, []int{1}, true},  // the same cache
		{sample.SharedCache, []int{0}, []int{2}, true},  // another, on the same memory node
		{sample.SharedCache, []int{2}, []int{3}, false}, // neither
		{sample.SharedCache, []int{0, 3}, []int{3}, true},
	} {
		a, b := on(c.a...), on(c.b...)
		if got := a.in(c.domain).Intersects(b.in(c.domain)); got != c.meets {
			t.Errorf("%s: %v and %v meet: %v", c.domain, c.a, c.b, got)
		}
		if len(a.near) > 1 {
			t.Errorf("%v reach a set of %d words", c.a, len(a.near))
		}
	}
	// Unknown means nil, which reaches everything.
	if got := on(); got.cpus != nil || got.near != nil {
		t.Errorf("unknown CPUs reach %v", got)
	}
	rs = reaches{}
	topology = host.Topology{CPUs: []host.CPU{{ID: 0, LLC: host.Cache{ID: -1}}}}
	if got := on(0); got.near != nil || !slices.Equal(got.cpus, sample.SetOf(0)) {
		t.Errorf("an unknown cache reaches %v", got)
	}
}

func TestReachIsSharedByTasksOnTheSameCPUs(t *testing.T) {
	topology := host.Topology{CPUs: []host.CPU{{ID: 0}, {ID: 1, LLC: host.Cache{ID: 1}}}}
	var rs reaches
	all := sample.SetOf(0, 1)
	rs.of(&topology, all)
	if n := testing.AllocsPerRun(10, func() { rs.of(&topology, all) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// plug writes sysfs files for CPUs: each has its own cache and memory node.
func plug(t *testing.T, root, online string, cpus ...int) {
	t.Helper()
	write := func(file, text string) {
		t.Helper()
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/self/mountinfo", "")
	write("sys/devices/system/cpu/online", online)
	for _, cpu := range cpus {
		cache := fmt.Sprintf("sys/devices/system/cpu/cpu%d/cache/index0/", cpu)
		write(cache+"type", "Unified")
		write(cache+"level", "3")
		write(cache+"id", fmt.Sprint(10*cpu))
		write(cache+"shared_cpu_list", fmt.Sprint(cpu))
		write(fmt.Sprintf("sys/devices/system/node/node%d/cpulist", cpu), fmt.Sprint(cpu))
	}
}

func openHost(t *testing.T, root string) *host.Host {
	t.Helper()
	h, err := host.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// A CPU that goes online is known from the next window on, in the reach of tasks and in
// the sources.
func TestCPUsThatComeAndGo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		root := t.TempDir()
		plug(t, root, "0", 0)
		r := newRig(t, newMachine(t), t.TempDir())
		r.sysfs = openHost(t, root)
		r.add("/batch/job-1", 1)
		r.start()
		defer r.stop()
		reached := func() (caches, cpus int) {
			t := r.agent.tasks.order[0]
			return t.reach.in(sample.SharedCache).Len(), t.reach.in(sample.SharedCPU).Len()
		}
		r.pass(30 * time.Second)
		if near, cpus := reached(); near != 2 || cpus != 2 { // the simulated task may run on 0 and 1
			t.Fatalf("reaches %d caches and nodes by %d CPUs", near, cpus)
		}
		for _, step := range []struct {
			online string
			near   int
		}{{"0-1", 4}, {"0-1", 4}, {"1", 2}} {
			plug(t, root, step.online, 0, 1)
			r.pass(time.Minute)
			if near, _ := reached(); near != step.near {
				t.Errorf("with CPUs %s online it reaches %d caches and nodes, want %d", step.online, near, step.near)
			}
			if got := r.agent.sampler.placement.topology.Online.String(); got != step.online {
				t.Errorf("CPUs %s are online, want %s", got, step.online)
			}
		}
		if got := strings.Join(r.online, " "); got != "0-1 1" {
			t.Errorf("the source was told of %q, want each change once", got)
		}
		// While the CPUs cannot be read, the known topology stays.
		if err := os.Remove(filepath.Join(root, "sys/devices/system/cpu/online")); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		if near, _ := reached(); near != 2 || !strings.Contains(strings.Join(r.status().Degraded, "\n"), "reading the topology: ") {
			t.Errorf("without a list of CPUs: reaches %d, degraded %q", near, r.status().Degraded)
		}
	})
}

// An incident has the number of CPUs that are online then, so that its utilisation is right.
func TestIncidentHasTheCPUsThatAreOnline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		root := t.TempDir()
		plug(t, root, "0", 0)
		r := newRig(t, newMachine(t), t.TempDir())
		r.sysfs = openHost(t, root)
		noisy := r.add("/batch/noisy-1", 0.05)
		r.suffering(noisy)
		r.start()
		defer r.stop()
		r.learn()
		plug(t, root, "0-1", 0, 1)
		noisy.set(1.5)
		r.pass(4 * time.Minute)
		if all := r.incidents(); len(all) != 1 || all[0].CPUs != 2 {
			t.Errorf("found %+v, want one on 2 CPUs", all)
		}
	})
}
