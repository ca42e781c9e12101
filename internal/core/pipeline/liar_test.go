package pipeline_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// A malicious task: /liar lies in its progress file while its innocent neighbour /encode
// works, so that the neighbour seems to be the cause.

// framing is a machine on which this happens.
type framing struct {
	t        *testing.T
	p        *pipeline.Pipeline
	r        *rand.Rand
	minute   int
	subjects map[string]*pipeline.Subject
	// measured changes what is measured of /liar in a signal, nil for nothing; works: its neighbour does.
	measured func(sig sample.SignalName, works bool, m *pipeline.Measurement)
	// Of the run so far:
	accused, capped int
	last            string // why nothing was done
	reason          string
	notDone         map[sample.SignalName]string // of /liar's incidents
}

func newFraming(t *testing.T, rule detect.Method, seed uint64, trials bool) *framing {
	c := byRule(t, rule)
	c.Policy.Mode = plan.On
	if trials {
		c.Policy.Trial = 3 * time.Minute
	}
	return &framing{t: t, p: pipeline.New(c), r: rand.New(rand.NewPCG(seed, 17)), subjects: map[string]*pipeline.Subject{}, notDone: map[sample.SignalName]string{}}
}

func (f *framing) subject(name string, class sample.Class, sig sample.SignalName) *pipeline.Subject {
	key := name + string(sig)
	s := f.subjects[key]
	if s == nil {
		inode := uint64(1)
		for _, c := range name {
			inode = 31*inode + uint64(c)
		}
		k := spec.Key{Job: sample.JobName(name[1:]), Platform: "p", Signal: sig, Variant: "v"}
		s = &pipeline.Subject{Key: k, Spec: spec.Spec{Key: k, State: spec.Ready, Mean: 1, StdDev: 0.05, Samples: 1000, Tasks: 3},
			Task: sample.Task{Key: sample.TaskKey{Inode: inode, FirstSeen: 1}, Name: sample.TaskName(name), Job: sample.JobName(name[1:]), Class: class}}
		f.subjects[key] = s
	}
	return s
}

// play plays minutes. Every ten the neighbour works for five; then /liar reports that its
// work costs twice as much, and signals really has the costs of the other signals.
func (f *framing) play(minutes int, reported sample.SignalName, really map[sample.SignalName]float64) {
	f.t.Helper()
	for range minutes {
		f.minute++
		at := sample.Millis(f.minute) * 60_000
		works := f.minute > 30 && f.minute%10 < 5
		usage := map[string]float64{"/encode": 0.05, "/log": 0.5 + 0.1*f.r.Float64(), "/cron": 0.3 * f.r.Float64()}
		if works {
			usage["/encode"] = 3
		}
		for _, sig := range sample.Signals() {
			cost, counted := really[sig.Name]
			if sig.Name == reported {
				cost, counted = 2, true
			}
			if !counted {
				continue
			}
			if !works {
				cost = 1
			}
			iv := f.p.Begin(sig, at, 10*time.Second)
			var m pipeline.Measurement
			m.CPU, m.Cost = 1, cost*(1+0.02*f.r.NormFloat64())
			if sig.Name.OfMachine() {
				stand := f.subject("(cache 0)", sample.Batch, sig.Name)
				const load = 20e-9 // s
				stand.Spec.Mean, stand.Spec.StdDev = load, load/20
				m.Cost *= load
				iv.Add(stand, m)
				m.Cost = math.NaN()
			}
			if f.measured != nil {
				f.measured(sig.Name, works, &m)
			}
			iv.Add(f.subject("/liar", sample.LatencySensitive, sig.Name), m)
			for _, name := range []string{"/encode", "/log", "/cron"} {
				iv.Add(f.subject(name, sample.Batch, sig.Name), pipeline.Measurement{CPU: usage[name], Cost: math.NaN()})
			}
			iv.End(at)
		}
		for f.p.Analyse(at) {
		}
		f.p.Advance(at, at+60_000)
		f.ready(at)
	}
}

