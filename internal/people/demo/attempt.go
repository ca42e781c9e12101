package demo

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/lab/workload"
)

const treePrefix = "quell-demo"

// weight gives the scene priority over the rest of the machine on the two CPUs, so that
// the measured effects are caused by the scene's tasks.
const weight = 100

// attempt plays the scene once.
func (d *demo) attempt(ctx context.Context, c Channel) (r *Result, err error) {
	r = &Result{Channel: c, Signal: d.signal(c), Mode: d.Mode, Seed: d.Seed, LeftBehind: []string{},
		Correlation: none(), SecondsToIncident: none(), IntervalsToIncident: none(),
		CostAlone: none(), CostContended: none(), CostCapped: none(), RelativeCost: none()}
	switch {
	case d.pace > 0:
		d.beat = d.pace
	case c == Cache:
		d.beat = cacheBeat
	default:
		d.beat = cpuBeat
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tree, err := workload.OpenTree(treePrefix, workload.TreeOptions{Weight: weight})
	if err != nil {
		return nil, err
	}
	s := &scene{demo: d, tree: tree, result: r, procs: map[string]*workload.Proc{}}
	defer func() {
		if s.daemon != nil {
			err = errors.Join(err, s.daemon.stop(), s.checkQuota())
		}
		err = errors.Join(err, tree.Close())
		r.LeftBehind = append(r.LeftBehind, s.left()...)
		if errors.Is(context.Cause(ctx), errFlip) && !realTrouble(err) {
			err = errFlip
		}
	}()
	if c == Cache {
		go d.watchSharing(ctx.Done(), func() { cancel(errFlip) })
	}
	if err := s.start(c); err != nil {
		return r, err
	}
	if s.daemon, err = d.startAgent(ctx, tree, r.Signal); err != nil {
		return r, err
	}
	if d.Started != nil {
		d.Started(child.Socket(s.daemon.dir))
	}
	return r, s.play(ctx)
}

// realTrouble reports whether an error has another cause than that a flip ended the
// attempt.
func realTrouble(err error) bool {
	return err != nil && !lost(err) && !errors.Is(err, context.Canceled)
}

// none is the value of a quantity that was not measured.
func none() incident.Value { return incident.Value(math.NaN()) }

// signal is the requested signal, or the channel's default. With a PMU the cache
// channel uses CPI, without one CPU time per transaction.
func (d *demo) signal(c Channel) sample.SignalName {
	switch {
	case d.Signal != "":
		return d.Signal
	case c == CPU:
		return sample.RunQ
	case d.PMU:
		return sample.CPI
	}
	return sample.CPT
}

// scene is one running attempt.
type scene struct {
	*demo
	tree   *workload.Tree
	daemon *agentProcess
	result *Result
	epoch  sample.Millis // start of the first cycle
	procs  map[string]*workload.Proc
}

// beats is the number of intervals since t.
func (s *scene) beats(t time.Time) int { return int(time.Since(t) / s.beat.interval()) }

// intervals counts the agent's intervals since it was called first: on a busy machine they are
// further apart than configured.
func (s *scene) intervals() func(context.Context) (int, error) {
	var first uint64
	known := false
	return func(ctx context.Context) (int, error) {
		st, err := s.daemon.client.Status(ctx)
		if err != nil {
			return 0, err
		}
		if !known {
			first, known = st.Intervals, true
		}
		return int(st.Intervals - first), nil
	}
}

// nextCycle is when the antagonist's next burst begins.
func (s *scene) nextCycle(now time.Time) time.Time {
	into := now.Sub(s.epoch.Time().Add(s.phase())) % s.beat.cycle()
	if into < 0 {
		into += s.beat.cycle()
	}
	return now.Add(s.beat.cycle() - into)
}

// start starts all tasks but holds them before they begin their work.
func (s *scene) start(c Channel) error {
	where := map[int][]string{}
	s.epoch = workload.Epoch()
	for _, p := range s.cast(c, s.epoch) {
		if p.name == antagonistName && s.Alone {
			continue
		}
		proc, err := s.tree.Start(p.name, p.spec, workload.StartOptions{CPUs: sample.SetOf(p.cpu), Stderr: os.Stderr})
		if err != nil {
			return err
		}
		s.procs[p.name] = proc
		where[p.cpu] = append(where[p.cpu], p.name)
	}
	s.result.Victim = sample.TaskName(s.tree.Path(victimName))
	if !s.Alone {
		s.result.Antagonist = sample.TaskName(s.tree.Path(antagonistName))
	}
	s.say("channel %s, signal %s, seed %d: started %d tasks under %s (%s on CPU %d; %s on CPU %d)", c, s.result.Signal, s.Seed,
		len(s.procs), s.tree.Top(), strings.Join(where[s.victimCPU], ", "), s.victimCPU, strings.Join(where[s.otherCPU], ", "), s.otherCPU)
	s.say("times are shortened: %s", s.beat)
	return nil
}

// play learns, starts the antagonist, and waits for the agent's reaction.
func (s *scene) play(ctx context.Context) error {
	for name, p := range s.procs {
		if name != antagonistName {
			if err := p.Begin(); err != nil {
				return err
			}
		}
	}
	if err := s.learn(ctx); err != nil {
		return err
	}
	if s.Alone {
		return s.watchAlone(ctx)
	}
	// It waits for the next cycle by itself.
	if err := s.procs[antagonistName].Begin(); err != nil {
		return err
	}
	onset := s.nextCycle(time.Now())
	if err := pause(ctx, time.Until(onset)); err != nil {
		return err
	}
	s.say("%s arrives", antagonistName)
	inc, err := s.awaitIncident(ctx, onset)
	if inc == nil || err != nil {
		return err
	}
	s.describe(inc, onset)
	if s.Mode == plan.On && capped(inc) != nil {
		return s.awaitOutcome(ctx, inc.ID)
	}
	return nil
}

// maxVariation is the largest standard deviation ÷ mean of the cost of a victim that is alone
// on its CPU. 16 to 62 % were measured on a virtual machine where neighbours outside it
// filled and left the cache from one interval to the next; there a threshold of two
// deviations is higher than any cost that they or the scene can cause.
const maxVariation = 0.2

// maxThreshold is the highest threshold of runq, in s/CPU-s, with which a demo with patience goes
// on. The victim waits for about as long as it runs while the antagonist is on its CPU: 1.
const maxThreshold = 0.5

// learn waits until the agent has a spec of the victim.
func (s *scene) learn(ctx context.Context) error {
	var deviation float64
	err := s.daemon.Until(ctx, s.beat.learnLimit(), "learn what the victim costs alone", func() (bool, error) {
		v, err := s.daemon.victim(ctx, s.result.Victim)
		if err != nil || v == nil || len(v.Costs) == 0 {
			return false, err
		}
		c := v.Costs[0]
		s.result.Variant = c.Spec.Variant
		n := int(min(c.Spec.Samples, samples))
		if c.Spec.State != spec.Ready {
			s.progress(n, samples, "learning what %s costs alone", victimName)
			return false, nil
		}
		s.say("learnt what %s costs alone: %.3g ± %.2g %s", victimName, c.Spec.Mean, c.Spec.StdDev, s.unit())
		s.result.CostAlone, deviation = incident.Value(c.Spec.Mean), c.Spec.StdDev
		return true, nil
	})
	if load := s.perLoad(); err == nil && load > 3*workload.MaxCachedLoad/2 {
		s.say("that is %d ns a load: its data do not stay in the cache", load.Nanoseconds())
		return errTaken
	}
	if threshold := float64(s.result.CostAlone) + 2*deviation; err == nil && s.Patience > 0 && s.result.Signal == sample.RunQ && threshold > maxThreshold {
		return fmt.Errorf("%w: its threshold is %.2g, more than %.2g %s", errUnsteady, threshold, maxThreshold, s.unit())
	}
	if err == nil && s.result.Channel == Cache && deviation > maxVariation*float64(s.result.CostAlone) {
		s.say("the cost is not steady, although no task here disturbs it")
		return errTaken
	}
	return err
}

// perLoad is the time of a load of a chasing victim while it was alone; 0 for other
// victims and if the signal is not CPU time per transaction.
func (s *scene) perLoad() time.Duration {
	if s.result.Channel != Cache || s.result.Signal != sample.CPT {
		return 0
	}
	return time.Duration(float64(s.result.CostAlone) / chaseSteps * 1e9)
}

func (s *scene) unit() string {
	sig, _ := sample.LookupSignal(s.result.Signal)
	return sig.Unit
}

// antagonist is the task that an incident names, nil if it names none: usage outside
// any task is not a task.
func antagonist(inc *incident.Record) *detect.Suspect {
	if s := inc.Antagonist(); s != nil && s.Name != detect.OutsideName {
		return s
	}
	return nil
}

// accused returns an incident of the victim that names a task, else any.
func (s *scene) accused() (*incident.Record, error) {
	all, err := s.daemon.incidents()
	var any *incident.Record
	for i := range all {
		inc := &all[i]
		if inc.Victim.Name != s.result.Victim {
			continue
		}
		if antagonist(inc) != nil {
			return inc, err
		}
		any = inc
	}
	return any, err
}

// capped is the first round of an incident that caps an accused task, nil if there is
// none: the rounds before it are trials.
func capped(inc *incident.Record) *incident.Round {
	if i := slices.IndexFunc(inc.Rounds, func(r *incident.Round) bool { return !r.Trial }); i >= 0 {
		return inc.Rounds[i]
	}
	return nil
}

// trials reports each new trial of a suspect.
func (s *scene) trials(inc *incident.Record) {
	n := 0
	for _, r := range inc.Rounds {
		if r.Trial {
			if n++; n > s.result.Trials {
				s.result.Trials = n
				s.say("%s may explain the cost of %s, but so may chance: capped to %g CPU-s/s for a trial of %s", short(r.Suspect.Name), victimName, r.Rate, s.beat.trial())
			}
		}
	}
}

// minSlowdown is the least factor by which a streamer raises the mean cost of a victim that uses
// the same cache, over bursts and pauses. Measured separately, without other load, a load
// took 18 to 20 ns alone and, with a streamer, either about 120 or the same 18 to 20,
// alternating every second or so: two CPUs with a short round trip need not share a cache.
const minSlowdown = 1.25

// slowest is how many times longer than configured the agent's intervals may last.
const slowest = 4

// awaitIncident waits until a task is accused and, if that requires a trial before a
// cap, capped; nil if no task is accused in time.
func (s *scene) awaitIncident(ctx context.Context, onset time.Time) (*incident.Record, error) {
	var found *incident.Record
	var beside mean // the victim's cost since the onset
	passed, detect, tried := s.intervals(), s.beat.intervals(s.beat.detectLimit()), s.beat.intervals(s.beat.triedLimit())
	err := s.daemon.Until(ctx, slowest*s.beat.triedLimit(), "accuse a task", func() (bool, error) {
		if v, err := s.daemon.victim(ctx, s.result.Victim); err == nil && v != nil && len(v.Costs) > 0 {
			beside.add(float64(v.Costs[0].Cost))
		}
		n, err := passed(ctx)
		if err != nil {
			return false, err
		}
		inc, err := s.accused()
		if inc != nil {
			s.result.incident = inc
			s.trials(inc)
		}
		if inc != nil && antagonist(inc) != nil {
			first := found == nil
			found = inc
			if s.Mode != plan.On || capped(inc) != nil || len(inc.Rounds) == 0 {
				return true, err
			}
			if first {
				s.say("%s is named, %s: %s", short(antagonist(inc).Name), antagonist(inc).Level, inc.Reason)
			}
			if len(inc.Rounds) > 0 && n > tried {
				return true, err // described in its current state
			}
		}
		if found == nil && err == nil && (n > tried || s.result.Trials == 0 && n > detect) {
			return false, child.ErrSlow
		}
		s.progress(n, detect, "waiting for %s to suffer", victimName)
		return false, err
	})
	if errors.Is(err, child.ErrSlow) {
		if inc := s.result.incident; inc != nil {
			s.say("no task was accused: %s", joined(inc.Reason, inc.NotDone))
		} else {
			s.say("no anomaly within %s; %s cost %.3g with %s active, %.3g alone", s.beat.detectLimit(), victimName, beside.value(), antagonistName, float64(s.result.CostAlone))
			if s.result.Channel == Cache && beside.value() < minSlowdown*float64(s.result.CostAlone) {
				return nil, errNotSharing
			}
		}
		return nil, nil
	}
	return found, err
}

// mean is the mean of numbers each of which is read several times in a row.
type mean struct {
	last, sum float64
	n         int
}

func (m *mean) add(v float64) {
	if v != m.last && !math.IsNaN(v) {
		m.last, m.sum, m.n = v, m.sum+v, m.n+1
	}
}

func (m *mean) value() float64 { return m.sum / float64(m.n) }

// describe copies the accusation into the result.
func (s *scene) describe(inc *incident.Record, onset time.Time) {
	r := s.result
	first := antagonist(inc)
	r.incident, r.Variant = inc, inc.Variant
	r.Named, r.Grounds, r.Correlation = first.Name, first.Grounds, incident.Value(first.Correlation)
	r.CostAlone, r.CostContended, r.Outcome = incident.Value(inc.SpecMean), incident.Value(inc.Cost), inc.Outcome
	r.SecondsToIncident = incident.Value(inc.Accused.Sub(inc.Anomaly).Seconds())
	r.IntervalsToIncident = incident.Value(float64(inc.Accused.Time().Sub(onset)) / float64(s.beat))
	for _, x := range inc.Suspects {
		if x.Key != first.Key && (r.RunnerUp == nil || x.Correlation > r.RunnerUp.Correlation) {
			r.RunnerUp = &RunnerUp{x.Name, x.Correlation, x.Excluded}
		}
	}
	s.say("%s costs %.3g %s, over its threshold %.3g: accused %s, %s: %s", victimName, inc.Cost, s.unit(), inc.Threshold, short(first.Name), first.Level, inc.Reason)
	switch round := capped(inc); {
	case round != nil:
		s.say("capped %s to %g CPU-s/s for %s", short(round.Suspect.Name), round.Rate, s.beat.capFor())
	case inc.Advice != "":
		s.say("advice: %s; nothing was done", inc.Advice)
	default:
		s.say("nothing was done: %s", inc.NotDone)
	}
	if i := slices.IndexFunc(inc.Rounds, func(x *incident.Round) bool { return x.Suspect.Key == first.Key && x.Samples > 0 }); i >= 0 && capped(inc) == nil {
		x := inc.Rounds[i] // without a cap a trial shows whether limiting the suspect helps
		r.CostContended, r.CostCapped, r.RelativeCost, r.Outcome = x.CostBefore, x.CostUnder, x.RelativeCost, x.Outcome
	}
}

// joined joins the texts that are not empty.
func joined(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), "; ")
}

