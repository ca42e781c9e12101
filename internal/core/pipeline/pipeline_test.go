package pipeline_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func byRule(t *testing.T, rule detect.Method) pipeline.Config {
	t.Helper()
	params, err := detect.Paper(rule)
	if err != nil {
		t.Fatal(err)
	}
	return pipeline.Config{Machine: "m", Detect: params, Policy: plan.Paper(), Charts: true}
}

// Served times become rates, and so do the task's wait and demand, each by the kind of
// the signal's queue. Other signals have none.
func TestWaitsAreRates(t *testing.T) {
	var x sample.Extras
	for e, v := range map[sample.Extra]float64{sample.WaitOther: 4, sample.WaitNiced: 1, sample.IOTime: 6, sample.IOOps: 200, sample.NetWait: 8, sample.NetPackets: 3000} {
		x.Set(e, v)
	}
	by := sample.TaskKey{Inode: 7}
	for _, c := range []struct {
		signal                        sample.SignalName
		wanted, waited, niced, demand float64
	}{
		{sample.RunQ, 0.5 + 0.4, 0.4, 0.1, 0.5},
		{sample.IO, 0.6, 0.4, 0, 20},
		{sample.Net, 0.8, 0.4, 0, 300},
		{sample.CPI, 0, 0, 0, 0},
	} {
		sig, _ := sample.LookupSignal(c.signal)
		iv := pipeline.New(byRule(t, detect.Quell)).Begin(sig, 1000, 10*time.Second)
		iv.Add(&pipeline.Subject{Task: sample.Task{Name: "/a"}}, pipeline.Measurement{CPU: 0.5, Cost: 0.8, Extras: &x, Served: []detect.Served{{By: by, Time: 3, Fair: 0.5}}})
		r := iv.Reading(0)
		if got := (detect.Reading{Wanted: r.Wanted, Waited: r.Waited, Niced: r.Niced, Demand: r.Demand}); got.Wanted != c.wanted || got.Waited != c.waited || got.Niced != c.niced || got.Demand != c.demand {
			t.Errorf("%s: %+v, want %+v", c.signal, got, c)
		}
		if c.wanted > 0 && (len(r.Served) != 1 || r.Served[0] != (detect.Served{By: by, Time: 0.3, Fair: 0.5})) || c.wanted == 0 && r.Served != nil {
			t.Errorf("%s: served %v", c.signal, r.Served)
		}
	}
}

// Between an anomaly and its analysis the victim can end. No task is capped for it: there would be no victim whose
// end lifts that cap.
func TestAVictimThatEndedIsNotHelped(t *testing.T) {
	p, web := pipeline.New(byRule(t, detect.Quell)), sample.Task{Key: sample.TaskKey{Inode: 1}, Name: "/web", Class: sample.LatencySensitive}
	sig, _ := sample.LookupSignal(sample.CPI)
	normal := spec.Spec{State: spec.Ready, Samples: 1000, Mean: 1, StdDev: 0.1}
	for n := range sample.Millis(3) {
		p.Observe(sig, (n+1)*60_000, []detect.Reading{{Task: &web, CPU: 1, Pressure: 1, Cost: 4, Spec: &normal}})
	}
	if !p.Waiting() {
		t.Fatal("no anomaly waits")
	}
	p.Gone(190_000, web.Key)
	if p.Waiting() || p.Analyse(200_000) {
		t.Error("it is analysed after its end")
	}
}

