package observe

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
)

// caches are the pairs of the parts' CPUs whose distance is measured before and after the
// steady window. Its methods may be called on nil.
type caches struct {
	pairs [][2]int
	trips []map[string]float64 // of each look: ns, by the pair "0-1"
	trip  func(a, b int) (time.Duration, error)
}

// mostPairs bounds the length of a look: each pair takes some ms of two CPUs.
const mostPairs = 3

// lookFor is how long a pair is measured.
const lookFor = 5 * time.Millisecond

// openCaches returns nil on bare metal, where CPUs do not move, and where no two parts
// are on CPUs that share a last-level cache according to sysfs.
func openCaches(h *host.Host, top host.Topology, parts []*part) *caches {
	if p, err := h.Platform(); err != nil || !strings.HasSuffix(string(p), "-vm") {
		return nil
	}
	llc := map[int]int{}
	for _, c := range top.CPUs {
		llc[c.ID] = c.LLC.ID
	}
	c := &caches{trip: func(a, b int) (time.Duration, error) {
		t, err := workload.PingPong(a, b, lookFor)
		return t.Min, err
	}}
	for i, p := range parts {
		for _, q := range parts[i+1:] {
			for _, a := range p.cpus.Numbers() {
				for _, b := range q.cpus.Numbers() {
					pair := [2]int{min(a, b), max(a, b)}
					if a != b && llc[a] == llc[b] && llc[a] >= 0 && len(c.pairs) < mostPairs && !slices.Contains(c.pairs, pair) {
						c.pairs = append(c.pairs, pair)
					}
				}
			}
		}
	}
	if len(c.pairs) == 0 {
		return nil
	}
	return c
}

// measure measures every pair once.
func (c *caches) measure() {
	if c == nil {
		return
	}
	trips := map[string]float64{}
	for _, p := range c.pairs {
		if t, err := c.trip(p[0], p[1]); err == nil {
			trips[pairName(p)] = float64(t.Nanoseconds())
		}
	}
	c.trips = append(c.trips, trips)
}

func pairName(p [2]int) string { return fmt.Sprintf("%d-%d", p[0], p[1]) }

// values adds the results of the last look to v.
func (c *caches) values(v map[string]float64) {
	if c == nil || len(c.trips) == 0 {
		return
	}
	for name, ns := range c.trips[len(c.trips)-1] {
		v["cache."+name] = ns
	}
}

// Trips are the round trips of a cache line between CPUs ("0-1") at each look, ns: before
// the steady window and when the run is closed. There are none where CPUs do not move, or
// where no two CPUs of the run share a cache.
func (o *Observer) Trips() []map[string]float64 {
	if o.caches == nil {
		return nil
	}
	return o.caches.trips
}

// cacheLossRatio is the ratio of round trips from which on a cache line crosses to another cache:
// measured in one guest, 70 ns within a cache and 380 ns across.
const cacheLossRatio = 2.5

// sharedCacheRelations are the placements that promise a shared last-level cache.
var sharedCacheRelations = []string{"same-llc", "same-core", "smt-sibling"}

// judge compares the last look with the first.
func (c *caches) judge(place study.Placement) *result.Evidence {
	if c == nil || len(c.trips) < 2 || !slices.Contains(sharedCacheRelations, place.Relation) {
		return nil
	}
	first, last := c.trips[0], c.trips[len(c.trips)-1]
	for _, p := range c.pairs {
		a, b := first[pairName(p)], last[pairName(p)]
		if a == 0 || b == 0 || max(a, b) < cacheLossRatio*min(a, b) {
			continue
		}
		return &result.Evidence{Reason: result.CacheLost, Value: max(a, b) / min(a, b), Bound: cacheLossRatio, Unit: "times",
			Text: fmt.Sprintf("a cache line went from CPU %d to %d and back in %s before the measured window and in %s after it: the hypervisor moved them", p[0], p[1], time.Duration(a), time.Duration(b))}
	}
	return nil
}
