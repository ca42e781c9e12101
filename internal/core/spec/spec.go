// Package spec learns what a job normally costs. A Spec is the paper's "CPI
// spec" (CPI², section 3.1) for any cost signal: mean and standard deviation
// of past samples per job × platform × signal × what was counted.
package spec

import (
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Key identifies a spec. Costs that are counted differently are never mixed.
type Key struct {
	Job      sample.JobName    `json:"job"`
	Platform sample.Platform   `json:"platform"`
	Signal   sample.SignalName `json:"signal"`
	Variant  string            `json:"variant"`
}

// State says whether samples may be judged by a spec.
type State uint8

const (
	// Learning: samples arrive, but there are not enough yet.
	Learning State = iota
	// Insufficient: the job has too few tasks for a spec to be robust.
	Insufficient
	// Ready: samples may be judged by it.
	Ready
	// Stale: it was ready, but then nothing was learnt for too long.
	Stale
)

var stateNames = [...]string{"learning", "insufficient", "ready", "stale"}

func (s State) String() string { return stateNames[s] }

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *State) UnmarshalText(b []byte) error {
	if i := slices.Index(stateNames[:], string(b)); i >= 0 {
		*s = State(i)
		return nil
	}
	return fmt.Errorf("spec state %q: want learning, insufficient, ready or stale", b)
}

// Spec is what a job normally costs.
type Spec struct {
	Key
	State State `json:"state"`
	// Provisional marks one that is still learning, from whose few samples tasks are judged
	// already (Params.Provisional). No cap follows from it. It is not of a server.
	Provisional bool `json:"provisional,omitempty"`
	// Own marks a spec learnt only from this machine's own history. A spec learnt from
	// the whole job replaces it.
	Own     bool    `json:"own"`
	Samples int64   `json:"samples"`  // num_samples of the paper
	Tasks   int     `json:"tasks"`    // tasks with enough samples each
	CPUMean float64 `json:"cpu_mean"` // CPU-s/s
	Mean    float64 `json:"mean"`     // of the cost, in the signal's unit
	StdDev  float64 `json:"stddev"`
	// Sigmas, if not 0, is how many standard deviations the threshold is above the mean: where
	// the job's own distribution ends but for a share of the samples (Params.Threshold). 0: the
	// same number for all jobs (detect.Params.Sigmas).
	Sigmas float64 `json:"sigmas,omitempty"`
	// SelfSamples, SelfMean and SelfStdDev describe the part of the resource that tasks spent
	// on themselves, in the cost's unit. SelfSamples 0: that part is not known, and no task is
	// judged by it.
	SelfSamples int64         `json:"self_samples,omitempty"`
	SelfMean    float64       `json:"self_mean,omitempty"`
	SelfStdDev  float64       `json:"self_stddev,omitempty"`
	Updated     sample.Millis `json:"updated"`
}

// Params are the parameters of learning. The zero value is not usable; start from Paper
// or OwnHistory. The tags are those of the programs' configurations (format/keyed).
type Params struct {
	// MinMachines is the number of machines with a task of enough samples that a spec of a
	// whole cluster needs (Learn, Live). 0: no such limit.
	MinMachines int
	// Provisional is the number of samples of one task, below MinSamples, from which on a
	// machine's own history is a provisional spec. 0: never.
	Provisional int
	// Threshold is how Sigmas are found; "" or Sigmas: not at all. Above is the share of the samples
	// that is over the threshold then (threshold.go). An agent's own history has no distribution.
	Threshold  Threshold
	Above      float64
	MinTasks   int           `key:"min_tasks" help:"tasks with enough samples that a spec needs; 1: the history of one machine is enough" min:"1" max:"1000000"`
	MinSamples int           `key:"min_samples" help:"samples that a task needs to count for the spec" min:"2" max:"1000000"`
	AgeWeight  float64       `key:"age_weight" help:"weight of a sample per day of age" min:"0.01" max:"1"`
	Every      time.Duration `key:"every" help:"recompute a ready spec this often" min:"1s" max:"168h"`
	StaleAfter time.Duration `key:"stale_after" help:"a spec without new samples for this long is not used" min:"1m" max:"8760h"`
}

// Paper returns the values of CPI², section 3.1 and table 2, with the hourly
// recalculation that it names as its goal.
func Paper() Params {
	return Params{MinTasks: 5, MinSamples: 100, AgeWeight: 0.9, Every: time.Hour, StaleAfter: 7 * 24 * time.Hour, Threshold: BySigmas, Above: figure7Above}
}

// OwnHistory returns Paper's values for a single machine, where one task is all there is to learn from.
func OwnHistory() Params {
	p := Paper()
	p.MinTasks = 1
	return p
}
