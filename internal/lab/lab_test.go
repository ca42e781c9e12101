package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

const twoRoles = `
version: 1
study: t
environments: {ve: {driver: cgroup, cpus: 1}}
workloads:
  work: {builtin: burn, iterations: 20}
  noise: {builtin: burn}
roles:
  fg: {workload: work, environment: ve, measure: true}
  bg: {workload: noise, environment: ve}
factors:
  placement:
    - {name: apart, cpus: {fg: "0", bg: "1"}}
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1, order: sequential}
run: {retries: 1}
`

// theatre is a simulated machine: time is the bubble's, environments use CPU time while
// their process runs, and a script says which part misbehaves and when.
type theatre struct {
	mu     sync.Mutex
	envs   []*fakeEnv
	script map[string]func(e *fakeEnv) // by part, called when it begins
	lack   string                      // part that cannot be made
	astray string                      // part that is not where it was placed
	inside map[string]Watchable        // of guests, by part
	swept  int
}

type fakeEnv struct {
	t       *theatre
	name    string
	sets    []sample.Set
	process *fakeProcess
	frozen  time.Time // start of the freeze, or zero
	lost    time.Duration
	made    time.Time
	closed  bool
	starts  int
	hungry  bool // it gets no CPU time and wants some
}

func (t *theatre) Make(_ context.Context, p *study.Part) (Environment, error) {
	if p.Name() == t.lack {
		return nil, &LackError{What: "no such program", Remedy: "install it"}
	}
	e := &fakeEnv{t: t, name: p.Name(), made: time.Now()}
	t.envs = append(t.envs, e)
	return e, nil
}

func (t *theatre) Sweep() error { t.swept++; return nil }

func (e *fakeEnv) Start(_ context.Context, j Job) (Process, error) {
	e.starts++
	e.process = &fakeProcess{env: e, job: j, done: make(chan struct{}), quit: make(chan struct{})}
	return e.process, nil
}
func (e *fakeEnv) Pin(sets []sample.Set) error { e.sets = sets; return nil }
func (e *fakeEnv) Pinned() ([]sample.Set, error) {
	if e.name == e.t.astray {
		return []sample.Set{sample.SetOf(0, 1)}, nil
	}
	return e.sets, nil
}
func (e *fakeEnv) Usage() (Usage, error) {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	if e.process == nil || e.process.began.IsZero() {
		return Usage{}, nil
	}
	now := time.Now()
	if !e.frozen.IsZero() {
		now = e.frozen
	}
	return Usage{User: now.Sub(e.process.began) - e.lost}, nil
}
func (e *fakeEnv) Threads() ([]int, error) { return nil, nil }
func (e *fakeEnv) Ready() (bool, error) {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	return e.hungry || e.frozen.IsZero(), nil
}
func (e *fakeEnv) Freeze(stop bool) error {
	e.t.mu.Lock()
	defer e.t.mu.Unlock()
	if stop && e.frozen.IsZero() {
		e.frozen = time.Now()
	} else if !stop && !e.frozen.IsZero() {
		e.lost += time.Since(e.frozen)
		e.frozen = time.Time{}
	}
	return nil
}
func (e *fakeEnv) Inside() Watchable { return e.t.inside[e.name] }
func (e *fakeEnv) Close() error      { e.closed = true; return nil }

type fakeProcess struct {
	env   *fakeEnv
	job   Job
	began time.Time
	done  chan struct{}
	quit  chan struct{}
	err   error
	once  sync.Once
}

func (p *fakeProcess) Begin() (time.Time, time.Duration, error) {
	p.env.t.mu.Lock()
	p.began = time.Now()
	p.env.t.mu.Unlock()
	go p.run()
	if f := p.env.t.script[p.env.name]; f != nil {
		go f(p.env)
	}
	return p.began, 0, nil
}

