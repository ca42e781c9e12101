// Package demo is quell's main job on real processes: it starts a victim, four
// innocents and an antagonist in separate cgroups, runs the shipped agent on them, and
// reports whether the agent named the right task, whether the victim recovered, and
// whether anything was left behind. Nothing is simulated; only the time constants are
// shorter than in production.
package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
)

// Channel is how the antagonist hurts the victim.
type Channel string

const (
	// CPU: both run on one CPU; the victim waits. Works on any machine.
	CPU Channel = "cpu"
	// Cache: the victim's working set is in a last-level cache that the antagonist, on
	// another CPU, streams through. Works only if the two CPUs share one.
	Cache Channel = "cache"
	// Auto measures whether two CPUs share a cache now. If they do it takes Cache, as
	// long as they do; otherwise CPU.
	Auto Channel = "auto"
)

// Options are the options of a demo.
type Options struct {
	Channel Channel
	Signal  sample.SignalName // "" is the channel's default
	Seed    uint64
	Mode    plan.Mode
	// Alone omits the antagonist: no task must be accused.
	Alone bool
	// PMU says that hardware counters work here.
	PMU bool
	// Agent is the quell-agent program.
	Agent string
	// Patience is how long it learns again on a busy machine, until the victim's threshold is
	// so low that the antagonist can exceed it; then Run returns a *workload.MissingError.
	// 0: it plays with whatever it has learnt.
	Patience time.Duration
	// Listen is the address of the agent's metrics; "": none.
	Listen string
	// AgentLog keeps the agent's log in this file; "" deletes it with the rest.
	AgentLog string
	// Started receives the agent's socket when it answers, in each attempt; nil: none.
	Started func(socket string)
	// Show receives events as they happen.
	Show func(Event)

	pace timescale // 0: the channel's own
}

// Event is one event, for people.
type Event struct {
	After time.Duration // since the demo began
	Text  string
	// Done and Of are the progress in a longer step; Of is 0 for an event that is not
	// progress.
	Done, Of int
}

// RunnerUp is the best of the suspects that were not accused.
type RunnerUp struct {
	Task        sample.TaskName `json:"task"`
	Correlation float64         `json:"correlation"`
	Excluded    string          `json:"excluded,omitempty"`
}

// Result is the result of a demo. Costs are in the signal's unit.
type Result struct {
	OK          bool              `json:"ok"`
	Verdict     string            `json:"verdict"`
	Channel     Channel           `json:"channel"`
	Signal      sample.SignalName `json:"signal"`
	Variant     string            `json:"variant"`
	Mode        plan.Mode         `json:"mode"`
	Seed        uint64            `json:"seed"`
	Attempts    int               `json:"attempts"`
	Flips       int               `json:"flips"` // attempts that ended because the cache was lost
	Victim      sample.TaskName   `json:"victim"`
	Antagonist  sample.TaskName   `json:"antagonist"` // "" if it was omitted
	Named       sample.TaskName   `json:"named"`      // "" if no task was
	Grounds     detect.Grounds    `json:"grounds"`    // for naming it
	Correlation incident.Value    `json:"correlation"`
	RunnerUp    *RunnerUp         `json:"runner_up"`
	// Trials is the number of trials before the accusation.
	Trials int `json:"trials"`
	// SecondsToIncident counts from the end of the interval with the third outlier, or
	// of the first outlier after a trial; IntervalsToIncident counts sampling intervals
	// from the antagonist's start.
	SecondsToIncident   incident.Value `json:"seconds_to_incident"`
	IntervalsToIncident incident.Value `json:"intervals_to_incident"`
	CostAlone           incident.Value `json:"cost_alone"`     // the spec's mean
	CostContended       incident.Value `json:"cost_contended"` // first outlier to cap
	CostCapped          incident.Value `json:"cost_capped"`    // under the cap, first sample excluded
	RelativeCost        incident.Value `json:"relative_cost"`  // capped ÷ contended
	Outcome             plan.Outcome   `json:"outcome"`
	Seconds             float64        `json:"seconds"` // of the whole demo
	LeftBehind          []string       `json:"left_behind"`
	// Excuse says why the machine is not suitable for the demo, if that was detected
	// after the demo had not succeeded.
	Excuse string `json:"excuse,omitempty"`

	incident *incident.Record
}

// Incident is the agent's incident in the last attempt; nil if none.
func (r *Result) Incident() *incident.Record { return r.incident }

// timescale is a sampling interval; all other times are multiples of it. The times are
// shorter than CPI²'s 10 s out of each minute, in the same proportions where that
// matters, except that the correlation window has 20 intervals instead of 10: so it
// contains the good samples that the spec was learnt from.
type timescale time.Duration

// The cache's beat is short because the CPUs may share it for only a few seconds.
const (
	cpuBeat   = timescale(500 * time.Millisecond)
	cacheBeat = timescale(250 * time.Millisecond)
)

func (b timescale) times(n int) time.Duration { return time.Duration(n) * time.Duration(b) }

// intervals is how many there are in d.
func (b timescale) intervals(d time.Duration) int { return int(d / b.interval()) }