// The reading of a measurement, for every signal. The measurement has all extras that any
// source counts, over 10 s.
func TestReadings(t *testing.T) {
	var all sample.Extras
	for i, e := range sample.AllExtras() {
		all.Set(e, float64(10*(i+1)))
	}
	of := func(e sample.Extra) float64 { v, _ := all.Get(e); return v }
	all.Set(sample.StolenShare, 0.25)
	self := of(sample.WaitSelf) / 5 // for 0.5 CPU-s/s in 10 s
	for _, c := range []struct {
		signal                       sample.SignalName
		rate, pressure, self, stolen float64
		apart                        bool
	}{
		{sample.CPI, 0, 0.5, self, 0.25, true},
		{sample.CPT, 0, 0.5, self, 0.25, true},
		{sample.CPS, 0, 0.5, self, 0.25, true},
		{sample.RunQ, of(sample.Wakeups) / 10, 0.5, self, 0.25, true},
		{sample.IO, (of(sample.IOOps) + of(sample.IOBytes)/sample.RequestBytes) / 10, (of(sample.IOOps) + of(sample.IOBytes)/sample.RequestBytes) / 10, self, 0.25, true},
		{sample.Net, (of(sample.NetPackets) + of(sample.NetBytes)/sample.PacketBytes) / 10, (of(sample.NetQueued) + of(sample.NetBytes)/sample.PacketBytes) / 10, self, 0.25, true},
		{sample.Probe, 0, 0, self, 0.25, true},
		{sample.Steal, 0, 0, self, 1, true},
	} {
		sig, _ := sample.LookupSignal(c.signal)
		iv := pipeline.New(byRule(t, detect.Quell)).Begin(sig, 1000, 10*time.Second)
		task := sample.Task{Name: "/a", Class: sample.Batch}
		iv.Add(&pipeline.Subject{Task: task}, pipeline.Measurement{CPU: 0.5, Cost: 1, Flags: sample.Stolen, Extras: &all})
		iv.Add(&pipeline.Subject{Task: task}, pipeline.Measurement{CPU: 0.5, Cost: nan})
		iv.Add(&pipeline.Subject{Task: task}, pipeline.Measurement{CPU: 0.5, Cost: nan, Flags: sample.Stolen})
		r := iv.Reading(0)
		if r.Rate != c.rate || r.Pressure != c.pressure || r.Self != c.self || r.Stolen != c.stolen || r.OwnApart != c.apart || r.CPU != 0.5 {
			t.Errorf("%s: %+v, want %+v", c.signal, r, c)
		}
		// Only the task's usage is known: pressure is CPU usage or unknown.
		pressure := 0.5
		if !sig.Domain.OfCPUs() && c.signal != sample.Steal {
			pressure = 0
		}
		if r := iv.Reading(1); r.Rate != 0 || r.Pressure != pressure || r.Self != 0 || r.Spec != nil || r.OwnApart != (!sig.Domain.OfCPUs() || c.signal == sample.Probe) {
			t.Errorf("%s without extras: %+v", c.signal, r)
		}
		least := byRule(t, detect.Quell).Detect.StolenShare
		if c.signal == sample.Steal {
			least = 1
		}
		if r := iv.Reading(2); r.Stolen != least {
			t.Errorf("%s with the flag alone: %v was stolen, want %v", c.signal, r.Stolen, least)
		}
	}
	// If no queued packets were counted, the packets that left count.
	var left sample.Extras
	left.Set(sample.NetPackets, 500)
	if sig, _ := sample.LookupSignal(sample.Net); sig.PressureOf(0.5, &left, 10*time.Second) != 50 {
		t.Error("without queued packets those that left do not count")
	}
}

// hour feeds 399 random intervals of two batch and two latency-sensitive tasks; pass
// advances over the time between intervals. It returns all results.
func hour(t *testing.T, c pipeline.Config, pass func(p *pipeline.Pipeline, from, to sample.Millis)) string {
	t.Helper()
	h := spec.NewHistory(spec.OwnHistory())
	c.History = h
	p := pipeline.New(c)
	sig, _ := sample.LookupSignal(sample.CPI)
	rng := rand.New(rand.NewPCG(1, 2))
	var subjects []*pipeline.Subject
	for i, class := range []sample.Class{sample.LatencySensitive, sample.Batch, sample.Batch, sample.LatencySensitive} {
		name := fmt.Sprintf("/t%d", i)
		subjects = append(subjects, &pipeline.Subject{Key: spec.Key{Job: sample.JobName(name), Signal: sample.CPI},
			Task: sample.Task{Key: sample.TaskKey{Inode: uint64(i + 1)}, Name: sample.TaskName(name), Class: class}})
	}
	var b strings.Builder
	drain := func() {
		for {
			r, more := p.Ready()
			if !more {
				return
			}
			for _, f := range r.Findings {
				fmt.Fprintf(&b, "%d %s %s %v\n", f.Now, f.Incident, f.Kind, f.Suspects)
			}
			for i := range r.Incidents {
				text, err := json.Marshal((*incident.Record)(&r.Incidents[i]))
				fmt.Fprintln(&b, string(text), err)
			}
		}
	}
	every := sample.Millis(20_000)
	for at := every; at < 400*every; at += every {
		p.Tick(at)
		iv := p.Begin(sig, at, 10*time.Second)
		loud := at > 150*every && at/every%25 < 6
		for i, s := range subjects {
			m := pipeline.Measurement{CPU: 0.5 + 0.1*rng.Float64(), Cost: 1 + 0.1*rng.Float64()}
			switch {
			case i == 1 && loud:
				m.CPU = 2
			case i%3 == 0 && loud:
				m.Cost *= 2.5
			}
			iv.Add(s, m)
		}
		iv.End(at)
		for p.Analyse(at) {
		}
		pass(p, at, at+every)
		drain()
	}
	return b.String()
}