// run does iterations of 100 ms one after the other; Options holds the number after
// which it exits.
func (p *fakeProcess) run() {
	defer close(p.done)
	for i := 0; ; i++ {
		from := time.Now()
		select {
		case <-p.quit:
			return
		case <-time.After(100 * time.Millisecond):
		}
		fmt.Fprintf(p.job.Stdout, "some noise\n%s%d %d 1\n", role.IterationLine, from.UnixNano(), time.Now().UnixNano())
		var last int
		if n, _ := fmt.Sscan(p.job.Argv[len(p.job.Argv)-1], &last); n == 1 && i+1 == last {
			return
		}
	}
}
func (p *fakeProcess) Done() <-chan struct{} { return p.done }
func (p *fakeProcess) Err() error            { return p.err }
func (p *fakeProcess) Stop() error {
	p.once.Do(func() {
		close(p.quit)
		if p.began.IsZero() {
			close(p.done)
		}
	})
	<-p.done
	return nil
}
func (p *fakeProcess) Clock(ns int64) time.Time { return time.Unix(0, ns) }

type quiet struct{}

func (quiet) Plan(int, time.Duration)                    {}
func (quiet) Run(int, *study.Planned, int)               {}
func (quiet) Phase(string, time.Duration, time.Duration) {}
func (quiet) Done(*result.Run)                           {}

