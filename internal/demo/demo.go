// Package demo is quell's main job on real processes: it makes a victim, four
// innocents and an antagonist in cgroups of their own, runs the shipped agent
// over them, and tells whether the agent named the right one, whether the
// victim recovered, and whether anything was left behind. Nothing is
// simulated; only the time constants are shorter than in production.
package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/incident"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/workload"
)

// Channel is how the antagonist hurts the victim.
type Channel string

const (
	// CPU: both run on one CPU; the victim waits. Certain anywhere.
	CPU Channel = "cpu"
	// Cache: the victim's working set lives in a last-level cache that the
	// antagonist, on another CPU, streams through. Only where the two CPUs
	// share one.
	Cache Channel = "cache"
	// Auto measures whether two CPUs share a cache now and takes Cache if
	// they do, until they do not; then CPU.
	Auto Channel = "auto"
)

// Options are the choices of a demo.
type Options struct {
	Channel Channel
	Signal  sample.SignalName // "" is the channel's own
	Seed    uint64
	Mode    plan.Mode
	// Alone leaves the antagonist out: nobody must be accused.
	Alone bool
	// PMU says that hardware counters work here.
	PMU bool
	// Agent is the quell-agent program.
	Agent string
	// AgentLog keeps the agent's log in this file; "" drops it with the rest.
	AgentLog string
	// Show takes what happens, as it happens.
	Show func(Event)

	pace beat // 0: the channel's own
}

// Event is one thing that happened, for people.
type Event struct {
	After time.Duration // since the demo began
	Text  string
	// Done and Of are progress in a step that takes a while; Of is 0 for an
	// event of its own.
	Done, Of int
}

// RunnerUp is the best of the suspects that were not accused.
type RunnerUp struct {
	Task        sample.TaskName `json:"task"`
	Correlation float64         `json:"correlation"`
	Excluded    string          `json:"excluded,omitempty"`
}

// Result is what a demo came to. Costs are in the signal's unit.
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
	Antagonist  sample.TaskName   `json:"antagonist"` // "" if it was left out
	Named       sample.TaskName   `json:"named"`      // "" if nobody was
	Grounds     detect.Grounds    `json:"grounds"`    // of that
	Correlation incident.Value    `json:"correlation"`
	RunnerUp    *RunnerUp         `json:"runner_up"`
	// Trials is how often somebody was held to find out before anybody was accused.
	Trials int `json:"trials"`
	// SecondsToIncident counts from the end of the interval with the third
	// outlier, or of the first one after a trial, IntervalsToIncident in sampling
	// intervals from the antagonist's beginning.
	SecondsToIncident   incident.Value `json:"seconds_to_incident"`
	IntervalsToIncident incident.Value `json:"intervals_to_incident"`
	CostAlone           incident.Value `json:"cost_alone"`     // the spec's mean
	CostContended       incident.Value `json:"cost_contended"` // first outlier to cap
	CostCapped          incident.Value `json:"cost_capped"`    // under the cap, first sample left out
	RelativeCost        incident.Value `json:"relative_cost"`  // capped ÷ contended
	Outcome             plan.Outcome   `json:"outcome"`
	Seconds             float64        `json:"seconds"` // of the whole demo
	LeftBehind          []string       `json:"left_behind"`
	// Excuse says why the machine is none to play on, if that was found where
	// the demo did not succeed.
	Excuse string `json:"excuse,omitempty"`

	incident *incident.Record
}

// Incident is what the agent wrote of the last attempt; nil if nothing.
func (r *Result) Incident() *incident.Record { return r.incident }

// beat is a sampling interval; everything else that takes time is a multiple of
// it. The beats are shorter than CPI²'s 10 s out of each minute, in the same
// proportions where that matters, but that the correlation window holds 20
// intervals instead of 10: so it has the good samples that were learnt from.
type beat time.Duration