func (f *framing) ready(at sample.Millis) {
	for {
		r, more := f.p.Ready()
		if !more {
			return
		}
		for i := range r.Findings {
			a := &r.Findings[i]
			if a.Victim.Name == "/liar" && a.Kind == detect.Neighbour && a.Antagonists > 0 && a.Signal != sample.RunQ && a.Signal != sample.CPI {
				f.accused++
			}
		}
		for _, act := range r.Actions {
			switch act.Kind {
			case plan.Cap:
				if act.Victim == f.subject("/liar", sample.LatencySensitive, sample.CPT).Task.Key {
					f.capped++
				}
				f.p.Applied(at, act.ID, nil)
			case plan.Uncap:
				f.p.Lifted(at, act.ID, false)
			}
		}
		for i := range r.Incidents {
			if inc := &r.Incidents[i]; inc.Victim.Name == "/liar" && inc.Kind != detect.Indeterminate {
				f.last, f.reason, f.notDone[inc.Signal] = inc.NotDone, inc.Now().Reason, inc.NotDone
			}
		}
	}
}

// No task is capped, not even for a trial, because of what another reports about itself.
func TestAReportAloneCapsNoTask(t *testing.T) {
	for _, reported := range []sample.SignalName{sample.CPT, sample.CPS} {
		for _, rule := range []detect.Method{detect.EvidenceMethod, detect.Quell} {
			for seed := range uint64(3) {
				for name, really := range map[string]map[sample.SignalName]float64{
					"no witness":         {},
					"a silent witness":   {sample.RunQ: 1},
					"a silent canary":    {sample.Probe: 1},
					"a witness to it":    {sample.RunQ: 2},
					"a canary's witness": {sample.Probe: 2},
				} {
					f := newFraming(t, rule, seed, true)
					f.play(120, reported, really)
					witnessed := strings.Contains(name, "witness to") || strings.Contains(name, "canary's")
					if (f.capped > 0) != witnessed {
						t.Errorf("%s, %s, %s, seed %d: %d caps for what /liar reports; %s", reported, rule, name, seed, f.capped, f.last)
					}
					if !witnessed && !strings.Contains(f.last, "reports about itself, and no signal that the machine measures (cpi, runq, probe) agrees") {
						t.Errorf("%s, %s, %s, seed %d: not done: %q", reported, rule, name, seed, f.last)
					}
				}
			}
		}
	}
}

// An honest task whose cpi rises with its reports is helped.
func TestAnHonestReportIsBelieved(t *testing.T) {
	for seed := range uint64(5) {
		f := newFraming(t, detect.Quell, seed, true)
		f.play(60, sample.CPT, map[sample.SignalName]float64{sample.CPI: 1.9})
		if f.accused == 0 || f.capped == 0 {
			t.Errorf("seed %d: %d accusations, %d caps; %s", seed, f.accused, f.capped, f.last)
		}
	}
}

// A witness that names another task does not agree.
func TestAWitnessThatNamesAnother(t *testing.T) {
	policy := plan.Paper()
	policy.Mode = plan.On
	p := plan.New("m", detect.Quell, policy)
	victim := sample.Task{Key: sample.TaskKey{Inode: 1}, Name: "/liar", Class: sample.LatencySensitive}
	guilty := sample.Task{Key: sample.TaskKey{Inode: 2}, Name: "/guilty", Class: sample.Batch}
	framed := sample.Task{Key: sample.TaskKey{Inode: 3}, Name: "/framed", Class: sample.Batch}
	normal := &spec.Spec{State: spec.Ready, Mean: 1, StdDev: 0.1}
	finding := func(sig sample.SignalName, s sample.Task) detect.Finding {
		return detect.Finding{Signal: sig, Victim: victim, Spec: *normal, Result: detect.Result{Kind: detect.Neighbour, Cost: 2, Threshold: 1.2, Antagonists: 1,
			Suspects: []detect.Suspect{{Task: s, Grounds: detect.Grounds{Level: detect.Proven, Basis: detect.ByAccounts, Share: 0.5}}}}}
	}
	for n := range 3 {
		at := sample.Millis(60_000 * (n + 1))
		for _, sig := range []sample.SignalName{sample.CPT, sample.RunQ} {
			p.Interval(at, sig, at, []detect.Reading{{Task: &victim, Cost: 2, Spec: normal}}, []detect.Verdict{{Judged: true, Outlier: true}})
		}
	}
	const now = 180_000
	window := func(sample.TaskKey) []detect.Point { return nil }
	p.Finding(now, finding(sample.RunQ, guilty), window)
	id := p.Finding(now, finding(sample.CPT, framed), window)
	inc, _ := p.Incident(id)
	if len(inc.Rounds) != 0 || !strings.Contains(inc.NotDone, "its witness, runq, names /guilty") {
		t.Errorf("%+v, not done: %q", inc.Rounds, inc.NotDone)
	}
}
