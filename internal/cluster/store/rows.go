package store

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Incident is the state of an incident when its agent reported it. An agent reports again
// when something changes: the row with the newest Updated is the current state.
type Incident struct {
	Machine       string   `parquet:"machine,dict"`
	ID            string   `parquet:"id"`
	Updated       int64    `parquet:"updated,timestamp(millisecond)"`
	Rule          string   `parquet:"rule,dict"`
	Kind          string   `parquet:"kind,dict"`
	Signal        string   `parquet:"signal,dict"`
	Variant       string   `parquet:"variant,dict"`
	VictimJob     string   `parquet:"victim_job,dict"`
	VictimTask    string   `parquet:"victim_task,dict"`
	VictimClass   string   `parquet:"victim_class,dict"`
	Began         int64    `parquet:"began,timestamp(millisecond)"` // end of the first bad interval
	Opened        int64    `parquet:"opened,timestamp(millisecond)"`
	Closed        *int64   `parquet:"closed,timestamp(millisecond)"` // null: open
	Follows       bool     `parquet:"follows"`                       // its samples teach: of a lasting change, or of waits for itself or its quota that are not in the cost
	Mode          string   `parquet:"mode,dict"`
	Busy          *float64 `parquet:"busy"` // usage of all tasks when it was found, or when a suspect was first named, CPU-s/s
	CPUs          *int32   `parquet:"cpus"` // of the machine
	SpecMean      float64  `parquet:"spec_mean"`
	SpecStdDev    float64  `parquet:"spec_stddev"`
	Threshold     float64  `parquet:"threshold"`
	Cost          float64  `parquet:"cost"`
	SuspectJob    string   `parquet:"suspect_job,dict"` // the first named suspect, else empty; all are in Suspect
	SuspectTask   string   `parquet:"suspect_task,dict"`
	Correlation   *float64 `parquet:"correlation"`     // of the best suspect, whether named or not
	Antagonists   int32    `parquet:"antagonists"`     // number of named ones, also those capped without effect
	CappedJob     string   `parquet:"capped_job,dict"` // of the last round, empty if none; all are in Round
	CappedTask    string   `parquet:"capped_task,dict"`
	CappedRate    *float64 `parquet:"capped_rate"`   // CPU-s/s
	RelativeCost  *float64 `parquet:"relative_cost"` // of the last round
	Outcome       string   `parquet:"outcome,dict"`  // of the last round, if there is one
	OutcomeReason string   `parquet:"reason"`        // the evidence, and why no action, or no further action, was taken
	Doc           string   `parquet:"doc"`           // the whole incident, JSON
}

// IncidentOf returns the row of an incident in its current state.
func IncidentOf(inc *incident.Record) (Incident, error) {
	doc, err := json.Marshal(inc)
	if err != nil {
		return Incident{}, fmt.Errorf("encode incident %s: %w", inc.ID, err)
	}
	follows := inc.Follows || inc.Kind == detect.SelfWait || inc.Kind == detect.OwnQuota && quotaApart(inc.Signal, inc.Variant)
	r := Incident{Machine: inc.Machine, ID: inc.ID, Updated: int64(inc.Updated), Rule: string(inc.Rule), Kind: inc.Kind.String(),
		Signal: string(inc.Signal), Variant: inc.Variant, VictimJob: string(inc.Victim.Job), VictimTask: inc.Victim.Name.Text(),
		VictimClass: inc.Victim.Class.String(), Began: int64(inc.Began), Opened: int64(inc.Opened), Follows: follows, Mode: inc.Mode.String(),
		SpecMean: inc.SpecMean, SpecStdDev: inc.SpecStdDev, Threshold: inc.Threshold, Cost: inc.Cost, Antagonists: int32(len(inc.Named())),
		Outcome: string(inc.Outcome), OutcomeReason: strings.Trim(inc.Reason+"; "+inc.NotDone, "; "), Doc: string(doc)}
	if inc.Closed != 0 {
		closed := int64(inc.Closed)
		r.Closed = &closed
	}
	if inc.Busy > 0 {
		r.Busy = &inc.Busy
	}
	if inc.CPUs > 0 {
		cpus := int32(inc.CPUs)
		r.CPUs = &cpus
	}
	if best := inc.Antagonist(); best != nil {
		r.Correlation, r.SuspectJob, r.SuspectTask = &best.Correlation, string(best.Job), best.Name.Text()
	} else if len(inc.Suspects) > 0 && inc.Suspects[0].Excluded == "" {
		r.Correlation = &inc.Suspects[0].Correlation
	}
	if n := len(inc.Rounds); n > 0 {
		last := inc.Rounds[n-1]
		r.CappedJob, r.CappedTask = string(last.Suspect.Job), last.Suspect.Name.Text()
		if last.Rate > 0 { // else the document has the limited resource
			r.CappedRate = &last.Rate
		}
		if v := float64(last.RelativeCost); !math.IsNaN(v) && !math.IsInf(v, 0) {
			r.RelativeCost = &v
		}
		if r.Outcome == "" {
			r.Outcome = string(last.Outcome)
		}
	}
	return r, nil
}