func options(t *testing.T, text string, th *theatre) Options {
	t.Helper()
	s, err := study.Parse("t.yaml", []byte(text), study.Known{Builtins: []string{"burn"}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := result.Create(filepath.Join(t.TempDir(), "r"), result.Lock{Study: "t", Hash: text})
	if err != nil {
		t.Fatal(err)
	}
	return Options{Study: s, Folder: f, Maker: th, Progress: quiet{}, Env: "here", Allowed: sample.SetOf(0, 1),
		Topology: host.Topology{CPUs: []host.CPU{{ID: 0, Core: 0}, {ID: 1, Core: 1}}},
		Command: func(_ *study.Cell, p *study.Part) (Job, error) {
			return Job{Argv: []string{"burn", p.Workload.Options}}, nil
		}}
}

// die ends a part's process after the given time.
func die(after time.Duration, err error) func(*fakeEnv) {
	return func(e *fakeEnv) {
		<-time.After(after)
		e.process.err = err
		e.process.once.Do(func() { close(e.process.quit) })
	}
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(th *theatre, text string) string
		want   result.Verdict
		reason result.Reason
	}{
		{"all is well", nil, result.Valid, ""},
		{"a co-runner fails", func(th *theatre, s string) string {
			th.script["bg"] = die(700*time.Millisecond, errors.New("signal: killed"))
			return s
		}, result.Invalid, result.CorunnerDied},
		{"a measured workload fails", func(th *theatre, s string) string {
			th.script["fg"] = die(700*time.Millisecond, errors.New("exit status 3"))
			return s
		}, result.Invalid, result.WorkloadFailed},
		{"a co-runner stands still", func(th *theatre, s string) string {
			th.script["bg"] = func(e *fakeEnv) { <-time.After(300 * time.Millisecond); _ = e.Freeze(true) }
			return s
		}, result.Invalid, result.Stalled},
		{"a co-runner gets no CPU", func(th *theatre, s string) string {
			th.script["bg"] = func(e *fakeEnv) {
				<-time.After(300 * time.Millisecond)
				e.t.mu.Lock()
				e.hungry = true
				e.t.mu.Unlock()
				_ = e.Freeze(true)
			}
			return s
		}, result.Invalid, result.Starved},
		{"a co-runner reports what is no number", func(th *theatre, s string) string {
			th.script["bg"] = func(e *fakeEnv) { fmt.Fprintln(e.process.job.Stdout, role.IterationLine+"1 2 NaN") }
			return s
		}, result.Valid, ""},
		{"a finite co-runner is started again", func(_ *theatre, s string) string {
			return strings.Replace(s, "noise: {builtin: burn}", `noise: {builtin: burn, options: "7"}`, 1)
		}, result.Invalid, result.OverlapShort}, // the gaps, each up to one look long, are more than 1 %
		{"a finite co-runner is started again, gaps allowed", func(_ *theatre, s string) string {
			s = strings.Replace(s, "retries: 1", "retries: 1, min_overlap: 60%", 1)
			return strings.Replace(s, "noise: {builtin: burn}", `noise: {builtin: burn, options: "7"}`, 1)
		}, result.Valid, ""},
		{"a co-runner that stops early", func(_ *theatre, s string) string {
			s = strings.Replace(s, "bg: {workload: noise, ", "bg: {workload: noise, end: stop, ", 1)
			return strings.Replace(s, "noise: {builtin: burn}", `noise: {builtin: burn, options: "7"}`, 1)
		}, result.Invalid, result.OverlapShort},
		{"not where it was put", func(th *theatre, s string) string { th.astray = "bg"; return s }, result.Invalid, result.Misplaced},
		{"a server ends before it serves", func(th *theatre, s string) string {
			th.script["bg"] = die(700*time.Millisecond, errors.New("exit status 1"))
			return strings.Replace(s, "noise: {builtin: burn}", "noise: {command: [server], serves: 65535}", 1)
		}, result.Failed, result.WorkloadFailed},
		{"a server does not serve", func(_ *theatre, s string) string {
			s = strings.Replace(s, "retries: 1", "retries: 1, timeout: 1h", 1)
			return strings.Replace(s, "noise: {builtin: burn}", "noise: {command: [server], serves: 65535}", 1)
		}, result.Failed, result.WorkloadFailed},
		{"the machine lacks something", func(th *theatre, s string) string { th.lack = "bg"; return s }, result.Skipped, "lacking"},
		{"the machine lacks CPUs", func(_ *theatre, s string) string { return strings.Replace(s, `bg: "1"`, `bg: "7"`, 1) }, result.Skipped, "lacking"},
		{"it hangs", func(_ *theatre, s string) string {
			s = strings.Replace(s, "iterations: 20", "iterations: 200", 1)
			return strings.Replace(s, "retries: 1", "retries: 1, timeout: 1s", 1)
		}, result.Invalid, result.TimedOut},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				th := &theatre{script: map[string]func(*fakeEnv){}}
				text := twoRoles
				if c.change != nil {
					text = c.change(th, text)
				}
				o := options(t, text, th)
				sum, err := Run(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				runs, err := o.Folder.Runs()
				if err != nil {
					t.Fatal(err)
				}
				tries := 1
				if c.want == result.Invalid || c.want == result.Failed {
					tries = 2
				}
				if len(runs) != tries || sum.Verdicts[c.want] != tries || sum.Left != 0 {
					t.Fatalf("%d records, %+v", len(runs), sum)
				}
				r := runs[0]
				if r.Verdict != c.want || c.reason != "" && (len(r.Evidence) == 0 || r.Evidence[0].Reason != c.reason) {
					t.Errorf("%s %+v, want %s %s", r.Verdict, r.Evidence, c.want, c.reason)
				}
				for _, e := range th.envs {
					if !e.closed {
						t.Errorf("%s was left behind", e.name)
					}
				}
				if c.want == result.Valid {
					if n := len(r.Parts[0].Iterations); n < 20 || n > 23 || r.Parts[0].CPUTime < 1900*time.Millisecond || r.Parts[0].CPUs[0] != "0" {
						t.Errorf("%d iterations, %+v", n, r.Parts[0])
					}
				}
				// A part that stood still or died is noticed within a second.
				if c.reason == result.CorunnerDied || c.reason == result.Stalled || c.reason == result.Starved {
					if at := r.Evidence[0].At; at > 1700*time.Millisecond {
						t.Errorf("noticed at %s", at)
					}
				}
			})
		})
	}
}