// An outlier teaches its spec only when it is known that no incident followed, and a sample
// of an anomaly never does.
func TestSamplesOfAnIncidentAreHeldBack(t *testing.T) {
	c := byRule(t, detect.CPI2)
	c.Detect.Switches.Withhold = true
	c.History = spec.NewHistory(spec.OwnHistory())
	p := pipeline.New(c)
	sig, _ := sample.LookupSignal(sample.CPI)
	s := &pipeline.Subject{Key: spec.Key{Job: "web", Signal: sample.CPI}, Task: sample.Task{Key: sample.TaskKey{Inode: 1}, Name: "/web/1"}}
	at := sample.Millis(0)
	give := func(costs ...float64) int64 {
		for _, cost := range costs {
			at += 60_000
			iv := p.Begin(sig, at, 10*time.Second)
			iv.Add(s, pipeline.Measurement{CPU: 1, Cost: cost})
			iv.End(at)
		}
		learnt, _ := c.History.Lookup(s.Key, at)
		return learnt.Samples
	}
	for i := range 100 {
		give(1 + 0.1*float64(i%2))
	}
	for _, c := range []struct {
		costs []float64
		want  int64
	}{
		{[]float64{50}, 100},                  // held back
		{[]float64{1, 1, 1, 1, 1}, 105},       // an incident may still follow
		{[]float64{1}, 107},                   // released
		{[]float64{50, 50, 50}, 107},          // an anomaly
		{[]float64{1, 1, 1, 1, 1, 1, 1}, 114}, // its samples are not released
	} {
		if got := give(c.costs...); got != c.want {
			t.Errorf("after %v: %d samples, want %d", c.costs, got, c.want)
		}
	}
}

// Outliers that the task's own quota explains make an incident too: they do not teach, also when it is
// over, and neither does the task's cost while it is throttled. Other samples of that time do.
func TestSamplesOfATasksOwnIncidentAreHeldBack(t *testing.T) {
	c := byRule(t, detect.Quell)
	c.History = spec.NewHistory(spec.OwnHistory())
	p := pipeline.New(c)
	sig, _ := sample.LookupSignal(sample.CPI)
	s := &pipeline.Subject{Key: spec.Key{Job: "web", Signal: sample.CPI}, Task: sample.Task{Key: sample.TaskKey{Inode: 1}, Name: "/web/1", Class: sample.LatencySensitive}}
	at := sample.Millis(0)
	give := func(n int, cost float64, flags sample.Flags) int64 {
		for i := range n {
			at += 60_000
			p.Tick(at)
			iv := p.Begin(sig, at, 10*time.Second)
			iv.Add(s, pipeline.Measurement{CPU: 1, Cost: cost + 0.1*float64(i%2), Flags: flags})
			iv.End(at)
			for p.Analyse(at) {
			}
		}
		learnt, _ := c.History.Lookup(s.Key, at)
		return learnt.Samples
	}
	for _, c := range []struct {
		n     int
		cost  float64
		flags sample.Flags
		open  int
		want  int64
	}{
		{100, 1, 0, 0, 100},
		{2, 50, sample.Throttled, 0, 100}, // an incident may still follow
		{1, 50, sample.Throttled, 1, 100},
		{3, 50, sample.Throttled, 1, 100},
		{1, 1, sample.Throttled, 1, 100},
		{1, 50, 0, 1, 100}, // of another cause: it is held back
		{3, 1, 0, 1, 103},
		{10, 1, 0, 0, 114}, // the incident is over, and that outlier was of none
	} {
		if got := give(c.n, c.cost, c.flags); got != c.want || len(p.Open()) != c.open {
			t.Errorf("after %d of %v: %d samples, want %d; %d incidents", c.n, c.cost, got, c.want, len(p.Open()))
		}
	}
}

