package wire

import (
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// SpecsOf returns the message with a job's specs on a platform. Specs of other jobs and
// platforms are omitted.
func SpecsOf(job sample.JobName, platform sample.Platform, revision uint64, all []spec.Spec) *Specs {
	m := &Specs{Version: Version, Job: string(job), Platform: string(platform), Revision: revision}
	for i := range all {
		s := &all[i]
		if s.Job != job || s.Platform != platform {
			continue
		}
		m.Specs = append(m.Specs, &Spec{Signal: string(s.Signal), Variant: s.Variant, State: Spec_State(s.State) + 1,
			Samples: s.Samples, Tasks: int64(s.Tasks), CpuMean: s.CPUMean, Mean: s.Mean, Stddev: s.StdDev,
			SelfSamples: s.SelfSamples, SelfMean: s.SelfMean, SelfStddev: s.SelfStdDev, Updated: int64(s.Updated), Sigmas: s.Sigmas})
	}
	return m
}

// sigmas is a Spec's Sigmas; 0, an agent's own number, if no threshold can be so far away.
func sigmas(k float64) float64 {
	const most = 100 // the same bound as an agent's own number has
	if k > 0 && k <= most {
		return k
	}
	return 0
}

// List returns the specs of a message. A spec in an unknown state is treated as
// Insufficient.
func (m *Specs) List() []spec.Spec {
	var all []spec.Spec
	for _, s := range m.Specs {
		state := spec.Insufficient
		if s.State > Spec_STATE_UNSPECIFIED && s.State <= Spec_STATE_STALE {
			state = spec.State(s.State - 1)
		}
		all = append(all, spec.Spec{
			Key: spec.Key{Job: sample.JobName(m.Job), Platform: sample.Platform(m.Platform),
				Signal: sample.SignalName(s.Signal), Variant: s.Variant},
			State: state, Samples: s.Samples, Tasks: int(s.Tasks), CPUMean: s.CpuMean, Mean: s.Mean, StdDev: s.Stddev,
			SelfSamples: s.SelfSamples, SelfMean: s.SelfMean, SelfStdDev: s.SelfStddev, Updated: sample.Millis(s.Updated), Sigmas: sigmas(s.Sigmas)})
	}
	return all
}