// A line without an end does not stay in memory for as long as a program writes.
func TestALineWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := &theatre{script: map[string]func(*fakeEnv){"bg": func(e *fakeEnv) {
			fmt.Fprint(e.process.job.Stdout, strings.Repeat("x", mostOutput+1))
		}}}
		o := options(t, twoRoles, th)
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		runs, err := o.Folder.Runs()
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(o.Folder.RunPath(&runs[0], "bg.out"))
		if end := bytes.IndexByte(text, '\n'); err != nil || end != mostOutput+1 { // before what it prints next
			t.Errorf("%v: the line ends after %d bytes", err, end)
		}
	})
}

// A valid run is not repeated; a changed machine starts another series.
func TestRunGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := &theatre{script: map[string]func(*fakeEnv){}}
		o := options(t, strings.Replace(twoRoles, "repetitions: 1", "repetitions: 3", 1), th)
		ctx, cancel := context.WithCancel(t.Context())
		o.Progress = after{2, cancel}
		sum, err := Run(ctx, o)
		if !errors.Is(err, context.Canceled) || sum.Left == 0 {
			t.Fatalf("%+v, %v", sum, err)
		}
		runs, err := o.Folder.Runs()
		if err != nil || len(runs) != 2 {
			t.Fatalf("%d records, %v", len(runs), err)
		}
		o.Progress = quiet{}
		if sum, err = Run(t.Context(), o); err != nil || sum.Existing != 2 || sum.Verdicts[result.Valid] != 1 {
			t.Fatalf("%+v, %v", sum, err)
		}
		if sum, err = Run(t.Context(), o); err != nil || sum.Existing != 3 || len(sum.Verdicts) != 0 {
			t.Fatalf("nothing was to be done: %+v, %v", sum, err)
		}
		o.Env = "another machine"
		if sum, err = Run(t.Context(), o); err != nil || sum.Existing != 0 || sum.Verdicts[result.Valid] != 3 {
			t.Fatalf("another machine: %+v, %v", sum, err)
		}
		// The same machine under other conditions: such times are not averaged with its own.
		o.Stamp = []string{"bare=in-a-scheduling-group"}
		if sum, err = Run(t.Context(), o); err != nil || sum.Existing != 0 || sum.Verdicts[result.Valid] != 3 {
			t.Fatalf("other conditions: %+v, %v", sum, err)
		}
		// The study's guests have an image now: these cells have no guest.
		o.Stamp = []string{"accel=kvm", "bare=in-a-scheduling-group", "image=bench-1-2"}
		if sum, err = Run(t.Context(), o); err != nil || sum.Existing != 3 || len(sum.Verdicts) != 0 {
			t.Fatalf("conditions of guests: %+v, %v", sum, err)
		}
		orders := map[int]bool{}
		runs, err = o.Folder.Runs()
		for _, r := range runs {
			orders[r.Order] = true
		}
		if len(orders) != 9 || err != nil {
			t.Errorf("orders %v, %v", orders, err)
		}
	})
}

// What the machine lacked is tried again, since it may have it by now.
func TestSkippedRunsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		th := &theatre{lack: "bg"}
		o := options(t, twoRoles, th)
		if sum, err := Run(t.Context(), o); err != nil || sum.Verdicts[result.Skipped] != 1 || sum.Left != 0 {
			t.Fatalf("%+v, %v", sum, err)
		}
		th.lack = "" // it was installed
		if sum, err := Run(t.Context(), o); err != nil || sum.Existing != 0 || sum.Verdicts[result.Valid] != 1 {
			t.Fatalf("%+v, %v", sum, err)
		}
	})
}

// after cancels when n runs are done.
type after struct {
	n      int
	cancel func()
}

func (a after) Plan(int, time.Duration) {}
func (a after) Run(i int, _ *study.Planned, _ int) {
	if i == a.n {
		a.cancel()
	}
}
func (a after) Phase(string, time.Duration, time.Duration) {}
func (a after) Done(*result.Run)                           {}

func TestBudgetAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(t, strings.Replace(twoRoles, "repetitions: 1", "repetitions: 9, budget: 12s", 1), &theatre{})
		sum, err := Run(t.Context(), o)
		if !errors.Is(err, ErrBudget) || sum.Left == 0 || sum.Verdicts[result.Valid] == 0 || sum.Left+sum.Verdicts[result.Valid] != 9 {
			t.Errorf("%+v, %v", sum, err)
		}
		// What came before in the same study has used it up.
		o = options(t, strings.Replace(twoRoles, "repetitions: 1", "repetitions: 9, budget: 12s", 1), &theatre{})
		o.Began = time.Now().Add(-11 * time.Second)
		if sum, err = Run(t.Context(), o); !errors.Is(err, ErrBudget) || sum.Left != 9 {
			t.Errorf("%+v, %v", sum, err)
		}
		th := &theatre{astray: "bg"}
		o = options(t, strings.Replace(twoRoles, "retries: 1", "on_failure: stop", 1), th)
		if sum, err = Run(t.Context(), o); !errors.Is(err, ErrStopped) || sum.Verdicts[result.Invalid] != 1 {
			t.Errorf("%+v, %v", sum, err)
		}
	})
}

func TestLoadsAreJudged(t *testing.T) {
	for _, c := range []struct {
		name         string
		used         float64
		unattainable bool
		want         result.Reason
	}{{"on target", 0.5, false, ""}, {"off", 0.47, false, result.LoadOffTarget}, {"cannot be", 0.3, true, result.LoadUnattainable}} {
		synctest.Test(t, func(t *testing.T) {
			text := strings.Replace(twoRoles, "bg: {workload: noise, ", "bg: {workload: noise, load: {target: $l}, ", 1)
			text = strings.Replace(text, "factors:", "factors:\n  l: {staircase: {from: 50%, to: 60%, step: 20%, hold: 3s, settle: 1s}}", 1)
			o := options(t, text, &theatre{})
			o.Hold = func(ctx context.Context, _ Environment, cpus float64, _ *study.Part, levels []load.Level, each func(load.Period)) error {
				for time.Now().Before(levels[len(levels)-1].Until) {
					if err := pause(ctx, 100*time.Millisecond); err != nil {
						return err
					}
					each(load.Period{At: time.Now(), Used: time.Duration(c.used * cpus * 1e8), Length: 100 * time.Millisecond, Unattainable: c.unattainable})
				}
				return nil
			}
			sum, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" && sum.Verdicts[result.Valid] != 1 || c.want != "" && sum.Reasons[c.want] == 0 {
				t.Errorf("%s: %+v", c.name, sum)
			}
			runs, err := o.Folder.Runs()
			if err != nil || len(runs[0].Steps) != 2 || runs[0].Steps[0].Achieved < c.used-0.001 || runs[0].Steps[0].Achieved > c.used+0.001 {
				t.Errorf("%s: steps %+v, %v", c.name, runs[0].Steps, err)
			}
		})
	}
}

// Two instances that climb a staircase do so together: a step is one point of the analyses, at the mean of their loads.
// A role next to them that is to be held at one load is judged by that.
func TestInstancesClimbTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.Replace(twoRoles, "bg: {workload: noise, ", `bg: {workload: noise, count: "2", load: {target: $l}, `, 1)
		text = strings.Replace(text, "fg: {workload: work, ", "fg: {workload: work, load: {target: 90%}, ", 1)
		text = strings.Replace(text, "factors:", "factors:\n  l: {staircase: {from: 50%, to: 60%, step: 20%, hold: 3s, settle: 1s}}", 1)
		o := options(t, text, &theatre{})
		o.Hold = func(ctx context.Context, _ Environment, cpus float64, p *study.Part, levels []load.Level, each func(load.Period)) error {
			used := 0.496 + 0.008*float64(p.Index)
			for time.Now().Before(levels[len(levels)-1].Until) {
				if err := pause(ctx, 100*time.Millisecond); err != nil {
					return err
				}
				each(load.Period{At: time.Now(), Used: time.Duration(used * cpus * 1e8), Length: 100 * time.Millisecond})
			}
			return nil
		}
		if _, err := Run(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		runs, err := o.Folder.Runs()
		if err != nil || len(runs[0].Steps) != 2 {
			t.Fatalf("%+v, %v", runs, err)
		}
		if e := runs[0].Evidence; len(e) != 1 || e[0].Reason != result.LoadOffTarget || e[0].Role != "fg" {
			t.Errorf("%+v", e)
		}
		for _, s := range runs[0].Steps {
			if s.Achieved < 0.4999 || s.Achieved > 0.5001 {
				t.Errorf("%+v", s)
			}
		}
	})
}

