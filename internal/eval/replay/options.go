package replay

import (
	"fmt"
	"math"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/eval/rivals"
)

// Options say how samples are judged. Start from Default.
type Options struct {
	Detect detect.Params
	Policy plan.Policy
	Spec   spec.Params
	// Specs are what jobs normally cost; nil: learnt on the way, as an agent
	// does. See Learner for specs out of the whole recording.
	Specs map[spec.Key]spec.Spec
	// ByTask makes each task a job of its own.
	ByTask bool
	// UsageBins makes a spec for each range of a task's usage (bin).
	UsageBins bool
	// Signals overrides what is built in of signals: their least activity and
	// sane range (which counts with the switch Bounds).
	Signals map[sample.SignalName]sample.Signal
	// Found, if not nil, is told of each finding; from several goroutines where Run
	// is given several workers.
	Found func(machine string, f *pipeline.Finding)
	// Judged, if not nil, is told of each sample that was held against a ready spec; as
	// Found.
	Judged func(JudgedSample)
	// Costs collects what jobs cost, for their distributions.
	Costs bool
	// Sampling is how long each sample was taken; counts become rates by it.
	Sampling time.Duration
}

// Default returns the agent's defaults with a rule's parameters: specs out of
// each machine's own history.
func Default(rule detect.Method) (Options, error) {
	p, err := rivals.Load(rule)
	return Options{Detect: p.Params, Policy: plan.Paper(), Spec: spec.OwnHistory(), Sampling: 10 * time.Second, ByTask: p.OwnSpec, UsageBins: p.UsageBins}, err
}

// ScaleTo scales the rule's windows to a recording with a sample every step: they
// are made for one a minute (CPI², section 3.1), so that 3 outliers in 5 minutes
// are 3 in 5 samples. What a sample counts it counted since the one before at most.
func (o *Options) ScaleTo(step time.Duration) {
	scale := func(d *time.Duration) { *d = time.Duration(float64(*d) * step.Minutes()) }
	scale(&o.Detect.OutlierWindow)
	scale(&o.Detect.Window)
	scale(&o.Detect.LookBack)
	scale(&o.Detect.Memory)
	scale(&o.Policy.Calm)
	scale(&o.Policy.For)
	scale(&o.Policy.Settle)
	o.Detect.Pace = min(o.Detect.Pace, step)
	o.Sampling = min(o.Sampling, step)
}

// signal is what is known of a signal; false for one that is not.
func (o *Options) signal(name sample.SignalName) (sample.Signal, bool) {
	if s, ok := o.Signals[name]; ok {
		return s, true
	}
	return sample.LookupSignal(name)
}

// key is whose spec a sample is judged by.
func (o *Options) key(s *sample.Sample) spec.Key {
	k := spec.Key{Job: s.Job, Platform: s.Platform, Signal: s.Signal, Variant: s.Variant}
	if o.ByTask {
		k.Job = sample.JobName(s.Machine + " " + string(s.Task))
	}
	if o.UsageBins {
		k.Variant += fmt.Sprintf(" %d", o.bin(s))
	}
	return k
}

// bin is the range of usage that a sample is in, for rules that have a spec for
// each: two for each doubling, from what a signal asks for at least.
func (o *Options) bin(s *sample.Sample) int {
	if !o.UsageBins || s.CPU < 0.01 {
		return 0
	}
	return int(math.Floor(2*math.Log2(float64(s.CPU)))) + 20
}

// JudgedSample is a sample that was held against a ready spec.
type JudgedSample struct {
	Machine string
	Task    sample.TaskName
	Signal  sample.SignalName
	At      sample.Millis
	Outlier bool
}
