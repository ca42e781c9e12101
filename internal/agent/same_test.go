package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/replay"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// story plays two noisy phases, stolen time and a quiet end to an agent with one
// source, of signal sig, and returns what it recorded and found.
func story(t *testing.T, sig sample.Signal, rule string) (samples []sample.Sample, found []incident.Record, o replay.Options) {
	r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=advise", "signals="+string(sig.Name), "detect.rule="+rule)
	loud := r.add("/batch/loud-1", 0.1)
	r.add("/batch/steady-1", 0.3)
	n := 0
	noise := func() float64 { n++; return 1 + 0.02*float64(n*7%5) }
	// Costs are rounded as in a sample, so that both sides compute with the same values.
	kept := func(cost float64) float64 { return float64(float32(cost)) }
	cost := func() float64 { return kept(least(sig) * (1 + 4*max(0, loud.rate()-0.1)) * noise()) }
	r.add("/web/1", 0.5).cost = cost
	r.add("/web/2", 0.4).cost = func() float64 { return kept(least(sig) * noise()) }
	r.source = r.machine.source(sig.Name)
	r.source.change = func(path string, c *counter.Reading) {
		// Operations are proportional to CPU usage, so that they are the pressure of io
		// and net.
		ops := 4000.0
		if path == loud.path {
			ops = 200_000 * loud.rate()
		}
		switch sig.Name {
		case sample.RunQ:
			c.Extras.Set(sample.Wakeups, ops)
			c.Extras.Set(sample.WaitSelf, 0.01*noise())
			c.Extras.Set(sample.WaitThrottled, 0)
		case sample.IO:
			c.Extras.Set(sample.IOOps, ops)
			c.Extras.Set(sample.IOBytes, 4096*ops)
		case sample.Net:
			c.Extras.Set(sample.NetPackets, 2*ops)
			c.Extras.Set(sample.NetQueued, 10*ops) // the queue drops most of them
			c.Extras.Set(sample.NetBytes, 500*ops)
		}
	}
	if sig.Name.OfMachine() {
		r.asMachine = func(s *source) counter.MachineSource { return overallSource{s, "(machine)", cost} }
	}
	r.start()
	r.pass(15*time.Minute - 30*time.Second)
	for range 2 {
		loud.set(1.5)
		r.pass(6 * time.Minute)
		loud.set(0.1)
		r.pass(9 * time.Minute)
	}
	// The hypervisor takes a third of the CPU time: it causes the cost that comes with it.
	loud.set(0.16)
	for range 6 * 6 {
		r.machine.stolen += 4 * time.Second
		r.pass(10 * time.Second)
	}
	loud.set(0.1)
	r.pass(10 * time.Minute)
	params, err := r.config.DetectParams()
	if err != nil {
		t.Fatal(err)
	}
	policy, err := r.config.Policy()
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	return r.samples, r.incidents(), replay.Options{Detect: params, Policy: policy, Spec: r.config.Spec.Params, Sampling: r.config.Sampling.Duration}
}

// least is a cost in the valid range of the signal.
func least(sig sample.Signal) float64 { return max(2*sig.Min, min(sig.Max/1e3, 0.01), sig.EffectAbs) }

// told is what an incident found, as text; numbers are rounded only slightly.
func told(all []incident.Record) string {
	var b strings.Builder
	for i := range all {
		inc := &all[i]
		fmt.Fprintf(&b, "%s %s of %s: %s %s, %d of %d bad, cost %.12g over %.12g, accused %v\n", inc.Opened.Time().Format("15:04:05"), inc.Signal, inc.Victim.Name,
			inc.Kind, inc.Change, inc.Bad, inc.Pairs, inc.Cost, inc.Threshold, inc.Accused != 0)
		var rest []string
		for k, s := range inc.Suspects {
			line := fmt.Sprintf("  %s %.4f used %.4g%s\n", s.Name, s.Correlation, s.Usage, s.Excluded)
			if k < inc.Antagonists && k == 0 {
				b.WriteString(line)
			} else {
				rest = append(rest, line)
			}
		}
		slices.Sort(rest) // equal ones may swap because of the last bit of a cost
		b.WriteString(strings.Join(rest, ""))
	}
	return b.String()
}

// A replay of what an agent recorded finds what the agent found, for every signal, with
// the paper's rule and with the default, which has every switch on.
func TestAReplayFindsWhatTheAgentFound(t *testing.T) {
	for _, sig := range sample.Signals() {
		for _, rule := range []string{"cpi2", "evidence"} {
			t.Run(string(sig.Name)+"/"+rule, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					samples, found, o := story(t, sig, rule)
					p := replay.New(o)
					for i := range samples {
						p.Add(&samples[i])
					}
					var again []incident.Record
					for _, inc := range p.Finish().Incidents {
						again = append(again, *inc)
					}
					want, got := told(found), told(again)
					if got != want {
						t.Errorf("the agent found\n%s\nthe replay\n%s", want, got)
					}
					if rule == "evidence" && sig.Name == sample.CPI && !strings.Contains(want, detect.Steal.String()) {
						t.Errorf("stolen time explains nothing: the test shows nothing of it\n%s", want)
					}
					if len(found) == 0 || rule != "cpi2" && !strings.Contains(want, "true") && sig.Domain != sample.OtherVM {
						t.Errorf("the story accuses no task: the test shows nothing\n%s", want)
					}
				})
			})
		}
	}
}