func short(n sample.TaskName) string { return filepath.Base(string(n)) }

// awaitOutcome waits for the end of the first cap on an accused task.
func (s *scene) awaitOutcome(ctx context.Context, id string) error {
	began := time.Now()
	return s.daemon.Until(ctx, s.beat.capFor()+slowest*s.beat.times(10), "lift the cap", func() (bool, error) {
		all, err := s.daemon.incidents()
		for i := range all {
			inc := &all[i]
			round := capped(inc)
			if inc.ID != id || round == nil {
				continue
			}
			s.result.incident = inc
			s.progress(s.beats(began), int(s.beat.capFor()/s.beat.interval()), "%s under the cap: %.3g %s", victimName, float64(round.CostUnder), s.unit())
			if round.Ended == 0 {
				return false, err
			}
			r := s.result
			r.Named, r.Correlation = round.Suspect.Name, incident.Value(round.Correlation)
			r.CostContended, r.CostCapped, r.RelativeCost, r.Outcome = round.CostBefore, round.CostUnder, round.RelativeCost, round.Outcome
			s.say("the cap is lifted: %s cost %.3g under it, %.2f of %.3g before (%s)", victimName, float64(round.CostUnder), float64(round.RelativeCost), float64(round.CostBefore), round.Outcome)
			return true, err
		}
		return false, err
	})
}

