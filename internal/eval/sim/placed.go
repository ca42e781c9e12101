package sim

import "github.com/quell-dev/quell/internal/core/sample"

// Guests are the tasks of a fleet's machine that a scheduler has placed there: the victim,
// and the antagonists that visit it. All else is drawn as for Fleet, by the seed alone.
type Guests struct {
	Victim   Job
	Visitors [visitors]Visitor
	// Frequency multiplies the visits of Fleet.
	Frequency float64
}

// Visitors is the number of antagonists on a fleet's machine.
const Visitors = visitors

// Visitor is an antagonist's job. It hurts the victim's job only if it presses on what
// that uses; its CPU usage is the same in any case.
type Visitor struct {
	Job     Job
	Presses bool
}

// Placed is a machine of Fleet with tasks that were placed there.
func Placed(g Guests) Scenario {
	s := Fleet()
	s.Guests = &g
	return s
}

// Served returns n latency-sensitive jobs. They have the costs of the published ones in turn.
func Served(n int) []Job { return alike("serve", n, served()) }

// Others returns n batch jobs, with the costs of those of the simulator in turn.
func Others(n int) []Job {
	all := alike("work", n, others())
	for i := range all {
		all[i].Class = sample.Batch
	}
	return all
}

func alike(prefix string, n int, of []Job) []Job {
	var all []Job
	for i := range n {
		j := of[i%len(of)]
		j.Like = j.Name
		j.Name = sample.JobName(prefix + "-" + string(rune('a'+i/26)) + string(rune('a'+i%26)))
		all = append(all, j)
	}
	return all
}
