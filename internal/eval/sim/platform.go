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
}

// served are the latency-sensitive jobs with published figures: table 1 of
// CPI², and the web search of its figure 7.
func served() []Job {
	return []Job{
		{"job-a", sample.LatencySensitive, 0.88, 0.09},
		{"job-b", sample.LatencySensitive, 1.36, 0.26},
		{"job-c", sample.LatencySensitive, 2.03, 0.20},
		{"search", sample.LatencySensitive, 1.80, 0.16},
	}
}

// others are the other jobs. CPI² (section 7.2) only says that they are less uniform; the
// figures are assumed.
func others() []Job {
	return []Job{
		{"indexer", sample.Batch, 1.2, 0.24},
		{"logs", sample.Batch, 0.8, 0.2},
		{"encode", sample.Batch, 0.7, 0.12},
		{"train", sample.Batch, 1.6, 0.3},
		{"scrape", sample.BestEffort, 1.1, 0.3},
		{"scan", sample.BestEffort, 2.2, 0.5},
	}
}