// An incident of a task's own withholds only what it explains. A cost that excludes waits for the quota, as
// that of runq, says the same while the task is throttled, and waits for itself have nothing to do with the
// stolen time of a busy host: the spec follows the job although the incident does not end.
func TestWhatAnIncidentDoesNotExplainTeaches(t *testing.T) {
	for kind, c := range map[detect.Kind]struct {
		flags     sample.Flags
		throttled bool    // the source separates it
		self      float64 // s in the last 20 intervals
	}{
		detect.OwnQuota: {sample.Throttled, true, 0},
		detect.SelfWait: {sample.Stolen, false, 20},
	} {
		config := byRule(t, detect.Quell)
		config.History = spec.NewHistory(spec.OwnHistory())
		p := pipeline.New(config)
		sig, _ := sample.LookupSignal(sample.RunQ)
		s := &pipeline.Subject{Key: spec.Key{Job: "web", Signal: sample.RunQ}, Task: sample.Task{Key: sample.TaskKey{Inode: 1}, Name: "/web/1", Class: sample.LatencySensitive}}
		for i := range sample.Millis(120) {
			at := (i + 1) * 60_000
			var x sample.Extras
			x.Set(sample.WaitSelf, 0.5+0.1*float64(i%2))
			if i >= 100 {
				x.Set(sample.WaitSelf, c.self)
			}
			if c.throttled {
				x.Set(sample.WaitThrottled, 1)
			}
			p.Tick(at)
			iv := p.Begin(sig, at, 10*time.Second)
			iv.Add(s, pipeline.Measurement{CPU: 1, Cost: 0.1 + 0.01*float64(i%2), Flags: c.flags, Extras: &x})
			iv.End(at)
			for p.Analyse(at) {
			}
		}
		if learnt, _ := config.History.Lookup(s.Key, 120*60_000); learnt.Samples != 120 || len(p.Open()) != 1 || p.Open()[0].Kind != kind {
			t.Errorf("%s: %d samples of 120 have taught; open are %+v", kind, learnt.Samples, p.Open())
		}
	}
}

// TestALastingChangeOfAJobIsLearnt: a long history is not outweighed within the hour after which no good interval is
// left to compare with, so the spec goes on following the change. A release's new task has no good interval at all: after
// six hours in which no task was named the spec follows, too.
func TestALastingChangeOfAJobIsLearnt(t *testing.T) {
	for _, rule := range []detect.Method{detect.EvidenceMethod, detect.Quell} {
		for release, minutes := range map[bool]sample.Millis{false: 1300, true: 1600} {
			c := byRule(t, rule)
			c.History = spec.NewHistory(spec.OwnHistory())
			p, key := pipeline.New(c), spec.Key{Job: "web", Signal: sample.CPI}
			sig, _ := sample.LookupSignal(sample.CPI)
			task := func(inode uint64) *pipeline.Subject {
				return &pipeline.Subject{Key: key, Task: sample.Task{Key: sample.TaskKey{Inode: inode}, Name: "/web/1", Class: sample.LatencySensitive}}
			}
			s := task(1)
			for i := range minutes {
				at, cost := (i+1)*60_000, 1+0.1*float64(i%2)
				if i >= 1000 {
					cost += 2
				}
				if i == 1000 && release {
					s = task(2)
				}
				p.Tick(at)
				iv := p.Begin(sig, at, 10*time.Second)
				iv.Add(s, pipeline.Measurement{CPU: 1, Cost: cost})
				iv.End(at)
				for p.Analyse(at) {
				}
			}
			if learnt, _ := c.History.Lookup(key, minutes*60_000); learnt.Samples < 1200 {
				t.Errorf("%s, release %v: %d samples have taught, want 200 of the new cost", rule, release, learnt.Samples)
			}
		}
	}
}

