package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// TestRandomScripts executes script commands in random order: what check verifies in
// scripts must hold here as well.
func TestRandomScripts(t *testing.T) {
	total := map[string]int{}
	for seed := range uint64(16) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			for verb, n := range wander(t, seed) {
				total[verb] += n
			}
		})
	}
	// The walks must reach caps of both kinds, several rounds, and exits.
	t.Log(total)
	for _, what := range []string{"caps", "automatic", "rounds", "closed", "takeover", "gone", "failed", "io"} {
		if total[what] < 8 {
			t.Errorf("%s: %d", what, total[what])
		}
	}
	for _, what := range []string{"adjusted", "renewed"} {
		if total[what] == 0 {
			t.Errorf("no cap was %s", what)
		}
	}
}

// wander takes a hundred random steps and counts what happened.
func wander(t *testing.T, seed uint64) map[string]int {
	rng := rand.New(rand.NewPCG(seed, 11))
	pick := func(words ...string) string { return words[rng.IntN(len(words))] }
	w := newWorld(t)
	signal := []string{"signal=cpi"}
	if rng.IntN(2) == 0 {
		signal = []string{"signal=io", "least-cpu=0", "io-ops=1"}
	}
	w.machine(append(signal, "rule="+pick("cpi2", "quell"), "mode="+pick("advise", "on", "on"), "every="+pick("10s", "20s", "60s"),
		"calm="+pick("1m", "5m"), "for="+pick("1m", "5m"), "longest="+[]string{"0s", "15m", "15m", "15m"}[seed/2%4], "cap="+[]string{"fixed", "feedback"}[seed%2], "max-caps="+pick("1", "2", "8")))
	add := func() {
		args := []string{fmt.Sprintf("/t%d", len(w.names)), pick("latency-sensitive", "batch", "best-effort")}
		for _, extra := range []string{"1±0.5", "protected", "never-cap"} {
			if rng.IntN(3) == 0 || args[1] == "latency-sensitive" && extra == "1±0.5" {
				args = append(args, extra)
			}
		}
		w.addTask(args)
	}
	for range 6 {
		add()
	}
	seen, did := map[string]bool{}, map[string]int{}
	for range 100 {
		name := w.names[rng.IntN(len(w.names))]
		verb := pick("interval", "interval", "interval", "interval", "interval", "cap", "uncap", "mode", "gone", "enforcer", "deliver", "takeover", "wait", "stop")
		switch verb {
		case "interval":
			bad := rng.IntN(2) == 0
			for range 1 + rng.IntN(5) {
				for _, n := range w.names {
					w.now.cells[n] = randomCell(rng, w.tasks[n], bad)
				}
				w.interval()
			}
		case "cap":
			if !w.tasks[name].gone {
				w.operator(verb, []string{name, "rate=" + pick("0", "0.1", "1"), "for=" + pick("1s", "1m", "10m")})
			}
		case "uncap":
			w.operator(verb, []string{name, "why=so"})
		case "mode":
			w.setMode(pick("off", "advise", "on", "on", "on"))
		case "gone":
			if !w.tasks[name].gone {
				w.gone(name)
				add()
			}
		case "enforcer":
			w.enforcer, w.cause = pick("works", "works", "fails", "holds"), "no such file"
		case "deliver":
			w.deliver()
		case "takeover":
			if i := slices.IndexFunc(w.names, func(n string) bool { return w.enforced(w.tasks[n].Key) }); i >= 0 {
				w.takeover(w.names[i])
				did[verb]++
			}
		case "wait":
			w.advance(w.now.at.Add(time.Duration(rng.IntN(400)) * time.Second))
		case "stop":
			if rng.IntN(4) == 0 {
				w.stop()
			}
		}
		for _, inc := range w.pair[0].Open() {
			if len(inc.Rounds) > 1 && !seen[inc.ID] {
				seen[inc.ID] = true
				did["rounds"]++
			}
			for _, r := range inc.Rounds {
				if r.Outcome == "cap-failed" && !seen[r.ID] {
					seen[r.ID] = true
					did["failed"]++
				}
			}
		}
	}
	for _, e := range w.books {
		did["caps"]++
		if e.By == "quell" {
			did["automatic"]++
			if !e.IO.IsZero() {
				did["io"]++
			}
		}
	}
	did["adjusted"], did["renewed"] = w.adjusted, w.renewed
	did["closed"] = len(w.order) - len(w.pair[0].Open())
	for _, s := range w.tasks {
		if s.gone {
			did["gone"]++
		}
	}
	w.end()
	return did
}

// enforced reports whether a cap on the task is in force.
func (w *world) enforced(k sample.TaskKey) bool {
	for _, e := range w.books {
		if e.live && e.applied != 0 && e.Task.Key == k {
			return true
		}
	}
	return false
}

// randomCell usually raises the cost of a task with a spec while the interval is bad, and
// the usage of a task that is not latency-sensitive.
func randomCell(rng *rand.Rand, s *scripted, bad bool) cell {
	bad = bad != (rng.IntN(8) == 0)
	c := cell{cost: nan, usage: 0.2 * rng.Float64(), absent: rng.IntN(30) == 0}
	if s.Class == sample.LatencySensitive {
		c.usage = 1
	}
	if s.Class != sample.LatencySensitive && bad {
		c.usage += 2 * rng.Float64()
	}
	if s.spec.Mean > 0 {
		c.cost = 1
		if bad {
			c.cost = 3 + 3*rng.Float64()
		}
	}
	if rng.IntN(25) == 0 {
		c.flags = []sample.Flags{sample.Throttled, sample.Stolen, sample.Restarted, sample.Split}[rng.IntN(4)]
	}
	return c
}
