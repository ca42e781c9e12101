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

// Options are the parameters of a replay. Start from Default.
type Options struct {
	Detect detect.Params
	Policy plan.Policy
	Spec   spec.Params
	// Specs are the normal costs of jobs; nil: learnt during the replay, as an agent does.
	// Learner computes them from the whole recording.
	Specs map[spec.Key]spec.Spec
	// ByTask treats each task as a job of its own.
	ByTask bool
	// UsageBins makes a separate spec for each range of a task's usage (bin).
	UsageBins bool
	// Signals overrides built-in properties of signals, such as the least activity and the
	// valid range (which counts with the switch Bounds).
	Signals map[sample.SignalName]sample.Signal
	// Found, if not nil, is called with each finding, from several goroutines if Run has
	// several workers.
	Found func(machine string, f *pipeline.Finding)
	// Judged, if not nil, is called with each sample that was compared with a ready spec,
	// from goroutines as Found.
	Judged func(JudgedSample)
	// Costs keeps the costs of jobs, for their distributions.
	Costs bool
	// Sampling is the length of a sampling interval, by which counts are divided for rates.
	Sampling time.Duration
	// Step is the time between two samples of a task that the windows are for; 0: a minute.
	Step time.Duration
}

// Default returns the agent's defaults with a rule's parameters. Specs are of each
// machine's own history.
func Default(rule detect.Method) (Options, error) {
	p, err := rivals.Load(rule)
	return Options{Detect: p.Params, Policy: plan.Paper(), Spec: spec.OwnHistory(), Sampling: 10 * time.Second, ByTask: p.OwnSpec, UsageBins: p.UsageBins}, err
}

// ScaleTo scales the rule's windows to a recording with a sample every step. They are meant
// for one sample per minute (CPI², section 3.1), so 3 outliers in 5 minutes become 3 in 5
// samples. A sample counts at most since the previous one, so Sampling is at most step.
func (o *Options) ScaleTo(step time.Duration) {
	scale := func(d *time.Duration) { *d = time.Duration(float64(*d) * step.Minutes()) }
	scale(&o.Detect.OutlierWindow)
	scale(&o.Detect.Window)
	scale(&o.Detect.LookBack)
	scale(&o.Detect.Memory)
	scale(&o.Policy.Calm)
	scale(&o.Policy.For)
	scale(&o.Policy.Settle)
	o.Step, o.Detect.Pace = step, min(o.Detect.Pace, step)
	o.Sampling = min(o.Sampling, step)
}

// signal returns the properties of a signal; false if the signal is unknown.
func (o *Options) signal(name sample.SignalName) (sample.Signal, bool) {
	if s, ok := o.Signals[name]; ok {
		return s, true
	}
	return sample.LookupSignal(name)
}

// key returns the key of the spec that a sample is compared with.
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

// bin returns the number of the usage range that contains a sample, for rules with a spec
// for each range. A range is half of a doubling of the usage; the first begins at 0.01
// CPU-s/s.
func (o *Options) bin(s *sample.Sample) int {
	if !o.UsageBins || s.CPU < 0.01 {
		return 0
	}
	return int(math.Floor(2*math.Log2(float64(s.CPU)))) + 20
}

// JudgedSample is a sample that was compared with a ready spec.
type JudgedSample struct {
	Machine string
	Task    sample.TaskName
	Signal  sample.SignalName
	At      sample.Millis
	Outlier bool
}