// TestThePaperLearnsFromEverySample: rule cpi2 withholds none, of an incident neither.
func TestThePaperLearnsFromEverySample(t *testing.T) {
	for rule, want := range map[detect.Method]int64{detect.CPI2: 120, detect.Quell: 100} {
		c := byRule(t, rule)
		c.History = spec.NewHistory(spec.OwnHistory())
		p := pipeline.New(c)
		sig, _ := sample.LookupSignal(sample.CPI)
		s := &pipeline.Subject{Key: spec.Key{Job: "web", Signal: sample.CPI}, Task: sample.Task{Key: sample.TaskKey{Inode: 1}, Name: "/web/1"}}
		for i := range sample.Millis(120) {
			cost := 1 + 0.1*float64(i%2)
			if i >= 100 {
				cost = 50
			}
			iv := p.Begin(sig, (i+1)*60_000, 10*time.Second)
			iv.Add(s, pipeline.Measurement{CPU: 1, Cost: cost})
			iv.End((i + 1) * 60_000)
		}
		if learnt, _ := c.History.Lookup(s.Key, 120*60_000); learnt.Samples != want {
			t.Errorf("%s: %d samples, want %d", rule, learnt.Samples, want)
		}
	}
}

// Pass leaves out only steps at which nothing happens.
func TestPassIsEveryStep(t *testing.T) {
	for _, rule := range []detect.Method{detect.CPI2, detect.EvidenceMethod} {
		c := byRule(t, rule)
		want := hour(t, c, func(p *pipeline.Pipeline, from, to sample.Millis) {
			for now := from + 1000; now < to; now += 1000 {
				p.Tick(now)
				for p.Analyse(now) {
				}
			}
		})
		got := hour(t, c, (*pipeline.Pipeline).Advance)
		if got != want {
			t.Errorf("%s: %s", rule, difference(want, got))
		}
		if n := strings.Count(want, `"closed"`); n < 4 {
			t.Errorf("%s: %d incidents closed: the hour shows nothing", rule, n)
		}
	}
}

// Outputs do not change after they were returned.
func TestOutputsAreValues(t *testing.T) {
	c := byRule(t, detect.CPI2)
	var given []pipeline.Ready
	var texts []string
	render := func(r *pipeline.Ready) string {
		var b strings.Builder
		for _, f := range r.Findings {
			fmt.Fprintf(&b, "%+v\n", f)
		}
		for i := range r.Incidents {
			text, err := json.Marshal((*incident.Record)(&r.Incidents[i]))
			fmt.Fprintln(&b, string(text), err)
		}
		return b.String()
	}
	hour(t, c, func(p *pipeline.Pipeline, from, to sample.Millis) {
		p.Advance(from, to)
		for {
			r, more := p.Ready()
			if !more {
				return
			}
			given, texts = append(given, r), append(texts, render(&r))
		}
	})
	if len(given) < 50 {
		t.Fatalf("%d outputs", len(given))
	}
	for i := range given {
		if now := render(&given[i]); now != texts[i] {
			t.Fatalf("output %d has changed: %s", i, difference(texts[i], now))
		}
	}
}

// Where levels state the confidence of a finding, only a proven suspect is capped without
// a trial. A correlation rule caps the task that it names, as the paper does.
func TestFromWhichLevelOnSuspectsAreCapped(t *testing.T) {
	for rule, want := range map[detect.Method]detect.Level{detect.CPI2: detect.Likely, detect.Quell: detect.Likely, detect.EvidenceMethod: detect.Proven} {
		if got := pipeline.New(byRule(t, rule)).Policy().MinLevel; got != want {
			t.Errorf("%s caps from %s on, want %s", rule, got, want)
		}
	}
}
