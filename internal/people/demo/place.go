package demo

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
)

// look is how long one measurement of cache sharing takes.
const look = 30 * time.Millisecond

// choosePair picks two CPUs that this process may use: the last ones, because the first
// often serve interrupts.
func (d *demo) choosePair() error {
	allowed, err := host.Affinity(0)
	if err != nil {
		return fmt.Errorf("get affinity: %w", err)
	}
	cpus := allowed.Numbers()
	if len(cpus) < 2 {
		return &workload.MissingError{What: fmt.Sprintf("the demo needs 2 CPUs, it may use %d", len(cpus)),
			Remedy: "extend its affinity or cpuset (taskset -p, docker --cpuset-cpus), or give the machine another CPU"}
	}
	d.victimCPU, d.otherCPU = cpus[len(cpus)-1], cpus[len(cpus)-2]
	if d.Channel != CPU {
		// Prefer one that shares a cache with the victim's now.
		for _, c := range cpus[:len(cpus)-1] {
			if rt, err := workload.PingPong(d.victimCPU, c, look); err == nil && workload.SharesCache(rt) {
				d.otherCPU = c
				break
			}
		}
	}
	return nil
}

// chooseChannel measures cache sharing if the choice depends on it.
func (d *demo) chooseChannel() (Channel, error) {
	if d.Channel == CPU {
		return CPU, nil
	}
	rt, err := workload.PingPong(d.victimCPU, d.otherCPU, look)
	if err != nil {
		return "", err
	}
	shared := workload.SharesCache(rt)
	d.say("measured: CPUs %d and %d %s a last-level cache now (%d ns a round trip)", d.victimCPU, d.otherCPU, verb(shared), rt.Min.Nanoseconds())
	if shared {
		if d.setBytes, err = d.workingSet(); err != nil {
			return "", err
		}
	}
	switch {
	case d.setBytes > 0:
		return Cache, nil
	case d.Channel == Auto:
		d.say("the channel is therefore cpu")
		return CPU, nil
	case shared:
		return "", &workload.MissingError{What: fmt.Sprintf("other tasks fill the cache that CPUs %d and %d share: even %d KiB of data do not stay in it", d.victimCPU, d.otherCPU, smallestSet>>10),
			Remedy: "use --channel cpu or auto, or try again when the machine, or its host, is less busy"}
	}
	return "", &workload.MissingError{What: fmt.Sprintf("CPUs %d and %d share no last-level cache now (%d ns a round trip; below %d ns they would)",
		d.victimCPU, d.otherCPU, rt.Min.Nanoseconds(), workload.MaxSharedTrip.Nanoseconds()), Remedy: "use --channel cpu or auto, or try again: a hypervisor may move them together"}
}

// The victim's data must exceed a core's own caches and fit into the part of the
// last-level cache that other tasks leave free.
const (
	largestSet  = 8 << 20
	smallestSet = 4 << 20
	chaseSteps  = 20_000 // loads in a transaction
)

// workingSet measures the size of data that stays in the cache now, from the largest
// set down; 0 if no useful size does.
func (d *demo) workingSet() (int64, error) {
	for set := int64(largestSet); set >= smallestSet; set -= 512 << 10 {
		step, err := workload.LoadLatency(d.victimCPU, set, look)
		if err != nil {
			return 0, err
		}
		if step <= workload.MaxCachedLoad {
			d.say("measured: %d KiB of data stay in it (%d ns a load)", set>>10, step.Nanoseconds())
			return set, nil
		}
	}
	d.say("measured: other tasks fill that cache, even %d KiB of data do not stay in it", smallestSet>>10)
	return 0, nil
}

func verb(shared bool) string {
	if shared {
		return "share"
	}
	return "do not share"
}

// watchSharing measures the sharing twice a second and calls flipped when two
// measurements in a row show that the CPUs no longer share a cache.
func (d *demo) watchSharing(done <-chan struct{}, flipped func()) {
	tick := time.NewTicker(time.Second / 2)
	defer tick.Stop()
	apart := 0
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		rt, err := workload.PingPong(d.victimCPU, d.otherCPU, 5*time.Millisecond)
		switch {
		case err != nil: // too busy to tell
		case workload.SharesCache(rt):
			apart = 0
		default:
			if apart++; apart == 2 {
				flipped()
				return
			}
		}
	}
}

// castMember is one task of the scene and its CPU. Names belong to the scene and not to the
// kind of workload, so that the agent cannot infer anything from them.
type castMember struct {
	name string
	spec workload.Spec
	cpu  int
}

const (
	victimName     = "web"
	antagonistName = "reports"
	agentName      = "quell-agent"
)

// phase is the offset of the cycles within an interval.
func (d *demo) phase() time.Duration {
	return time.Duration(rand.New(rand.NewPCG(d.Seed, 0)).Float64() * float64(d.beat))
}

// cast returns the victim, the innocents and the antagonist, last.
func (d *demo) cast(c Channel, epoch sample.Millis) []castMember {
	shape := func(k workload.Kind, n uint64) workload.Spec {
		s := workload.Default(k)
		s.Epoch, s.Seed = epoch, d.Seed*16+n
		return s
	}
	steady, calls, burst := shape(workload.Spin, 1), shape(workload.Syscall, 2), shape(workload.Burst, 3)
	steady.Duty, calls.Duty = 0.2, 0.2
	// Loud exactly when the antagonist is not.
	opposite := shape(workload.CounterPhase, 4)
	opposite.Period, opposite.Duty, opposite.Vary = d.beat.cycle(), 0.5, 0
	victim, noisy, at := workload.Default(workload.Serve), shape(workload.Hog, 5), d.victimCPU
	// On the victim's CPU it gets half, so this takes half a cycle.
	noisy.Work, noisy.Vary = d.beat.cycle()/4, 0.2
	if c == Cache {
		victim, noisy, at = workload.Default(workload.Chase), shape(workload.Stream, 5), d.otherCPU
		victim.Set, victim.Steps = d.setBytes, chaseSteps
		// The innocents leave it most of their CPU; otherwise it could not fill a cache.
		steady.Duty, calls.Duty, burst.Duty, burst.Period = 0.1, 0.1, 0.2, d.beat.cycle()/3
		noisy.Work, noisy.Vary = d.beat.cycle()/3, 0.2
	}
	noisy.Pause, noisy.Period = 0, d.beat.cycle()
	// The seed determines where in a sampling interval it begins.
	noisy.Phase, opposite.Phase = d.phase(), d.phase()
	return []castMember{
		{victimName, victim, d.victimCPU},
		{"encode", steady, d.otherCPU},
		{"thumbnails", burst, d.otherCPU},
		{"logship", calls, d.otherCPU},
		{"backfill", opposite, d.otherCPU},
		{antagonistName, noisy, at},
	}
}