// checkQuota checks, after the agent has ended, that the antagonist has its original
// limit: none.
func (s *scene) checkQuota() error {
	if s.procs[antagonistName] == nil {
		return nil
	}
	left, err := quotaLeft(s.tree, antagonistName)
	if left != "" {
		s.result.LeftBehind = append(s.result.LeftBehind, left)
	}
	return err
}

// quotaLeft returns the limit of a task of a tree; "" if none, as at the start.
func quotaLeft(tree *workload.Tree, task string) (string, error) {
	dir, v1 := tree.CPUDir(task)
	file, want := "cpu.max", "max"
	if v1 {
		file, want = "cpu.cfs_quota_us", "-1"
	}
	text, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return "", fmt.Errorf("read back the limit: %w", err)
	}
	if got := strings.Fields(string(text)); len(got) == 0 || got[0] != want {
		return fmt.Sprintf("%s holds %q, not %q", filepath.Join(dir, file), strings.TrimSpace(string(text)), want), nil
	}
	return "", nil
}

// watchAlone waits as long as a whole attempt with an antagonist takes, and records an
// accusation.
func (s *scene) watchAlone(ctx context.Context) error {
	began, limit := time.Now(), s.beat.detectLimit()+s.beat.capFor()
	err := s.daemon.Until(ctx, limit, "accuse a task", func() (bool, error) {
		s.progress(s.beats(began), int(limit/s.beat.interval()), "no antagonist: checking that no task is accused")
		inc, err := s.accused()
		if inc != nil {
			s.result.incident = inc
			s.trials(inc)
		}
		if inc != nil && antagonist(inc) != nil {
			s.describe(inc, began)
			return true, err
		}
		return false, err
	})
	if errors.Is(err, child.ErrSlow) {
		return nil
	}
	return err
}

// left lists what remains of the attempt after everything was undone.
func (s *scene) left() []string {
	left := s.tree.Leftovers()
	for _, p := range s.procs {
		select {
		case <-p.Done():
		default:
			left = append(left, fmt.Sprintf("process %d (%s)", p.PID, p.Task))
		}
	}
	return left
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