// The cache's beat is short since the CPUs may share it for seconds only.
const (
	cpuBeat   = beat(500 * time.Millisecond)
	cacheBeat = beat(250 * time.Millisecond)
)

func (b beat) times(n int) time.Duration { return time.Duration(n) * time.Duration(b) }

func (b beat) interval() time.Duration      { return b.times(1) }
func (b beat) tick() time.Duration          { return b.interval() / 2 }
func (b beat) outlierWindow() time.Duration { return b.times(5) }  // 3 outliers in it (paper: 5 min)
func (b beat) window() time.Duration        { return b.times(20) } // (paper: 10 min)
func (b beat) capFor() time.Duration        { return b.times(12) } // (paper: 5 min)
func (b beat) trial() time.Duration         { return b.times(7) }  // (quell: 3 min)

// cycle is how often the antagonist comes; it stays for about half of it.
func (b beat) cycle() time.Duration { return b.times(12) }

// samples is how many a spec needs (paper: 100 a task).
const samples = 24

// How long to wait before giving up.
func (b beat) learnLimit() time.Duration  { return b.times(4 * samples) }
func (b beat) detectLimit() time.Duration { return b.times(12) }

// triedLimit is how long where somebody is held to find out: up to four times
// (enforce.trials), each followed by the antagonist's next coming.
func (b beat) triedLimit() time.Duration { return b.detectLimit() + 4*(b.trial()+b.cycle()) }

// String lists the shortened times, for people.
func (b beat) String() string {
	return fmt.Sprintf("an interval is %s, all of it sampled (paper: 10 s of each 60 s); a spec needs %d samples (100); "+
		"3 outliers in %s (5 min); window %s (10 min); a cap lasts %s (5 min), one to find out %s (3 min)", b.interval(), samples, b.outlierWindow(), b.window(), b.capFor(), b.trial())
}

// What ends an attempt on the cache channel: it is no fault of anybody here.
var (
	errFlip  = errors.New("the hypervisor moved the CPUs apart, they no longer share a cache")
	errTaken = errors.New("neighbours outside this machine have filled the cache")
	errApart = errors.New("the antagonist did not touch the victim's cache")
)

// lost reports whether the cache was lost in mid-run.
func lost(err error) bool {
	return errors.Is(err, errFlip) || errors.Is(err, errTaken) || errors.Is(err, errApart)
}

// Run plays the demo. The error is about the environment (*workload.EnvError)
// or about quell itself; what the agent did wrong is in the Result. Whatever
// happens, also when ctx ends, everything that was made is removed.
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
		if lost(err) {
			flips++
			d.say("attempt %d ended: %v; everything undone", attempts, err)
			if o.Channel == Auto {
				channel = CPU
				d.say("going on with channel cpu")
				continue
			}
		} else if err != nil {
			var env *workload.EnvError
			if ctx.Err() == nil && !errors.As(err, &env) {
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
	began time.Time
	a, b  int   // the CPUs: victim's, everybody else's
	beat  beat  // of the attempt
	set   int64 // the victim's working set on the cache channel, bytes
}

func (d *demo) say(format string, args ...any) {
	d.Show(Event{After: time.Since(d.began), Text: fmt.Sprintf(format, args...)})
}

// progress shows how far a step is; whoever says that it is over uses say.
func (d *demo) progress(done, of int, format string, args ...any) {
	d.Show(Event{After: time.Since(d.began), Text: fmt.Sprintf(format, args...), Done: min(done, of-1), Of: of})
}

// judge says what the result is worth.
func (r *Result) judge() {
	switch {
	case len(r.LeftBehind) > 0:
		r.Verdict = "left something behind"
	case r.Flips > 0 && r.Channel == Cache:
		r.Verdict = "the cache was lost in mid-run: no result"
	case r.Antagonist == "" && r.Named == "":
		r.OK, r.Verdict = true, "nobody was accused, and nobody was to blame"
	case r.Named == "":
		r.Verdict = "abstained: nobody was accused"
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