// quotaApart reports whether a signal's cost excludes waits for the task's own quota, as pipeline's readings know it by
// sample.WaitThrottled, which of the variants of runq only "bpf" counts.
func quotaApart(name sample.SignalName, variant string) bool {
	s, known := sample.LookupSignal(name)
	return known && !s.Domain.OfCPUs() || name == sample.RunQ && variant == "bpf"
}

// Action is an action of an agent on a task, or one that it would have taken.
type Action struct {
	At       int64    `parquet:"at,timestamp(millisecond)"`
	Machine  string   `parquet:"machine,dict"`
	ID       string   `parquet:"id"`        // of the cap
	What     string   `parquet:"what,dict"` // cap, uncap, expire, protect, mode
	Task     string   `parquet:"task,dict"` // the affected task
	Rate     *float64 `parquet:"rate"`      // CPU-s/s
	Until    *int64   `parquet:"until,timestamp(millisecond)"`
	By       string   `parquet:"by,dict"` // "quell" or the operator
	Why      string   `parquet:"why"`
	Incident string   `parquet:"incident"`
	Result   string   `parquet:"result"`
}

// Audit is a request to the server for which the client is accountable, granted or refused.
type Audit struct {
	At      int64  `parquet:"at,timestamp(millisecond)"`
	Who     string `parquet:"who,dict"`   // name of the token; "" without one
	From    string `parquet:"from,dict"`  // address
	Scope   string `parquet:"scope,dict"` // of the token
	What    string `parquet:"what,dict"`  // method and path
	Target  string `parquet:"target"`     // the object of the request
	Why     string `parquet:"why"`
	Outcome string `parquet:"outcome"` // done, or why not
}

// Spec is one version of a spec (CPI², section 3.1: num_samples, cpu_usage_mean, cpi_mean, cpi_stddev).
type Spec struct {
	At       int64   `parquet:"at,timestamp(millisecond)"` // when it was computed
	Version  int64   `parquet:"version"`                   // of this key, from 1
	Job      string  `parquet:"job,dict"`
	Platform string  `parquet:"platform,dict"`
	Signal   string  `parquet:"signal,dict"`
	Variant  string  `parquet:"variant,dict"`
	State    string  `parquet:"state,dict"` // insufficient, ready, stale
	Tasks    int64   `parquet:"tasks"`      // with enough samples each
	Samples  int64   `parquet:"num_samples"`
	CPUMean  float64 `parquet:"cpu_usage_mean"` // CPU-s/s
	Mean     float64 `parquet:"cost_mean"`      // the paper's cpi_mean, for any signal
	StdDev   float64 `parquet:"cost_stddev"`
	Last     int64   `parquet:"last,timestamp(millisecond)"` // newest sample in it
	// SQL computations leave these 0 or empty, null in the file.
	Since int64   `parquet:"since,optional,timestamp(millisecond)"` // earlier history was dropped: the distribution has shifted
	P50   float64 `parquet:"cost_p50,optional"`
	P90   float64 `parquet:"cost_p90,optional"`
	P99   float64 `parquet:"cost_p99,optional"`
	Usage string  `parquet:"by_usage,optional"` // JSON: a list of spec.UsageCost
	// Machines that the spec was learnt from, and the number of those that were left out because their costs are far
	// from the others'. LeftOut names the latter, as a JSON list of at most ten; SQL computations leave it empty.
	Machines    int64  `parquet:"machines,optional"`
	MachinesOut int64  `parquet:"machines_out,optional"`
	LeftOut     string `parquet:"left_out,optional"`
	// The part of the cost that tasks spent on themselves: of how many samples it is known (0:
	// not of enough), its mean and standard deviation.
	SelfSamples int64   `parquet:"self_samples,optional"`
	SelfMean    float64 `parquet:"self_mean,optional"`
	SelfStdDev  float64 `parquet:"self_stddev,optional"`
	// Sigmas is spec.Spec's; 0, null in the file, if the threshold is the agents' own.
	Sigmas float64 `parquet:"threshold_sigmas,optional"`
}

// Revocation is an operator's decision that samples do not teach: those of a machine, of a job,
// or of the machine's tasks of the job. The newest of a machine and job counts.
type Revocation struct {
	At      int64  `parquet:"at,timestamp(millisecond)"`
	Machine string `parquet:"machine,dict"` // "": all
	Job     string `parquet:"job,dict"`     // "": all
	Since   int64  `parquet:"since,timestamp(millisecond)"`
	Until   *int64 `parquet:"until,timestamp(millisecond)"` // null: until it is lifted; before since: it is lifted
	By      string `parquet:"by,dict"`
	Why     string `parquet:"why"`
}

// Window is a time whose samples do not teach. With a task, its cost is not normal: from the
// end of an incident's first bad interval to its end, or as far as the incident is known to
// last. Without a task it is a revocation, of a machine, a job, or both.
type Window struct {
	Machine string
	Job     sample.JobName // only of a revocation
	Task    sample.TaskName
	Signal  sample.SignalName
	From    sample.Millis
	To      sample.Millis
}
