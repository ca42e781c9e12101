package sim

import "github.com/quell-dev/quell/internal/core/sample"

// Platform is a kind of machine.
type Platform struct {
	Name sample.Platform
	CPUs int // hardware threads under one last-level cache
	// SMT is the relative increase of a task's cost if every sibling is busy:
	// full_degradation_percent of testdata/reference/aws_metal_degradation.csv.
	SMT float64
}

// Platforms returns the kinds of machines in fleets.
func Platforms() []Platform {
	return []Platform{
		{"m5", 48, 0.53},
		{"m6i", 64, 0.3185},
		{"m6a", 32, 0.235},
		{"m6g", 64, 0.0033},
	}
}

// Job is a kind of task, with its normal cost on the reference platform.
type Job struct {
	Name         sample.JobName
	Class        sample.Class
	Mean, StdDev float64 // of CPI, over tasks and time
	// Like is the job whose spec it has; "": its own.
	Like sample.JobName
}

// served are the latency-sensitive jobs with published figures: table 1 of
// CPI², and the web search of its figure 7.
func served() []Job {
	return []Job{
		{Name: "job-a", Class: sample.LatencySensitive, Mean: 0.88, StdDev: 0.09},
		{Name: "job-b", Class: sample.LatencySensitive, Mean: 1.36, StdDev: 0.26},
		{Name: "job-c", Class: sample.LatencySensitive, Mean: 2.03, StdDev: 0.20},
		{Name: "search", Class: sample.LatencySensitive, Mean: 1.80, StdDev: 0.16},
	}
}

// others are the other jobs. CPI² (section 7.2) only says that they are less uniform; the
// figures are assumed.
func others() []Job {
	return []Job{
		{Name: "indexer", Class: sample.Batch, Mean: 1.2, StdDev: 0.24},
		{Name: "logs", Class: sample.Batch, Mean: 0.8, StdDev: 0.2},
		{Name: "encode", Class: sample.Batch, Mean: 0.7, StdDev: 0.12},
		{Name: "train", Class: sample.Batch, Mean: 1.6, StdDev: 0.3},
		{Name: "scrape", Class: sample.BestEffort, Mean: 1.1, StdDev: 0.3},
		{Name: "scan", Class: sample.BestEffort, Mean: 2.2, StdDev: 0.5},
	}
}