func (b timescale) interval() time.Duration      { return b.times(1) }
func (b timescale) tick() time.Duration          { return b.interval() / 2 }
func (b timescale) outlierWindow() time.Duration { return b.times(5) }  // 3 outliers in it (paper: 5 min)
func (b timescale) window() time.Duration        { return b.times(20) } // (paper: 10 min)
func (b timescale) capFor() time.Duration        { return b.times(12) } // (paper: 5 min)
func (b timescale) trial() time.Duration         { return b.times(7) }  // (quell: 3 min)

// cycle is the period of the antagonist; it is active for about half of it.
func (b timescale) cycle() time.Duration { return b.times(12) }

// samples is how many a spec needs (paper: 100 a task).
const samples = 24

// Timeouts.
func (b timescale) learnLimit() time.Duration  { return b.times(4 * samples) }
func (b timescale) detectLimit() time.Duration { return b.times(12) }

// triedLimit is the timeout with trials: up to four of them (enforce.trials), each
// followed by the antagonist's next burst.
func (b timescale) triedLimit() time.Duration { return b.detectLimit() + 4*(b.trial()+b.cycle()) }

// String lists the shortened times, for people.
func (b timescale) String() string {
	return fmt.Sprintf("an interval is %s, all of it sampled (paper: 10 s of each 60 s); a spec needs %d samples (100); "+
		"3 outliers in %s (5 min); window %s (10 min); a cap lasts %s (5 min), a trial %s (3 min)", b.interval(), samples, b.outlierWindow(), b.window(), b.capFor(), b.trial())
}

// Reasons that end an attempt on the cache channel; no task here causes them.
var (
	errFlip       = errors.New("the hypervisor moved the CPUs apart, they no longer share a cache")
	errTaken      = errors.New("neighbours outside this machine have filled the cache")
	errNotSharing = errors.New("the antagonist did not touch the victim's cache")
)

// errUnsteady ends an attempt of a demo with patience.
var errUnsteady = errors.New("other tasks of this machine raise the victim's normal cost too much")

// lost reports whether the cache was lost during the run.
func lost(err error) bool {
	return errors.Is(err, errFlip) || errors.Is(err, errTaken) || errors.Is(err, errNotSharing)
}

// Run plays the demo. The error is about the environment (*workload.MissingError) or about
// quell itself; the agent's wrong decisions are in the Result. Everything that was made
// is removed in all cases, also when ctx ends.
func Run(ctx context.Context, o Options) (*Result, error) {
	d := &demo{Options: o, began: time.Now()}
	if _, err := workload.Sweep(treePrefix); err != nil {
		return nil, err
	}
	if err := d.choosePair(); err != nil {
		return nil, err
	}
	channel, err := d.chooseChannel()
	if err != nil {
		return nil, err
	}
	attempts, flips := 0, 0
	for {
		attempts++
		r, err := d.attempt(ctx, channel)
		if errors.Is(err, errUnsteady) {
			if time.Since(d.began) < o.Patience {
				d.say("the machine is busy: learning again")
				continue
			}
			return nil, &workload.MissingError{What: fmt.Sprintf("the victim's normal cost was never steady within %s", o.Patience),
				Remedy: "try again when the machine is less busy", Err: err}
		}
		if lost(err) {
			flips++
			d.say("attempt %d ended: %v; everything undone", attempts, err)
			if o.Channel == Auto {
				channel = CPU
				d.say("continuing with channel cpu")
				continue
			}
		} else if err != nil {
			if _, missing := errors.AsType[*workload.MissingError](err); ctx.Err() == nil && !missing {
				if why := d.excuse(); why != "" {
					err = fmt.Errorf("%w; %s", err, why)
				}
			}
			return nil, err
		}
		r.Attempts, r.Flips, r.Seconds = attempts, flips, time.Since(d.began).Seconds()
		if r.judge(); !r.OK && !lost(err) {
			r.Excuse = d.excuse()
		}
		return r, nil
	}
}

type demo struct {
	Options
	began               time.Time
	victimCPU, otherCPU int       // the CPUs: the victim's, that of all other tasks
	beat                timescale // of the attempt
	setBytes            int64     // the victim's working set on the cache channel, bytes
}

func (d *demo) say(format string, args ...any) {
	d.Show(Event{After: time.Since(d.began), Text: fmt.Sprintf(format, args...)})
}

// progress shows the progress of a step; the caller reports its end with say.
func (d *demo) progress(done, of int, format string, args ...any) {
	d.Show(Event{After: time.Since(d.began), Text: fmt.Sprintf(format, args...), Done: min(done, of-1), Of: of})
}

// judge sets the verdict.
func (r *Result) judge() {
	switch {
	case len(r.LeftBehind) > 0:
		r.Verdict = "left something behind"
	case r.Flips > 0 && r.Channel == Cache:
		r.Verdict = "the cache was lost during the run: no result"
	case r.Antagonist == "" && r.Named == "":
		r.OK, r.Verdict = true, "no task was accused, and there was no antagonist"
	case r.Named == "":
		r.Verdict = "abstained: no task was accused"
	case r.Named != r.Antagonist:
		r.Verdict = "accused the wrong task"
	case r.Mode != plan.On:
		r.OK, r.Verdict = true, "named the right task and, as asked, did nothing"
	case r.Outcome != plan.TruePositive:
		r.Verdict = fmt.Sprintf("named the right task, but the victim did not recover (%s)", r.Outcome)
	default:
		r.OK, r.Verdict = true, "named the right task, the victim recovered, everything is undone"
	}
}