// A study with known truth goes through the same engine.
func TestSynthetic(t *testing.T) {
	text := strings.Replace(twoRoles, "{driver: cgroup, cpus: 1}", "{driver: synthetic, truth: {base: 1s, slope: 0.5, fail: 30%}}", 1)
	o := options(t, strings.Replace(text, "repetitions: 1", "repetitions: 20", 1), &theatre{})
	sum, err := Run(t.Context(), o)
	if err != nil || sum.Verdicts[result.Valid] < 18 || sum.Verdicts[result.Invalid] == 0 {
		t.Fatalf("%+v, %v", sum, err)
	}
	runs, err := o.Folder.Runs()
	if err != nil || !runs[0].Simulated {
		t.Errorf("%+v, %v", runs[0], err)
	}
	if s, err := o.Folder.Samples(&runs[0]); len(s) == 0 || err != nil {
		t.Errorf("%d samples, %v", len(s), err)
	}
}

// Below the threshold each part has one thread of every core, above it a package of its
// own.
func TestPlacementFollowsLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.Replace(twoRoles, "bg: {workload: noise, ", "bg: {workload: noise, load: {target: $l, tolerance: 100%}, ", 1)
		text = strings.Replace(text, "factors:", "factors:\n  l: {staircase: {from: 20%, to: 80%, step: 60%, hold: 5s, settle: 1s}}", 1)
		text = strings.Replace(text, `cpus: {fg: "0", bg: "1"}`, "dynamic: {role: bg, below: per-thread, above: per-chip, at: 50%, hysteresis: 5%}", 1)
		th := &theatre{}
		o := options(t, text, th)
		o.Topology, o.Allowed = host.Topology{}, sample.SetOf(0, 1, 2, 3)
		for id := range 4 { // two packages of a core of two threads
			o.Topology.CPUs = append(o.Topology.CPUs, host.CPU{ID: id, Package: id / 2, Siblings: sample.SetOf(id/2*2, id/2*2+1)})
		}
		o.Hold = func(ctx context.Context, _ Environment, cpus float64, _ *study.Part, levels []load.Level, each func(load.Period)) error {
			for _, l := range levels {
				for time.Now().Before(l.Until) {
					if err := pause(ctx, 100*time.Millisecond); err != nil {
						return err
					}
					each(load.Period{At: time.Now(), Used: time.Duration(l.Share * cpus * 1e8), Length: 100 * time.Millisecond})
				}
			}
			return nil
		}
		sum, err := Run(t.Context(), o)
		if err != nil || sum.Verdicts[result.Valid] != 1 {
			t.Fatalf("%+v, %v", sum, err)
		}
		runs, err := o.Folder.Runs()
		if err != nil {
			t.Fatal(err)
		}
		// Up at 5 s, down at 15 s, each seen within the averaging time.
		want := map[string][]string{"fg": {"0,2", "0-1 from ", "0,2 from "}, "bg": {"1,3", "2-3 from ", "1,3 from "}}
		for _, p := range runs[0].Parts {
			if len(p.CPUs) != 3 {
				t.Fatalf("%s was on %q", p.Name, p.CPUs)
			}
			for i, cpus := range p.CPUs {
				if !strings.HasPrefix(cpus, want[p.Name][i]) {
					t.Errorf("%s was on %q, want %q", p.Name, p.CPUs, want[p.Name])
				}
			}
		}
	})
}
